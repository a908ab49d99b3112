"""Run folders: manifest, raw records of points, and ``results.jsonl``.

Layout: ``<run>/manifest.json``, ``<run>/results.jsonl``, ``<run>/<arm>/b<k>/deployment.json``,
``<run>/<arm>/b<k>/<workload>/<load>/`` with ``requests.parquet``, ``chunks.parquet``,
``scrapes.parquet``, ``recording.json`` (raw facts) and ``point.json`` (derived from them). A
retry has a folder of its own (``c8.a2``); ``results.jsonl`` is append-only and the last attempt
counts. JSON has no infinity: a censored percentile is written ``"inf"`` and read back as one.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvtop_lib.terms import POINT_STATUSES, KvtopError

if TYPE_CHECKING:  # pandas takes most of a second, a step that finds nothing to do needs none
    import pandas as pd

IDENTITY = ("arm", "block", "workload", "load")
METRIC_KEYS = frozenset(
    "output_tok_s request_tok_s decode_tok_s ttft_s tpot_s itl_s e2e_s kv_use goodput active_mean "
    "queued_mean in_flight_mean decoding_mean accept_len accept_rate iteration_s "
    "ttft_intended_s e2e_intended_s send_delay_s asked_rate ended_rate".split()
)
"""Keys that only a point with status ``ok`` may carry."""


def jsonable(value: Any) -> Any:
    """Plain JSON value: numpy types unwrapped, NaN as null, infinity as ``"inf"``."""
    if isinstance(value, dict):
        return {str(k): jsonable(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [jsonable(v) for v in value]
    if hasattr(value, "tolist"):  # numpy's arrays and scalars
        return jsonable(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else ("inf" if value > 0 else "-inf")
    return str(value) if isinstance(value, Path) else value


def _infinities(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _infinities(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_infinities(v) for v in value]
    return float(value) if value in ("inf", "-inf") else value


def write_json(path: Path, obj: Any) -> None:
    """Write a JSON file whole or not at all (a reader never sees half of it)."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.write_text(json.dumps(jsonable(obj), indent=1, allow_nan=False) + "\n", encoding="utf-8")
    part.replace(path)


def read_json(path: Path) -> Any:
    """Read a JSON file of a run.

    Raises
    ------
    KvtopError
        When it is missing or not JSON.
    """
    try:
        return _infinities(json.loads(Path(path).read_text(encoding="utf-8")))
    except FileNotFoundError as e:
        raise KvtopError(f"{path} is missing; run the step that writes it") from e
    except ValueError as e:
        raise KvtopError(f"{path} is not JSON ({e}); measure again") from e


def check_result(result: dict) -> None:
    """A status decides which keys may exist: a point that is not ``ok`` carries no metric.

    Raises
    ------
    KvtopError
        When identity or status are missing or unknown, or a failure carries a number.
    """
    needed = [*IDENTITY, "attempt", "status"] + ["c"] * ("c" not in result)  # null: an open load
    if missing := [k for k in needed if result.get(k) is None]:
        raise KvtopError(f"a result line needs {', '.join(missing)}")
    if result["status"] not in POINT_STATUSES:
        raise KvtopError(f"status {result['status']!r} is not one of {', '.join(POINT_STATUSES)}")
    if result["status"] != "ok" and (numbers := sorted(METRIC_KEYS & set(result))):
        raise KvtopError(f"a point that is {result['status']} must not carry {', '.join(numbers)}")


class Run:
    """One run folder.

    Parameters
    ----------
    path
        The folder; made at the first write.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)

    @property
    def name(self) -> str:
        """The run's name: its folder's."""
        return self.path.name

    @property
    def manifest(self) -> dict:
        """``manifest.json``."""
        return read_json(self.path / "manifest.json")

    def block_dir(self, arm: str, block: int) -> Path:
        """Folder of one server lifetime."""
        return self.path / arm / f"b{block}"

    def point_dir(self, arm: str, block: int, workload: str, load: str, attempt: int = 1) -> Path:
        """Folder of one point's records."""
        name = load if attempt == 1 else f"{load}.a{attempt}"
        return self.block_dir(arm, block) / workload / name

    def next_attempt(self, arm: str, block: int, workload: str, load: str) -> int:
        """1 for a new point; one more than the attempts whose folders exist."""
        attempt = 1
        while self.point_dir(arm, block, workload, load, attempt).exists():
            attempt += 1
        return attempt

    def deployment(self, arm: str, block: int) -> dict:
        """``deployment.json`` of a block."""
        return read_json(self.block_dir(arm, block) / "deployment.json")

    def append_result(self, result: dict) -> int:
        """Append one point to ``results.jsonl``; its line number, from 1.

        Raises
        ------
        KvtopError
            As `check_result`.
        """
        check_result(result)
        self.path.mkdir(parents=True, exist_ok=True)
        with open(self.path / "results.jsonl", "a+", encoding="utf-8") as f:
            fcntl.flock(f, fcntl.LOCK_EX)
            f.seek(0)
            text = f.read()
            if text and not text.endswith("\n"):  # a crash tore the last line: keep off it
                f.write("\n")
            line = len(text.splitlines()) + 1
            f.write(json.dumps(jsonable(result), allow_nan=False) + "\n")
        return line

    def lines(self) -> list[dict]:
        """Every line of ``results.jsonl`` with its number under ``line``; none when absent."""
        file = self.path / "results.jsonl"
        text = file.read_text(encoding="utf-8") if file.is_file() else ""
        rows = []
        for number, line in enumerate(text.splitlines(), 1):
            try:
                row = {**_infinities(json.loads(line)), "line": number}
            except (ValueError, TypeError) as e:
                raise KvtopError(
                    f"{file}, line {number}: not a result ({e}); remove that line alone"
                ) from e
            if missing := [k for k in (*IDENTITY, "c", "status") if k not in row]:
                raise KvtopError(
                    f"{file}, line {number}: no {', '.join(missing)}; remove that line alone"
                )
            rows.append(row)
        return rows

    def results(self) -> pd.DataFrame:
        """Last attempt of every point, sorted by arm, workload, lanes and block.

        Points of open loads have no ``c`` and come after the others, by name.

        Nested keys are joined by an underscore (``ttft_s_p50``, ``counts_ok``,
        ``audits_tokens_ok``); ``line`` is the line in ``results.jsonl``. Lines whose ``key`` is
        no longer the arm's (``<run>/keys/<arm>.key``) are superseded and left out.
        """
        import pandas as pd

        current = [row for row in self.lines() if not self._superseded(row)]
        last = {tuple(row[k] for k in IDENTITY): row for row in current}
        if not last:
            return pd.DataFrame(columns=[*IDENTITY, "c", "attempt", "status", "reason", "line"])
        frame = pd.json_normalize(list(last.values()), sep="_")
        return frame.sort_values(["arm", "workload", "c", "load", "block"], ignore_index=True)

    def _superseded(self, row: dict) -> bool:
        file = self.path / "keys" / f"{row['arm']}.key"
        return file.is_file() and row.get("key") not in (None, file.read_text().strip())

    def folder(self, row: Any) -> Path:
        """Folder of the point of a results row (a mapping or a named tuple)."""
        row = row._asdict() if hasattr(row, "_asdict") else row
        arm, block, workload, load = (row[k] for k in IDENTITY)
        return self.point_dir(arm, int(block), workload, load, int(row["attempt"]))

    def requests(self, row: Any) -> pd.DataFrame:
        """``requests.parquet`` of a results row."""
        import pandas as pd

        return pd.read_parquet(self.folder(row) / "requests.parquet")
