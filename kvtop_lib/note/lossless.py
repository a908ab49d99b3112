"""Was the output unchanged? Result of the probe that `10_deploy` records."""

from __future__ import annotations

from markupsafe import Markup

from kvtop_lib.note.evidence import Evidence
from kvtop_lib.note.prose import Value, listing, say


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
        out.append(text)
    if missing:
        out.append(say("Not probed: {arms}.", arms=listing(missing)))
    return out


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
