"""Was the output unchanged? Result of the probe that `10_deploy` records."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup

from kvtop_lib.note.evidence import Evidence
from kvtop_lib.note.prose import Value, listing, quantity, say
from kvtop_lib.stats.verdicts import BASELINE_AA


def sentences(ev: Evidence) -> list[Markup]:
    """One sentence per drafting arm that was probed, and one on those that were not."""
    out, missing = [], []
    for arm in ev.drafting:
        where, deployment = ev.deployment(arm)
        probe = deployment.get("lossless") or {}
        if probe.get("matched") is None or not probe.get("prompts"):
            missing.append(ev.title(arm))
            continue
        source = f"{where}/deployment.json#lossless"
        matched = Value(str(probe["matched"]), f"{source}.matched", float(probe["matched"]))
        total = Value(str(probe["prompts"]), f"{source}.prompts", float(probe["prompts"]))
        same = probe["matched"] == probe["prompts"]
        text = say(
            "{arm}: {m} of {n} outputs equal the baseline's, token by token.",
            arm=ev.title(arm),
            m=matched,
            n=total,
        )
        if not same:
            text = say('<strong class="loss">Not lossless.</strong> ') + text
            text += parting(probe, source)
        out.append(text)
    if missing:
        out.append(say("Not probed: {arms}.", arms=listing(missing)))
    exempt = [
        ev.title(a)
        for a in ev.arms
        if (ev.deployment(a)[1].get("lossless") or {}).get("role") == "exempt"
    ]
    if exempt:
        out.append(say("Exempt, since acceptance is simulated: {arms}.", arms=listing(exempt)))
    where, itself = ev.deployment(BASELINE_AA)
    if (found := itself.get("lossless") or {}).get("mismatches"):
        source = f"{where}/deployment.json#lossless"
        out.append(
            say(
                "Between the baseline and itself (A/A) {m} of {n} outputs are equal.",
                m=Value(str(found["matched"]), f"{source}.matched", float(found["matched"])),
                n=Value(str(found["prompts"]), f"{source}.prompts", float(found["prompts"])),
            )
            + parting(found, source)
        )
    return out


def parting(probe: dict[str, Any], source: str) -> Markup:
    """Rate and place of the first differences, and how close the two tokens were."""
    found = probe.get("divergence")
    if not found:
        return Markup("")
    at = f"{source}.divergence"

    rate, place = found["per_1000_tokens"], found["position"]["p50"]
    text = say(
        " First differences: {rate} per thousand tokens, in the median behind {k} equal tokens",
        rate=Value(quantity(rate), f"{at}.per_1000_tokens", rate),
        k=Value(f"{place:g}", f"{at}.position.p50", place),
    )
    if not found["gap"]:
        return text + say(".")
    return text + say(
        ", where the log-probabilities of the two tokens are {g} apart.",
        g=Value(quantity(found["gap"]["p50"], "nats"), f"{at}.gap.p50", found["gap"]["p50"]),
    )


def verdict(ev: Evidence) -> Markup:
    """One sentence over all arms."""
    probes = [ev.deployment(a)[1].get("lossless") or {} for a in ev.drafting]
    known = [p for p in probes if p.get("matched") is not None and p.get("prompts")]
    if not known:
        return say(
            "No arm was compared with the baseline's outputs: a faster answer may be another one."
        )
    if all(p["matched"] == p["prompts"] for p in known):
        return say(
            "Drafting changed no output in the probe: greedy decoding gave the baseline's tokens."
        )
    return say(
        "Drafting changed outputs in the probe; speed is not comparable until that is explained."
    )
