"""Decomposition of the ratio of throughput into four measured factors and what they leave."""

from __future__ import annotations

import numpy as np
import pandas as pd
from markupsafe import Markup

from kvtop_lib import decomposition as parts
from kvtop_lib import figures
from kvtop_lib.note.captions import Caption
from kvtop_lib.note.evidence import Evidence
from kvtop_lib.note.plate import Plate
from kvtop_lib.note.prose import Value, listing, say

NAMES = {
    "acceptance": "tokens per request and iteration",
    "iteration_time": "iteration time",
    "batch": "requests in the batch",
    "busy_share": "share of time decoding",
    "residual": "residual",
}
"""Factors as the page calls them."""

WITHIN = Value(f"{100 * parts.TOLERANCE:g} percent", "kvtop_lib.decomposition:TOLERANCE",
               parts.TOLERANCE)  # fmt: skip


def decomposition(ev: Evidence) -> Plate | None:
    """What makes up the ratio at every load: a bar per load of the headline's arm."""
    found = ev.decomposed
    if found.empty or ev.primary is None or not (found["arm"] == ev.primary).any():
        return None
    found = found[found["arm"].isin(ev.arms)]
    own = found[found["arm"] == ev.primary].sort_values("c")
    tall = own[["c", *NAMES]].melt(["c"], var_name="factor", value_name="log_ratio")
    chart = figures.decomposition(
        tall.assign(factor=tall["factor"].map(NAMES)), ev.titles[list(ev.arms).index(ev.primary)]
    )
    data = pd.DataFrame({
        "arm": found["arm"], "c": found["c"],
        **{k: np.exp(found[k].astype(float)) for k in NAMES},
        "ratio": np.exp(found["log_ratio"].astype(float)), "n": found["n"],
        "explained": found["explained"], "lines": found["lines"],
    }).reset_index(drop=True)  # fmt: skip
    metric = say(
        "recorded iterations that end in the window: tokens per request and iteration, over "
        "iteration time, times requests in the batch, times the share of the window that they fill"
    )
    return Plate("decomposition", (chart,), data, caption(ev, own), metric)


def factor(ev: Evidence, row: pd.Series, key: str) -> Value:
    """What a factor multiplies the ratio with; iteration time is the baseline's over the arm's."""
    value = float(np.exp(row[key]))
    pairs = [(b, a) if key == "iteration_time" else (a, b) for a, b in row["folders"]]
    where = ",".join(f"{a}|{b}" for a, b in pairs)
    return Value(f"{value:.2f}", f"{row['record']}#{where}:ratio({key})", value)


def caption(ev: Evidence, own: pd.DataFrame) -> Caption:
    """Claim: whether the factors make up the ratio. Body: the product at both ends of the load."""
    arm, left = ev.title(ev.primary), own[~own["explained"]]
    if left.empty:
        claim = say(
            "Four measured factors make up the ratio of {arm} at every load, within {w}.",
            arm=arm, w=WITHIN,
        )  # fmt: skip
    else:
        where = listing([ev.load_value(c) for c in left["c"]])
        claim = say(
            "At {where} the four factors leave more than {w} of the ratio of {arm} unexplained.",
            where=where, w=WITHIN, arm=arm,
        )  # fmt: skip
    ends = own.iloc[[0, -1]] if len(own) > 1 else own
    said = Markup(" ").join(_product(ev, row) for _, row in ends.iterrows())
    body = say(
        " A factor above one raises output; that of iteration time is the baseline's over the "
        "arm's. The residual holds first tokens and requests at the edges of the window."
    )
    return claim, said + body


def _product(ev: Evidence, row: pd.Series) -> Markup:
    ratio = float(np.exp(row["log_ratio"]))
    whole = Value(f"{ratio:.2f}", ev.cite_ratio(row["arm"], "output_tok_s", row["lines"]), ratio)
    terms = [say("{v} ({n})", v=factor(ev, row, k), n=NAMES[k]) for k in NAMES]
    product = Markup(" × ").join(terms)
    return say("At {c}: {p} = {r}.", c=ev.load_value(row["c"]), p=product, r=whole)
