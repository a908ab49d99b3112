"""What a lossless probe says in one line, on results written by hand."""

from __future__ import annotations

import pytest

from kvtop_lib import probe

EQUAL = {"role": "compared", "prompts": 2, "c": 8, "tokens": 9, "matched": 2, "mismatches": []}
PARTS = {"prompt": 1, "position": 4, "baseline": 7, "arm": 8}


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (EQUAL, "2 prompts, 9 tokens, 8 at a time, all equal the baseline's"),
        (EQUAL | {"role": "reference", "matched": None}, "at a time, stored as the reference"),
        (EQUAL | {"matched": 1, "mismatches": [PARTS]}, "1 DIFFER from the baseline's, the first "),
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
