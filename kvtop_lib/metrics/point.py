"""A point's metrics and checks, derived from its raw records."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pandas as pd

from kvtop_lib.metrics import audits, health, recorded
from kvtop_lib.metrics.counts import REMAIN, available, kind
from kvtop_lib.metrics.drafts import acceptance, own_widths
from kvtop_lib.metrics.latency import arrivals, gaps, latencies, per_request
from kvtop_lib.metrics.throughput import flow, goodput, occupancy, window_tokens
from kvtop_lib.store import read_json, write_json
from kvtop_lib.terms import REQUEST_STATUSES

LABELS = "schema run arm block workload load c rate attempt seed key commit".split()


@dataclass(frozen=True)
class Recording:
    """Raw records of a point.

    ``facts`` is ``recording.json``; the tables are ``requests.parquet``, ``chunks.parquet`` and
    ``scrapes.parquet`` (columns: `kvtop_lib.replay.record`, `kvtop_lib.replay.scrape`).
    """

    facts: dict
    requests: pd.DataFrame
    chunks: pd.DataFrame
    scrapes: pd.DataFrame
    iterations: pd.DataFrame | None = None  # `recorded.read_iterations`; None without a recorder

    @classmethod
    def read(cls, folder: Path) -> Recording:
        """Read a point's folder."""
        tables = (
            pd.read_parquet(folder / f"{t}.parquet") for t in ("requests", "chunks", "scrapes")
        )
        iterations = recorded.read_iterations(folder)
        return cls(read_json(folder / "recording.json"), *tables, iterations)

    @property
    def edges(self) -> tuple[float, float]:
        """``(w0, w1)`` on the run's clock, in seconds."""
        return self.facts["window"]["w0_s"], self.facts["window"]["w1_s"]

    @property
    def window_s(self) -> float:
        """Length of the window."""
        w0, w1 = self.edges
        return w1 - w0

    @property
    def span_s(self) -> float:
        """Length of the whole point, drain included."""
        return self.facts["window"]["drained_s"] - self.facts["clock"]["start_s"]

    @cached_property
    def arrived(self) -> pd.DataFrame:
        """Arrivals (`kvtop_lib.metrics.latency.arrivals`)."""
        return arrivals(self.chunks)

    @cached_property
    def window(self) -> pd.DataFrame:
        """Requests sent in the window, with their latencies."""
        rows = per_request(self.requests, self.arrived)
        return rows[rows["phase"] == "window"]

    @cached_property
    def judged(self) -> pd.DataFrame:
        """Requests of the window by which the server is judged: not those drawn to be aborted.

        One that was drawn and ended before its abort came is left out too: to keep just these
        would favour short requests. What was drawn does not depend on the server, so leaving
        all of them out favours none.
        """
        drawn = self.window.get("cancel_after_s")
        return self.window if drawn is None else self.window[drawn.isna()]

    @cached_property
    def occupancy(self) -> dict:
        """In flight, decoding, running, queued, KV use."""
        return occupancy(self.requests, self.scrapes, *self.edges)


def metrics(rec: Recording, targets: dict[str, float] | None = None) -> dict:
    """Every client-side metric of a point (`kvtop_lib.metrics.METRICS` has the formulas)."""
    n, matched = window_tokens(rec.arrived, *rec.edges), rec.judged["matches_recorded"].dropna()
    return {
        "window_s": rec.window_s,
        "output_tok_s": n / rec.window_s,
        **latencies(rec.judged),
        **gaps(rec.arrived, *rec.edges),
        **flow(rec.requests, rec.window, *rec.edges),
        "requests_window": len(rec.window),
        "output_tokens_window": n,
        **rec.occupancy,
        **acceptance(own_widths(rec.judged, rec.iterations, rec.facts.get("widths") or ())),
        "matches_recorded": float(matched.astype(bool).mean()) if len(matched) else None,
        **({"goodput": goodput(rec.judged, targets, rec.window_s)} if targets else {}),
    }


