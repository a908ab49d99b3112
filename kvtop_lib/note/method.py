"""The method table, the short block beside each figure and its evidence line."""

from __future__ import annotations

from markupsafe import Markup

from kvtop_lib import tables
from kvtop_lib.metrics import METRICS
from kvtop_lib.note.caveats import blocks
from kvtop_lib.note.evidence import Evidence
from kvtop_lib.note.parts import definition
from kvtop_lib.note.prose import NBSP, Value, listing, say
from kvtop_lib.stats import LANES

HOW = {
    "none": "no drafting",
    "mtp": "MTP layer",
    "ngram": "n-gram look-up",
    "mtp_ngram": "n-gram look-up, else MTP layer",
}
"""Methods of drafting, in words."""


def joined(*parts: Value | Markup | None, by: str = ", ") -> Markup | None:
    """Parts that are there, None when none is."""
    found = [p for p in parts if p]
    return Markup(by).join(found) if found else None


def model(ev: Evidence) -> Markup | None:
    """Model, weights and the precision it is served in."""
    dtype = ev.field("model.dtype")
    return joined(
        ev.field("model.title"), ev.field("model.weights"), dtype and say("served in {d}", d=dtype)
    )


def layout(ev: Evidence) -> Markup | None:
    """Layout and machine."""
    layouts = {tables.pick(a, "layout") or "single" for a in ev.arms.values()}
    single = say("one server") if layouts == {"single"} else None
    cores = ev.field("machine.cores")
    return joined(
        single,
        ev.field("machine.cpu_model"),
        cores and say("{n} cores", n=cores),
        ev.field("machine.gpu"),
    )


def runtime(ev: Evidence) -> Markup | None:
    """Engine, its version and the commit of this package."""
    engine = ev.field("engine.version")
    return joined(engine and say("SGLang {v}", v=engine), commit(ev, "KVTop"))


def commit(ev: Evidence, name: str = "") -> Markup | None:
    """Commit of the package that measured."""
    full = ev.field("git.commit")
    if full is None:
        return None
    value = Value(full.text[:10], full.source)
    return say("{name} @ {c}", name=name, c=value) if name else say("{c}", c=value)


def arms(ev: Evidence) -> Markup:
    """Arms with their draft widths."""
    named = []
    for name in ev.arms:
        width = ev.field(f"arms.{name}.draft.width")
        method = tables.pick(ev.arms[name], "draft.method") or "none"
        how = HOW.get(str(method)) or ev.field(f"arms.{name}.draft.method")
        tail = (
            say(" ({how}, verify width {w})", how=how, w=width)
            if width and method != "none"
            else Markup("")
        )
        named.append(say("{t}{tail}", t=ev.title(name), tail=tail))
    return Markup(" · ").join(named)


def workload(ev: Evidence) -> Markup | None:
    """Workload and the phases of a point."""
    words = {"burn_in": "burn-in", "warmup": "warm-up", "window": "window", "drain": "drain"}
    phases = [
        say("{v} {w}", v=v, w=word)
        for key, word in words.items()
        if (v := ev.field(f"profile.{key}_s", "s"))
    ]
    for load in tables.pick(ev.manifest, "profile.windows") or ():
        own = ev.field(f"profile.windows.{load}", "s")
        phases.append(say("{v} window at {load}", v=own, load=Value(load, own.source)))
    return joined(ev.field("workload.title"), listing(phases) if phases else None)


def trace(ev: Evidence) -> Markup | None:
    """Trace, with its fingerprint."""
    mark = ev.field("trace.sha256")
    short = mark and say("fingerprint {s}", s=Value(mark.text[:12], mark.source))
    return joined(ev.field("trace.name"), short)


