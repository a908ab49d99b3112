"""What went wrong in a run, said beside its numbers: points, requests and checks that failed."""

from __future__ import annotations

import pandas as pd
from markupsafe import Markup

from kvtop_lib import tables
from kvtop_lib.note.evidence import Evidence
from kvtop_lib.note.prose import Value, listing, say


def not_ok(ev: Evidence) -> Markup | None:
    bad = ev.whole[ev.whole["status"] != "ok"]
    if bad.empty:
        return None
    items = []
    for row in bad.itertuples():
        source = f"results.jsonl#L{row.line}"
        status = Value(row.status, f"{source}:status")
        told = getattr(row, "reason", "")
        told = told if isinstance(told, str) and told else "no reason recorded"
        reason = Value(told, f"{source}:reason")
        block = Value(f"block {row.block}", f"{source}:block")
        items.append(
            say(
                "<li>{arm}, {c}, {block}: {status} ({reason})</li>",
                arm=ev.title(row.arm),
                c=_load(row, source),
                block=block,
                status=status,
                reason=reason,
            )
        )
    n = ev.count("failed", "invalid", "aborted")
    return (
        say(
            "<b>Points without a number.</b> {n} of {all} points are not <code>ok</code>; they "
            "carry no metrics and are drawn as a cross where no other block stands in.",
            n=n,
            all=ev.count(),
        )
        + Markup("<ul>")
        + Markup("").join(items)
        + Markup("</ul>")
    )


def _load(row, source: str) -> Value:
    """Lanes as a number, another load by its name."""
    if pd.isna(row.c):
        return Value(row.load, f"{source}:load")
    return Value(f"c = {int(row.c)}", f"{source}:c")


def missed_requests(ev: Evidence) -> Markup | None:
    parts = []
    for status in ("http_error", "stream_error", "truncated", "timeout", "cancelled"):
        n = sum(
            int(tables.pick(r, f"counts.{status}") or 0) for r in ev.records if r["status"] == "ok"
        )
        if n:
            value = Value(str(n), f"results.jsonl:sum(counts.{status})", float(n))
            parts.append(say("{n} {s}", n=value, s=status.replace("_", " ")))
    if not parts:
        return None
    return say(
        "<b>Requests that did not end well.</b> In points that count there were {parts}; they are "
        "left out of no percentile silently: a missing first token counts as an infinite wait.",
        parts=listing(parts),
    )


def audits(ev: Evidence) -> Markup | None:
    failed: dict[str, list[int]] = {}
    for record in ev.records:
        for name, audit in (record.get("audits") or {}).items():
            if isinstance(audit, dict) and audit.get("ok") is False:
                failed.setdefault(name, []).append(int(record["line"]))
    if not failed:
        return None
    items = [
        say(
            "{name} ({lines})",
            name=Value(name, f"results.jsonl#L{lines[0]}:audits"),
            lines=Value(", ".join(f"L{n}" for n in lines), "results.jsonl:audits"),
        )
        for name, lines in failed.items()
    ]
    return say(
        "<b>Checks that disagree.</b> {items} did not agree with what the server or the clock "
        "says; the affected points are marked in the records.",
        items=listing(items),
    )
