"""What a lossless probe says in one line, on results written by hand."""

from __future__ import annotations

import pytest

from kvtop_lib import probe, stats
from kvtop_lib.engine import Output
from kvtop_lib.terms import KvtopError

EQUAL = {"role": "compared", "prompts": 2, "c": 8, "tokens": 9, "matched": 2, "mismatches": []}
PARTS = {"prompt": 1, "position": 4, "baseline": 7, "arm": 8}


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (EQUAL, "2 prompts, 9 tokens, 8 at a time, all equal the baseline's"),
        (EQUAL | {"role": "reference", "matched": None}, "at a time, stored as the reference"),
        (EQUAL | {"matched": 1, "mismatches": [PARTS]}, "1 DIFFER from the baseline's, the first "),
        (
            EQUAL | {"mismatches": [PARTS], "divergence": stats.divergence([5, 5], {1: 4}, [0.02])},
            "50% of the outputs (1% to 99%), 100 per 1000 tokens, in the median at token 4, "
            "where the two tokens are 0.02 nats apart",
        ),
        (probe.EXEMPT, "exempt, acceptance is simulated"),
    ],
)
def test_a_probe_in_one_line(result, said):
    assert said in probe.verdict(result)


def test_a_probe_without_prompts_says_that_nothing_was_probed(tmp_path):
    nobody = "http://127.0.0.1:9"  # asked nothing, so it need not answer
    for arm in ("baseline", "mtp"):
        found = probe.probe(nobody, tmp_path / arm, tmp_path / "baseline", [])
        said = probe.verdict(found)
        assert "nothing was probed (lossless_prompts: 0)" in said
        assert "equal" not in said and "reference" not in said


def outputs(*rows):
    return [Output(tuple(row), "", "stop") for row in rows]


def test_where_outputs_part_the_server_is_asked_how_close_it_was(tmp_path, monkeypatch):
    """Prompt 0 parts at its second token; prompt 2 ends earlier, there is no token to compare."""
    prompts, asked = [[{"content": str(i)}] for i in range(3)], []
    answers = iter([outputs([1, 2, 3], [4], [5, 6]), outputs([1, 9, 3], [4], [5])])
    monkeypatch.setattr(probe, "greedy_outputs", lambda *_, **__: next(answers))
    monkeypatch.setattr(probe, "log_prob_gap", lambda *a: asked.append(a) or -0.5)
    reference = probe.probe("url", tmp_path / "baseline", tmp_path / "baseline", prompts)
    found = probe.probe("url", tmp_path / "arm", tmp_path / "baseline", prompts)
    assert asked == [("url", prompts[0], (1,), 2, 9)]
    assert [m["gap"] for m in found["mismatches"]] == [-0.5, None]
    assert found["divergence"]["diverged"] == 2 and found["divergence"]["gap"]["p50"] == 0.5
    assert "divergence" not in reference

    said = probe.against_itself(found, {"mismatches": [], "prompts": 3})
    assert "2 of 3 outputs differ, 0 of 3 between the baseline and itself" in said
    assert "p = 0.4): no difference of the rates detected" in said


def test_a_server_that_gives_no_log_probabilities_does_not_hide_a_difference(tmp_path, monkeypatch):
    answers = iter([outputs([1]), outputs([2])])
    monkeypatch.setattr(probe, "greedy_outputs", lambda *_, **__: next(answers))

    def refuse(*_):
        raise KvtopError("no")

    monkeypatch.setattr(probe, "log_prob_gap", refuse)
    for arm in ("baseline", "arm"):
        found = probe.probe("url", tmp_path / arm, tmp_path / "baseline", [[{"content": "x"}]])
    assert found["mismatches"][0]["gap"] is None and found["divergence"]["gap"] is None
    assert "nats" not in probe.verdict(found)


def test_an_exempt_arm_is_asked_nothing(tmp_path):
    nobody = "http://127.0.0.1:9"
    found = probe.probe(nobody, tmp_path / "a", tmp_path / "b", [[{"content": "x"}]], False)
    assert (found["role"], found["matched"]) == ("exempt", None)
