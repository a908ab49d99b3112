"""Where a run was measured and with which code, as far as that limits what it shows."""

from __future__ import annotations

import contextlib
import json

from markupsafe import Markup

from kvtop_lib import tables
from kvtop_lib.note.evidence import Evidence
from kvtop_lib.note.prose import Value, say
from kvtop_lib.store import read_json
from kvtop_lib.terms import KvtopError


def machines(ev: Evidence) -> Markup:
    """Client and server shared a machine; and where blocks were measured on several."""
    cores = ev.field("machine.cores")
    where = say("one machine with {n} cores", n=cores) if cores else say("one machine")
    by_block = sittings(ev)
    found = list(dict.fromkeys(x for seen in by_block.values() for x in seen))
    more = Markup("")
    if len(found) > 1:
        source = "*/b*/deployment.json:count(distinct machine, booted_utc)"
        kinds = len({machine for machine, _ in found})
        whole = all(len(seen) == 1 for seen in by_block.values())
        more = say(
            " The blocks were measured in {n} sittings, {which}; arms are compared inside a block"
            "{whole}.",
            n=Value(str(len(found)), source, float(len(found))),
            which="on machines of several kinds" if kinds > 1 else "on this kind of machine",
            whole=", each measured in one" if whole else ", though not every block in one",
        )  # fmt: skip
    text = say(
        "<b>Other hosts.</b> Client and server shared {w}; a client that competes for "
        "cores slows all arms, though not in equal parts.",
        w=where,
    )
    return text + more


def sittings(ev: Evidence) -> dict[str, set[tuple[str, str]]]:
    """Blocks with the machines, and the times of their start, on which they were launched.

    Blocks of older records, which do not tell, are left out.
    """
    found: dict[str, set[tuple[str, str]]] = {}
    for file in sorted(ev.run.path.glob("*/b*/deployment.json")):
        with contextlib.suppress(KvtopError):
            record = read_json(file)
            if machine := record.get("machine"):
                here = json.dumps(machine, sort_keys=True), str(record.get("booted_utc"))
                found.setdefault(file.parent.name, set()).add(here)
    return found


def uncommitted(ev: Evidence) -> Markup | None:
    """The checkout was not what its commit says."""
    if not tables.pick(ev.manifest, "git.dirty"):
        return None
    return say("<b>The exact code.</b> The checkout had uncommitted changes when the run started.")


def commits(ev: Evidence) -> Markup | None:
    """Points that were measured with other code than the manifest names."""
    first = tables.pick(ev.run.manifest, "git.commit")
    other = [r["line"] for r in ev.records if first and (r.get("commit") or first) != first]
    if not other:
        return None
    source = f"results.jsonl#{','.join(f'L{n}' for n in other)}:commit"
    return say(
        "<b>One version of the code.</b> {n} points were measured at another commit than the cited "
        "one; by their keys the files that a measurement depends on are the same.",
        n=Value(str(len(other)), source, float(len(other))),
    )
