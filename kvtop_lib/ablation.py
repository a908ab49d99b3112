"""Naming a cause: only when its isolating arm moves the result and the others do not."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from kvtop_lib.stats import Floor, block_ratios, noise_floor, summarise, verdicts
from kvtop_lib.stats.verdicts import BASELINE_AA
from kvtop_lib.terms import KvtopError


@dataclass(frozen=True)
class Isolation:
    """One possible cause and the pair of arms that differ in it alone.

    Attributes
    ----------
    cause : in words, for the table; up to the colon what pairs of one cause share.
    arm : has the cause.
    reference : the same without it.
    bound : simulated acceptance; shows what drafting costs at a stated yield, which no one can
        deploy, so it stands beside the causes and is none.
    """

    cause: str
    arm: str
    reference: str = "baseline"
    bound: bool = False


ISOLATIONS = (
    Isolation("admission: the cap on running requests", "baseline_cap"),
    Isolation("admission: the cap that SGLang sets when drafting", "mtp_w2_shipped",
              "mtp_w2_lifted"),
    Isolation("memory: fewer KV tokens", "baseline_kv"),
    Isolation("deployment: MTP is loaded and never drafts", "mtp_width_off"),
    Isolation("reserve: KV tokens held for the drafts of 32 at a time", "mtp_reserve",
              "mtp_width_off"),
    Isolation("verification: the same deployment, drafting or not", "mtp_width_on",
              "mtp_width_off"),
    Isolation("cost: no draft accepted (simulated)", "mtp_w2_accept_none", bound=True),
    Isolation("cost: every draft accepted (simulated)", "mtp_w2_accept_all", bound=True),
)  # fmt: skip
"""Pairs that KVTop's arms can form; those that a run lacks are reported as not measured."""


def ablations(
    summaries: dict[str, pd.DataFrame],
    c: float,
    workload: str,
    effect: str,
    isolations: tuple[Isolation, ...] = ISOLATIONS,
    floor: Floor | None = None,
) -> pd.DataFrame:
    """Which isolating pairs move the result at one load.

    Parameters
    ----------
    summaries
        Reference arm -> `kvtop_lib.stats.summarise` of the ratios to it.
    c, workload
        The point.
    effect
        What is to be explained: ``higher`` or ``lower`` (`kvtop_lib.stats.verdicts`).
    isolations
        Possible causes.
    floor
        The A/A pair's, as in `kvtop_lib.stats.verdicts`.

    Returns
    -------
    DataFrame
        ``cause``, ``arm``, ``reference``, ``bound``, ``n``, ``ratio``, ``low``, ``high``,
        ``verdict`` (``not measured`` where the pair is missing) and ``moves``: in the effect's
        direction.

    Raises
    ------
    KvtopError
        When `effect` is no difference: there is nothing to explain.
    """
    if effect not in ("higher", "lower"):
        raise KvtopError(f"an effect of {effect!r} has no cause to be named")
    rows = []
    for one in isolations:
        found = summaries.get(one.reference, pd.DataFrame(columns=["arm", "workload", "c"]))
        at = found[(found["arm"] == one.arm) & (found["c"] == c) & (found["workload"] == workload)]
        row = dict(vars(one))
        if len(at):
            row |= at.iloc[0][["n", "ratio", "low", "high"]].to_dict()
            row["verdict"] = verdicts(at, floor).iloc[0]
        rows.append({"n": 0, "verdict": "not measured", **row})
    columns = ["cause", "arm", "reference", "bound", "n", "ratio", "low", "high", "verdict"]
    table = pd.DataFrame(rows).reindex(columns=columns)
    return table.assign(moves=table["verdict"] == effect)


def named(table: pd.DataFrame) -> str:
    """The conclusion that a table of `ablations` allows, in one sentence.

    Pairs of one cause count as one; what bounds the cost is said behind it.
    """
    bounds = table[table["bound"] & (table["verdict"] != "not measured")]
    said = [
        f"; with {r.cause.partition(': ')[2]}: {_WORDS[r.verdict]}" for r in bounds.itertuples()
    ]
    return _named(table[~table["bound"]]) + "".join(said)


_WORDS = {
    "higher": "more than the baseline", "lower": "less than the baseline",
    "none": "no difference detected", "unknown": "not told from noise",
}  # fmt: skip


def _named(table: pd.DataFrame) -> str:
    table = table.assign(family=table["cause"].str.partition(":")[0])
    measured = table[table["verdict"] != "not measured"]
    missing = len(table) - len(measured)
    left = f"; {missing} of {len(table)} isolating pairs were not measured" if missing else ""
    if measured.empty:
        return "no cause is named: no isolating pair was measured"
    if (measured["verdict"] == "unknown").any():
        return f"no cause is named: one block and no A/A pair do not tell a change from noise{left}"
    moving = measured[measured["moves"]]
    if moving.empty:
        return f"no cause is named: no isolating pair moves the result in this direction{left}"
    if moving["family"].nunique() > 1:
        causes = "; ".join(moving["cause"])
        return f"no single cause is named: {len(moving)} pairs move the result ({causes}){left}"
    if measured["family"].nunique() < 2:
        return f"no cause is named: only one cause's isolating pair was measured{left}"
    others = len(measured) - len(moving)
    pairs = "its pair moves" if len(moving) == 1 else f"{len(moving)} of its pairs move"
    what = f"{pairs} the result, the other {others} measured do not"
    return f"{'; '.join(moving['cause'])}: {what}{left}"


def causes(
    points: pd.DataFrame,
    isolations: tuple[Isolation, ...] = ISOLATIONS,
    baseline: str = "baseline",
    confidence: float = 0.95,
) -> pd.DataFrame:
    """What the isolating pairs of a run say about every arm that differs from the baseline.

    Parameters
    ----------
    points
        `kvtop_lib.store.Run.results` of one kind of load.
    isolations, baseline, confidence
        Possible causes; what the arms are compared with; coverage of the intervals.

    Returns
    -------
    DataFrame
        ``arm``, ``workload``, ``c``, ``effect`` (``higher``, ``lower``) and ``conclusion``
        (`named`); no row when the run has no isolating pair.
    """
    summaries = {}
    for reference in dict.fromkeys((baseline, *(i.reference for i in isolations))):
        try:
            ratios = block_ratios(points, "output_tok_s", reference)
        except KvtopError:  # this reference was not measured
            continue
        summaries[reference] = summarise(ratios, confidence)
    columns = ["arm", "workload", "c", "effect", "conclusion"]
    present = set(points["arm"])
    if baseline not in summaries or not any({i.arm, i.reference} <= present for i in isolations):
        return pd.DataFrame(columns=columns)
    whole = summaries[baseline]
    floor = noise_floor(whole)
    helpers = {BASELINE_AA, *(i.arm for i in isolations), *(i.reference for i in isolations)}
    judged = whole.assign(effect=verdicts(whole, floor))
    judged = judged[~judged["arm"].isin(helpers) & judged["effect"].isin(["higher", "lower"])]
    rows = [
        {
            **{k: getattr(row, k) for k in ("arm", "workload", "c", "effect")},
            "conclusion": named(
                ablations(summaries, row.c, row.workload, row.effect, isolations, floor)
            ),
        }
        for row in judged.itertuples()
    ]
    return pd.DataFrame(rows, columns=columns)
