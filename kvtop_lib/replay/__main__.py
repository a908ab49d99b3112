"""``kvtop replay``, ``python -m kvtop_lib.replay``: one point from the command line."""

from __future__ import annotations

import contextlib
import signal
import sys

try:  # these take seconds, in which Ctrl-C may come
    from kvtop_lib.interrupts import interrupted_by
    from kvtop_lib.metrics import derive, summary
    from kvtop_lib.params.shape import load_name
    from kvtop_lib.replay import SessionPool, flush, options, run_point
    from kvtop_lib.replay.point import check_folder
    from kvtop_lib.replay.source import about, workload_trace
    from kvtop_lib.terms import KvtopError
    from kvtop_lib.trace.served import served_tokenizer
except KeyboardInterrupt:
    print("interrupted before anything was sent", file=sys.stderr)
    raise SystemExit(130) from None


def main(argv: list[str] | None = None) -> int:
    """Replay one point; 0 when its status is ``ok``, 1 otherwise.

    After Ctrl-C, or SIGTERM, what was recorded is kept, and the answer is 130, or 143.
    """
    with interrupted_by(signal.SIGTERM) as came:
        code = _replay(argv)
    return 143 if code == 130 and came else code


def _replay(argv: list[str] | None) -> int:
    a, load, workload, plan = options.read(argv)
    try:
        check_folder(a.out)
        tokenizer = a.tokenizer
        if tokenizer is None:
            with contextlib.suppress(KvtopError):  # nobody answers: told after the trace's faults
                tokenizer = served_tokenizer(a.url)
        trace = workload_trace(workload, tokenizer, a.seed, skip_bad=a.skip_bad)
        pool = SessionPool(trace.sessions, [load], a.seed, until_s=plan.w1_s)
        if not a.no_flush:
            flush(a.url)
        labels = {
            "run": a.out.name, "arm": a.model, "block": 1, "attempt": 1, "workload": trace.name,
            "trace": about(trace),
        }  # fmt: skip
        code = 0
        try:
            run_point(
                a.url, a.model, pool.slice(load), load, plan, a.seed, a.out, labels=labels,
                api=a.api, processes=a.processes,
            )  # fmt: skip
        except KeyboardInterrupt:
            code = 130
            if not (a.out / "recording.json").is_file():
                print(f"{load_name(load)}: interrupted before anything was sent", file=sys.stderr)
                return code
        point = derive(a.out)
    except KeyboardInterrupt:
        kept = (a.out / "recording.json").is_file()
        said = f"; the records are in {a.out}" if kept else " before anything was sent"
        print(f"interrupted{said}", file=sys.stderr)
        return 130
    except (KvtopError, OSError) as e:
        print(f"error: {e}", file=sys.stderr)
        return 1
    print(summary(point))
    return code or int(point["status"] != "ok")


if __name__ == "__main__":
    raise SystemExit(main())