def check(rec: Recording, page_tokens: int | None = None) -> dict[str, dict]:
    """Every check of a point by name."""
    page_tokens = page_tokens or rec.facts.get("page_tokens") or audits.PAGE_TOKENS
    facts, edges = rec.facts, rec.edges
    gap_p50_s = gaps(rec.arrived, *edges)["chunk_gap_s"]["p50"]
    limit = max(
        facts["plan"]["max_output_tokens"], int(rec.requests["expected_output_tokens"].max() or 0)
    )
    counts = audits.token_counts(rec.requests)
    compared = audits.tokens(rec.requests, facts["counters"], limit)
    return {
        "token_counts": counts,
        "tokens": counts if kind(rec.requests) == "none" else compared,
        "little": audits.little(rec.requests, facts["counters"], rec.span_s),
        "prefix_hits": audits.prefix_hits(rec.requests, page_tokens),
        "client_lag": health.client_lag(facts["client"], gap_p50_s),
        "other_cpu": health.other_cpu(rec.scrapes, *edges),
        "enough_requests": audits.enough_requests(rec.requests, facts["c"], *edges),
        "steady": audits.steady(rec.arrived, *edges, facts.get("shape")),
        **recorded.check(rec, limit),
    }


def derive(
    folder: Path,
    *,
    page_tokens: int | None = None,
    targets: dict[str, float] | None = None,
) -> dict:
    """Status, metrics and checks of a recorded point; also written to its ``point.json``.

    Parameters
    ----------
    folder
        Folder that `kvtop_lib.replay.run_point` has written.
    page_tokens
        Page of the server's prefix cache, for the prefix check; by default the one that the
        records name.
    targets
        Latency limits in seconds for goodput (``ttft_s``, ``tpot_s``, ``e2e_s``).

    Returns
    -------
    dict
        The line for ``results.jsonl``. Only a point with status ``ok`` carries metrics; all
        carry counts, checks and client health.
    """
    rec = Recording.read(Path(folder))
    checks = check(rec, page_tokens) if len(rec.requests) else {}
    status, reason = _status(rec, checks)
    point = {k: rec.facts.get(k) for k in LABELS} | {
        "status": status,
        "reason": reason,
        "started_utc": rec.facts["started_utc"],
        "shape": rec.facts.get("shape"),
        "counts": _counts(rec.window),
        "aborted_on_purpose": len(rec.window) - len(rec.judged),
        "counts_all": _counts(rec.requests),
        "token_counts": (counts := kind(rec.requests)),
        **(available(metrics(rec, targets), counts) if status == "ok" else {}),
        "audits": checks,
        "client": rec.facts["client"],
        "sessions": rec.facts["sessions"],
    }
    write_json(Path(folder) / "point.json", point)
    return point


def summary(point: dict) -> str:
    """A derived point in one line, for people."""
    head = f"{point['load']}: {point['status']}"
    if point["status"] != "ok":
        return f"{head}: {point['reason']}"
    accept_len = point.get("accept_len")
    accept = f", acceptance length {accept_len:.2f}" if accept_len else ""
    tpot_s = point.get("tpot_s", {}).get("p50")  # None where every answer came at once
    tpot = "TPOT -" if tpot_s is None else f"TPOT p50 {1e3 * tpot_s:.1f} ms"
    failed = sum(point["counts"].values()) - point["counts"]["ok"]
    purpose = point["aborted_on_purpose"]
    drawn = f", {purpose} drawn to be aborted" if purpose else ""
    if (counts := point["token_counts"]) != "chunk":
        ends = f"{point['counts']['ok']} requests ok, {failed} not"
        return f"{head}, TTFT p50 {point['ttft_s']['p50']:.3f} s, {ends}; {REMAIN[counts]}"
    return (
        f"{head}, {point['output_tok_s']:.1f} tok/s, TTFT p50 {point['ttft_s']['p50']:.3f} s, "
        f"{tpot}{accept}, "
        f"{point['counts']['ok']} requests ok, {failed} not{drawn}"
    )


def _counts(requests: pd.DataFrame) -> dict[str, int]:
    found = requests["status"].value_counts()
    return {s: int(found.get(s, 0)) for s in REQUEST_STATUSES}


def _status(rec: Recording, checks: dict[str, dict]) -> tuple[str, str]:
    outcome, reason = rec.facts["outcome"], rec.facts["reason"]
    if outcome in ("failed", "aborted"):
        return outcome, reason
    if outcome == "exhausted":
        return "invalid", reason
    if not (rec.judged["status"] == "ok").any():
        errors = rec.requests["error"].dropna()
        last = f"; the last error: {errors.iloc[-1]}" if len(errors) else ""
        return "failed", f"no request that was sent in the window ended ok{last}"
    reasons = [a["reason"] for a in checks.values() if a["ok"] is False]
    return ("invalid", "; ".join(reasons)) if reasons else ("ok", "")
