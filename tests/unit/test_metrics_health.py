"""Whether client and machine disturbed a point: lag, and CPU time that others took."""

import pandas as pd
import pytest

from kvtop_lib.metrics import health


@pytest.mark.parametrize(
    ("lag", "gap", "ok"),
    [
        (0.049, 0.100, True),
        (0.051, 0.100, False),
        (0.009, 0.001, True),  # a time slice is no bottleneck
        (0.011, 0.001, False),
        (None, 0.1, None),
        (0.001, None, None),
    ],
)
def test_client_lag_is_judged_by_the_gap_between_chunks(lag, gap, ok):
    assert health.client_lag({"loop_lag_p99_s": lag}, gap)["ok"] is ok


def scrapes(server: float, client: float, idle: float, seconds: int = 20) -> pd.DataFrame:
    """One sample a second of four cores; CPU seconds taken in each second."""
    return pd.DataFrame(
        {
            "t_s": 100.0 + j, "host_cpu_s": 1e6 + 4.0 * j, "host_idle_s": 5e5 + idle * j,
            "host_steal_s": 9e3 + 0.04 * j, "server_cpu_s": 70 + server * j,
            "client_cpu_s": 3 + client * j,
        }
        for j in range(seconds)
    )  # fmt: skip


@pytest.mark.parametrize(
    ("server", "client", "idle", "other", "ok"),
    [
        (3.0, 0.1, 0.8, 0.025, True),
        (3.0, 0.1, 0.7, 0.05, False),
        (1.0, 0.1, 1.9, 0.25, False),
        (1.0, 0.1, 2.0, 0.225, True),  # half of the machine is left
        (3.0, 0.1, 1.0, 0.0, True),  # clocks of unlike grain: never below nothing
    ],
)
def test_what_others_take_is_busy_time_without_server_and_client(server, client, idle, other, ok):
    found = health.other_cpu(scrapes(server, client, idle), 100.0, 119.0)
    assert found["ok"] is ok and found["value"] == pytest.approx(other)
    assert ok or f"{other:.1%} of the machine's CPU time" in found["reason"]
    assert ok or f"{other - 0.01:.1%} to other programs and the system, 1.0%" in found["reason"]


def test_only_samples_in_the_window_count():
    rows = scrapes(3.0, 0.1, 0.8, 30)
    rows.loc[rows["t_s"] > 120, "host_idle_s"] = rows["host_idle_s"].iloc[20]
    assert health.other_cpu(rows, 100.0, 120.0)["value"] == pytest.approx(0.025)
    assert health.other_cpu(rows, 100.0, 129.0)["ok"] is False


@pytest.mark.parametrize("missing", ["server_cpu_s", "host_cpu_s", "all", "most"])
def test_a_server_elsewhere_and_a_short_window_are_not_judged(missing):
    rows = scrapes(1.0, 0.1, 0.0)
    rows = {"all": rows.iloc[:0], "most": rows.iloc[:8]}.get(missing, rows)
    if missing in rows:
        rows[missing] = None  # a server elsewhere, or another user's
    assert health.other_cpu(rows, 100.0, 119.0)["ok"] is None
