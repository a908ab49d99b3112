"""Checks that client and machine did not disturb what was measured.

Each gives what those of `kvtop_lib.metrics.audits` give.
"""

from __future__ import annotations

import math

import pandas as pd

from kvtop_lib.metrics.audits import _audit

LAG_SHARE = 0.5  # event-loop lag p99 / median gap: a chunk is handled before the next one comes
LAG_FLOOR_S = 0.010  # a few time slices of a busy two-core machine; shifts no latency by more
OTHER_SHARE = 0.03  # of the machine's CPU time; an idle two-core machine shows less than 0.01
IDLE_SHARE = 0.5  # with as much left idle, what others take costs the server nothing
SAMPLED_S = 8.0  # from first to last sample; over less, one short pause decides

AUDITS: tuple[tuple[str, str], ...] = (
    (
        "client_lag",
        f"event-loop lag p99 at most {LAG_SHARE:.0%} of the median gap between a stream's "
        f"chunks, or {1e3 * LAG_FLOOR_S:.0f} ms if that is more",
    ),
    (
        "other_cpu",
        f"at most {OTHER_SHARE:.0%} of the machine's CPU time in the window goes to others than "
        "the server and this client (other programs, the system, other guests of a virtual "
        f"machine's host), unless {IDLE_SHARE:.0%} of it stays idle; not asked of a server "
        f"elsewhere, nor where the samples span less than {SAMPLED_S:.0f} s",
    ),
)
"""Checks by name."""


def client_lag(client: dict, chunk_gap_p50_s: float | None) -> dict:
    """The client was not the bottleneck: its loop's lag p99 against a stream's median gap."""
    lag = client.get("loop_lag_p99_s")
    if lag is None or chunk_gap_p50_s is None or math.isinf(chunk_gap_p50_s):
        return _audit(None, None, None, "no gaps between chunks to compare the client's lag with")
    limit = max(LAG_SHARE * chunk_gap_p50_s, LAG_FLOOR_S)
    reason = (
        f"the client woke {1e3 * lag:.1f} ms late (p99), more than the {1e3 * limit:.1f} ms that "
        f"a median gap of {1e3 * chunk_gap_p50_s:.1f} ms between chunks allows; stop other programs"
    )
    return _audit(lag <= limit, lag, [0, limit], reason)


def other_cpu(scrapes: pd.DataFrame, w0_s: float, w1_s: float) -> dict:
    """Share of the machine's CPU time that neither server nor client took.

    A server that computes on all cores loses what others take, and more where it waits for its
    slowest thread; the number that comes out looks like any other. From the first to the last
    sample in the window: (busy time of all cores - CPU time of the server's processes - CPU time
    of this client) / time of all cores.

    Parameters
    ----------
    scrapes
        ``host_cpu_s``, ``host_idle_s``, ``host_steal_s``, ``server_cpu_s``, ``client_cpu_s``
        (`kvtop_lib.replay.machine.COLUMNS`) over ``t_s``.
    w0_s, w1_s
        Edges of the window, in seconds.
    """
    names = ["host_cpu_s", "host_idle_s", "host_steal_s", "server_cpu_s", "client_cpu_s"]
    rows = scrapes.reindex(columns=["t_s", *names]).dropna()
    rows = rows[rows["t_s"].between(w0_s, w1_s)]
    if len(rows) < 2 or rows["t_s"].iloc[-1] - rows["t_s"].iloc[0] < SAMPLED_S:
        return _audit(None, None, None, "no samples of this machine's CPU over enough of a window")
    every, idle, steal, server, client = (rows[names].iloc[-1] - rows[names].iloc[0]).astype(float)
    other = max((every - idle - server - client) / every, 0.0)
    stolen = min(steal / every, other)
    reason = (
        f"{other:.1%} of the machine's CPU time in the window went to others, more than the "
        f"{OTHER_SHARE:.0%} that leave the server its own: {other - stolen:.1%} to other programs "
        f"and the system, {stolen:.1%} to other guests of its host; measure again when it is idle"
    )
    fits = other <= OTHER_SHARE or idle / every >= IDLE_SHARE
    return _audit(bool(fits), other, [0, OTHER_SHARE], reason)
