"""Readers under hypothesis: what is broken is told with file and line, nothing else comes out."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trace_samples import SAMPLES

from kvtop_lib.terms import KvtopError
from kvtop_lib.trace import load_trace, write_sessions
from kvtop_lib.trace.readers.formats import read_trace

VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5),
    st.lists(st.integers(), max_size=3), st.dictionaries(st.text(max_size=3), st.integers()),
    st.sampled_from([10**5000, -1, 2**64, 1e308, "\ud800", [[]], {"role": "user"}, "gpt"]),
)  # fmt: skip


def outcome(text: str, **options) -> str | None:
    """The sentence of a refusal, checked; None when the file is read."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace"
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        try:
            trace = load_trace(path, **options)
        except KvtopError as error:
            said = str(error)
            assert str(path) in said and "\n" not in said
            return said.replace(str(path), "FILE")
        assert trace.sessions and all(s.turns for s in trace.sessions)
        write_sessions(trace, path.with_name("again"))
        assert load_trace(path.with_name("again")) == trace
        return None


def placed(said: str | None) -> bool:
    """Whether a refusal, if any, names a line, or a fault of the whole file."""
    whole = ("holds no sessions", "is empty")
    return said is None or "FILE, line " in said or any(w in said for w in whole)


@given(st.sampled_from(sorted(SAMPLES)), st.data())
def test_a_changed_character_is_read_or_told_with_its_line(name, data):
    text = SAMPLES[name]
    at = data.draw(st.integers(0, len(text) - 1))
    new = data.draw(st.text(st.characters(codec="utf-8"), max_size=3))
    assert placed(outcome(text[:at] + new + text[at + 1 :]))


@given(st.sampled_from(sorted(SAMPLES)), st.data())
def test_a_cut_file_is_read_or_told_with_its_line(name, data):
    assert placed(outcome(SAMPLES[name][: data.draw(st.integers(0, len(SAMPLES[name])))]))


@given(st.sampled_from(sorted(SAMPLES)), st.data())
def test_a_line_put_in_is_told_or_skipped(name, data):
    lines = SAMPLES[name].splitlines()
    line = data.draw(st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), max_size=9))
    lines.insert(data.draw(st.integers(0, len(lines))), line)
    text = "\n".join(lines)
    assert placed(outcome(text))
    assert placed(outcome(text, skip_bad=True))


def holders(value) -> list:
    """All objects and arrays in a document."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    own = [value] if isinstance(value, dict | list) and value else []
    return own + [h for v in inner for h in holders(v)]


JSON_SAMPLES = sorted(set(SAMPLES) - {"azure", "burstgpt"})
LINES = ("kvtop-sessions", "mooncake", "mooncake extended", "qwen-bailian", "tracelab")


@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=300)
@given(st.sampled_from(JSON_SAMPLES), st.data())
def test_a_value_of_another_kind_is_read_or_told_with_its_line(name, data):
    lines = name in LINES or name == "openai-messages"
    records = SAMPLES[name].splitlines() if lines else [SAMPLES[name]]
    number = data.draw(st.integers(0, len(records) - 1))
    document = json.loads(records[number])
    holder = data.draw(st.sampled_from(holders(document)))
    keys = list(holder) if isinstance(holder, dict) else range(len(holder))
    key = data.draw(st.sampled_from(keys))
    if data.draw(st.booleans()):
        holder[key] = data.draw(VALUES)
    else:
        del holder[key]
    try:
        records[number] = json.dumps(document)
    except ValueError:  # a number too long for this Python to write
        return
    assert placed(outcome("\n".join(records)))
    assert placed(outcome("\n".join(records), skip_bad=True))


BLOCK_ROWS = st.lists(
    st.tuples(
        st.integers(0, 10**6), st.integers(1, 5_000), st.integers(1, 3_000),
        st.lists(st.integers(0, 30), max_size=12),
    ),
    min_size=1, max_size=12,
)  # fmt: skip


@given(BLOCK_ROWS)
def test_mooncake_rows_come_back(rows):
    rows = [(at, n, m, ids[: -(-n // 512)]) for at, n, m, ids in rows]
    keys = ("timestamp", "input_length", "output_length", "hash_ids")
    text = "".join(json.dumps(dict(zip(keys, row, strict=True))) + "\n" for row in rows)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace"
        path.write_text(text, encoding="utf-8")
        turns = [s.turns[0] for s in read_trace(path).sessions]
        assert outcome(text) is None
    zero = min(at for at, *_ in rows)
    assert [(t.prompt_tokens, t.output_tokens, list(t.blocks.ids)) for t in turns] == [
        row[1:] for row in rows
    ]
    for turn, (at, *_) in zip(turns, rows, strict=True):
        assert abs(turn.at_s - (at - zero) / 1e3) < 1e-5
