"""Where outputs part, on cases written by hand."""

import pytest

from kvtop_lib.engine.lossless import Output, compare, from_json, to_json
from kvtop_lib.terms import KvtopError


def outputs(*rows):
    return [Output(tuple(row), "", "stop") for row in rows]


def test_equal_outputs_are_lossless():
    a = outputs([1, 2, 3], [4])
    result = compare(a, outputs([1, 2, 3], [4]))
    assert result.lossless
    assert (result.prompts, result.equal, result.tokens) == (2, 2, 4)


def test_the_first_divergence_is_named():
    result = compare(outputs([1, 2, 3], [4, 5], [6]), outputs([1, 9, 8], [4, 5], [6, 7]))
    assert not result.lossless
    assert result.equal == 1
    first, second = result.divergences
    assert (first.prompt, first.position_tokens, first.a, first.b) == (0, 1, 2, 9)
    assert (second.prompt, second.position_tokens, second.a, second.b) == (2, 1, None, 7)


def test_nothing_compared_is_not_lossless():
    assert not compare([], []).lossless


def test_different_prompts_are_refused():
    with pytest.raises(KvtopError, match="2 and 1 outputs cannot be compared"):
        compare(outputs([1], [2]), outputs([1]))


def test_json_round_trip_and_known_hash():
    a = [Output((1, 2), "hi", "length")]
    data = to_json(a)
    # sha256 of the text "[1, 2]"
    assert data[0]["sha256"].startswith("3a316d6d3226f84c")
    assert from_json(data) == a
