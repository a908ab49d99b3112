"""A block: one server lifetime of one arm, in which each of its points is measured once."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd

from kvtop_lib.engine import SERVED_NAME, Server, deployment
from kvtop_lib.engine.iterations_stream import cut
from kvtop_lib.metrics import derive
from kvtop_lib.metrics.audits import PAGE_TOKENS
from kvtop_lib.pace import start_s
from kvtop_lib.params import load_arm, load_model, load_profile, load_workload
from kvtop_lib.params.shape import Load, load_name
from kvtop_lib.provenance import booted_utc, git, machine, machine_state
from kvtop_lib.replay import Plan, SessionPool, run_point
from kvtop_lib.replay.source import about, workload_trace
from kvtop_lib.store import Run, read_json, write_json
from kvtop_lib.terms import SCHEMA, KvtopError


class Block:
    """What a block measures and where it goes.

    Sessions are drawn from the trace by the profile's seed and the block's number, never by the
    arm: every arm of a block sees the same prompts at a load, and no prompt twice.

    Parameters
    ----------
    run : run folder.
    profile, arm : names of parameter files.
    block : number, from 1.
    key : content key that the lines of results.jsonl carry, None without one.
    progress : as `kvtop_lib.replay.run_point`.
    """

    def __init__(
        self,
        run: Path | str,
        profile: str,
        arm: str,
        block: int,
        key: str | None = None,
        progress: str = "auto",
    ) -> None:
        self.records, self.profile = Run(Path(run)), load_profile(profile)
        self.arm, self.model = load_arm(arm), load_model(self.profile.model)
        self.workload = load_workload(self.profile.workload)
        self.number, self.key, self._progress = block, key or None, progress
        self.seed = self.profile.seed + block - 1
        self._page_tokens = PAGE_TOKENS  # until the server has said
        self.plan = Plan.of(self.profile, self.workload)
        if not self.arm.lossless:  # tokens that are not the model's must not decide the length
            self.plan = replace(self.plan, output="recorded")
        trace = workload_trace(self.workload, self.model.path, self.seed)
        self._about = about(trace)
        longest = max(self._plan(load).w1_s for load in self.profile.loads)
        self.pool = SessionPool(trace.sessions, self.profile.loads, self.seed, until_s=longest)

    @property
    def folder(self) -> Path:
        """Folder of this block's records."""
        return self.records.block_dir(self.arm.id, self.number)

    @property
    def loads(self) -> list[Load]:
        """Loads of the arm, in the order of measurement."""
        return self.profile.loads_of(self.arm.id)

    def _plan(self, load: Load) -> Plan:
        """The plan with the load's own window."""
        return replace(self.plan, window_s=self.profile.window_of(load))

    @property
    def _launches(self) -> int:
        return len(list(self.folder.glob("machine*.json")))

    def launch(self) -> Server:
        """Start the arm's server and record its deployment and the state of the machine.

        A block that was interrupted goes on in another launch, whose files stand in ``launch<n>``.

        Raises
        ------
        KvtopError
            As `kvtop_lib.engine.Server.launch`.
        """
        number = self._launches + 1
        folder = self.folder if number == 1 else self.folder / f"launch{number}"
        state = {"launch": number, "before": machine_state()}
        expected_s = start_s(self.records.path, self.arm.id)
        server = Server.launch(self.model, self.arm, folder, expected_s=expected_s)
        record = deployment(server, self.model, self.arm)
        self._page_tokens = record.get("resolved", {}).get("page_size") or PAGE_TOKENS
        where = {"machine": machine(), "booted_utc": booted_utc()}
        write_json(folder / "deployment.json", record | where)
        write_json(self._machine(number), state)
        return server

    def _machine(self, number: int) -> Path:
        return self.folder / ("machine.json" if number == 1 else f"machine{number}.json")

    def end(self, server: Server) -> None:
        """Stop the server and record the state that the machine is left in."""
        server.stop()
        file = self._machine(max(1, self._launches))
        write_json(file, {**read_json(file), "after": machine_state()})

    def finished(self, load: Load) -> dict[str, Any] | None:
        """The line of a point that this block has measured and that is not asked for again.

        An aborted point is not finished; one that failed is, until ``make retry``.
        """
        name, retry = load_name(load), self.folder / "retry"
        asked = retry.read_text(encoding="utf-8").split() if retry.is_file() else []
        mine = [
            line for line in self.records.lines()
            if (line["arm"], line["block"], line["load"]) == (self.arm.id, self.number, name)
            and line["workload"] == self.workload.id and line.get("key") == self.key
            and self.records.folder(line).is_dir()
        ]  # fmt: skip
        if not mine or mine[-1]["status"] == "aborted":
            return None
        return None if name in asked and mine[-1]["status"] != "ok" else mine[-1]

    def measure(self, server: Server, load: Load) -> dict[str, Any]:
        """Flush the caches, replay the point at a load, and append its line to results.jsonl.

        A point that cannot be measured gets a line with status ``failed`` and no number, and the
        sweep may go on; an interrupted one is recorded as ``aborted`` before the interrupt is
        passed on. A point that is `finished` is not measured again.
        """
        if line := self.finished(load):
            return line
        labels = self._labels(load)
        place = [labels[k] for k in ("arm", "block", "workload", "load", "attempt")]
        folder = self.records.point_dir(*place)
        try:
            server.flush_cache()
            run_point(
                server.url, SERVED_NAME, self.pool.slice(load), load, self._plan(load), self.seed,
                folder,
                labels=labels | {
                    "page_tokens": self._page_tokens, "trace": self._about,
                    "widths": self.arm.draft.widths,
                },
                progress=self._progress,
            )  # fmt: skip
            point = self._derive(server, folder)
        except KvtopError as e:
            point = self._failed(labels, str(e), folder)
        except KeyboardInterrupt:
            if (folder / "recording.json").is_file():
                self.records.append_result(self._derive(server, folder))
            raise
        self.records.append_result(point)
        return point

    def _derive(self, server: Server, folder: Path) -> dict[str, Any]:
        if server.iterations_file is not None:
            cut(server.iterations_file, folder, alive=server.alive)
        return derive(folder, targets=self.profile.targets)

    def _labels(self, load: Load) -> dict[str, Any]:
        where = (self.arm.id, self.number, self.workload.id, load_name(load))
        attempt = self.records.next_attempt(*where)
        names = ("arm", "block", "workload", "load")
        return {
            "schema": SCHEMA, "run": self.records.name, **dict(zip(names, where, strict=True)),
            "c": load if isinstance(load, int) else None, "rate": getattr(load, "rate", None),
            "attempt": attempt, "seed": self.seed, "key": self.key,
            "commit": git()["commit"],
        }  # fmt: skip

    def _failed(self, labels: dict[str, Any], reason: str, folder: Path) -> dict[str, Any]:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        point = {**labels, "status": "failed", "reason": reason, "started_utc": now}
        write_json(folder / "point.json", point)
        return point

    def points(self) -> pd.DataFrame:
        """This block's lines of results.jsonl, lanes first, then open loads by name."""
        found = self.records.results()
        mine = found[(found["arm"] == self.arm.id) & (found["block"] == self.number)]
        shown = ["load", "status", "reason", "output_tok_s", "ttft_s_p50", "accept_len", "line"]
        return mine.sort_values(["c", "load"]).reindex(columns=shown).reset_index(drop=True)