def deployed(ev: Evidence) -> Markup | None:
    """What the engine made of each arm: KV pool, memory, time until a first request had passed."""
    units = (("kv_tokens", ",.0f", 1.0, "KV tokens"), ("memory_bytes", ".1f", 1e9, "GB"),
             ("startup_s", ".0f", 1.0, "s to the first answer"))  # fmt: skip
    rows = []
    for arm in ev.arms:
        where, record = ev.deployment(arm)
        found = [
            Value(
                f"{record[k] / scale:{fmt}}{NBSP}{unit}", f"{where}/deployment.json#{k}", record[k]
            )
            for k, fmt, scale, unit in units
            if record.get(k) is not None
        ]
        if found:
            rows.append(say("{arm}: {facts}", arm=ev.title(arm), facts=Markup(", ").join(found)))
    return joined(*rows, by="<br>")


def loads(ev: Evidence) -> Markup:
    """Lanes of the closed loop, rates of the open one."""
    found = []
    if ev.axis == LANES:
        each = [Value(f"{c:g}", ev.load_value(c).source, float(c)) for c in ev.loads]
        found.append(say("closed loop, c = {c}", c=listing(each)))
    if ev.rates:
        rates = [ev.rates.load_value(c) for c in ev.rates.loads]
        found.append(say("open loop at {r}", r=listing(rates)))
    return Markup("; ").join(found)


def repeats(ev: Evidence) -> Markup:
    """Blocks per point."""
    return say("n = {n} per point", n=blocks(ev))


def block(ev: Evidence, metric: Markup) -> Markup:
    """Short method block that stands beside a figure."""
    return definition(
        [
            ("model", model(ev)),
            ("layout", layout(ev)),
            ("runtime", runtime(ev)),
            ("arms", arms(ev)),
            ("workload", workload(ev)),
            ("metric", metric),
            ("repeats", repeats(ev)),
        ],
        "method",
    )


def full(ev: Evidence) -> Markup:
    """The method table at the end."""
    seed = ev.field("profile.seed")
    order = say(
        "fresh server per block, cache flushed before every point{s}",
        s=say(", seed {v}", v=seed) if seed else Markup(""),
    )
    return definition(
        [
            ("Model", model(ev)),
            ("Hardware, layout", layout(ev)),
            ("Runtime", runtime(ev)),
            ("Arms", arms(ev)),
            ("Workload", joined(workload(ev), ev.field("workload.description"), by="<br>")),
            ("Trace", trace(ev)),
            ("Deployed", deployed(ev)),
            ("Load", loads(ev)),
            ("Order", order),
            ("Metrics", metrics(ev)),
            ("Repeats", repeats(ev)),
        ],
        "full",
    )


SHOWN = ("output_tok_s", "ttft_s", "accept_len", "iteration_s")


def metrics(ev: Evidence) -> Markup:
    """Formulas of what is shown, out of the one table of metrics."""
    more = ["goodput"] * bool(ev.targets) + ["ttft_intended_s", "ended_rate"] * bool(ev.rates)
    keys = {*SHOWN, *more}
    rows = [m for m in METRICS if m.key in keys]
    return Markup("<br>").join(
        say(
            "<b>{n}</b>: {f}",
            n=Value(m.name, f"kvtop_lib.metrics:{m.key}.name"),
            f=Value(m.formula, f"kvtop_lib.metrics:{m.key}.formula"),
        )
        for m in rows
    )


def ranges(numbers: list[int]) -> str:
    """``L3–8, L11`` of line numbers."""
    spans: list[list[int]] = []
    for n in sorted(set(numbers)):
        if spans and n == spans[-1][1] + 1:
            spans[-1][1] = n
        else:
            spans.append([n, n])
    return ", ".join(f"L{a}" if a == b else f"L{a}–{b}" for a, b in spans)


def source(ev: Evidence, numbers: list[int]) -> Markup:
    """Evidence line: run, lines of results.jsonl, commit."""
    lines = Value(ranges(numbers), "results.jsonl:lines of this figure")
    at = commit(ev)
    text = say(
        "Source: run {run} · results.jsonl {lines}{at}",
        run=ev.name,
        lines=lines,
        at=say(" · {c}", c=at) if at else Markup(""),
    )
    return Markup('<p class="source">{}</p>').format(text)
