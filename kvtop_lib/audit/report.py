"""An audit in words."""

from __future__ import annotations

import json
from typing import Any


def report(found: dict[str, Any], *, as_json: bool = False) -> str:
    """What `kvtop audit` prints: implied active requests by load, then the findings.

    Parameters
    ----------
    found : result of `kvtop_lib.audit.audit`.
    as_json : the same as one JSON object.
    """
    if as_json:
        return json.dumps(found, indent=1)
    arms = list(dict.fromkeys(a["arm"] for a in found["active"]))
    loads = sorted({a["concurrency"] for a in found["active"]})
    cells = {
        (a["arm"], a["concurrency"]): f"{a['active']:.1f} ({a['low']:.1f} to {a['high']:.1f})"
        for a in found["active"]
    }
    lines = [
        found["file"],
        f"per-request speed: {found['definition']}",
        "",
        "implied active requests (range that the printed digits allow)",
        f"{'c':>6}" + "".join(f"  {arm:>24}" for arm in arms),
    ]
    for c in loads:
        lines.append(f"{c:>6}" + "".join(f"  {cells.get((arm, c), '–'):>24}" for arm in arms))
    lines.append("")
    lines += [f"{f['verdict']}: {f['subject']}: {f['text']}" for f in found["findings"]]
    if not found["findings"]:
        lines.append("nothing in the table contradicts itself")
    return "\n".join(lines)
