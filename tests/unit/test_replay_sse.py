"""The stream parser: cuts between reads change neither text nor order nor counts."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from kvtop_lib.replay.reply import Raw, parse
from kvtop_lib.replay.sse import events, rest


def _cut(data: bytes, cuts: list[int]) -> tuple[list[float], list[bytes]]:
    edges = [0, *sorted({c % (len(data) + 1) for c in cuts}), len(data)]
    pieces = [data[a:b] for a, b in zip(edges, edges[1:], strict=False) if b > a]
    return [float(i) for i in range(len(pieces))], pieces


# no line ends inside a payload: JSON escapes them
payloads = st.lists(st.text(st.characters(exclude_characters="\r\n", codec="utf-8")), max_size=8)


@given(payloads, st.sampled_from(["\n", "\r\n", "\r"]), st.lists(st.integers(0, 10_000)))
def test_events_survive_any_cut(texts, end, cuts):
    lines = [part for t in texts for part in (f"data: {t}", "")]
    data = "".join(line + end for line in lines).encode()
    stamps, pieces = _cut(data, cuts)
    found = list(events(stamps, pieces))
    assert [e.data.decode() for e in found] == texts
    assert [e.recv_s for e in found] == sorted(e.recv_s for e in found)
    assert rest(pieces) == b""


@given(st.lists(st.integers(0, 10_000)))
def test_an_event_carries_the_time_of_the_read_that_completed_its_line(cuts):
    data = "data: eins\n\n: comment\nevent: x\ndata: zwei äöü\n\ndata: unfinished".encode()
    stamps, pieces = _cut(data, cuts)
    ends = [sum(map(len, pieces[: i + 1])) for i in range(len(pieces))]
    expected = []
    for text in ("data: eins\n", "data: zwei äöü\n"):
        stop = data.index(text.encode()) + len(text.encode())
        expected.append(next(t for t, e in zip(stamps, ends, strict=True) if e >= stop))
    found = list(events(stamps, pieces))
    assert [e.recv_s for e in found] == expected
    assert [e.data.decode() for e in found] == ["eins", "zwei äöü"]
    assert rest(pieces) == b"data: unfinished"


def _chunk(text: str, total: int | None, **more) -> bytes:
    body = {"id": "x", "choices": [{"index": 0, "delta": {"content": text}}], **more}
    if total is not None:
        body["usage"] = {"prompt_tokens": 7, "completion_tokens": total}
    return b"data: " + json.dumps(body, ensure_ascii=False).encode() + b"\n\n"


END = b'data: {"id":"x","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"

parts = st.lists(st.tuples(st.text(min_size=1, max_size=6), st.integers(1, 5)), max_size=6)


@given(parts, st.lists(st.integers(0, 10_000)))
def test_text_and_tokens_survive_any_cut(chunks, cuts):
    data, total = b"", 0
    for text, n in chunks:
        total += n
        data += _chunk(text, total)
    stamps, pieces = _cut(data + END + DONE, cuts)
    reply = parse(Raw(sent_s=0.0, stamps=stamps, buffers=pieces))
    assert reply.status == "ok"
    assert reply.text == "".join(t for t, _ in chunks)
    assert reply.output_tokens == total
    assert [n for _, n in reply.chunks] == [
        sum(n for _, n in chunks[: i + 1]) for i in range(len(chunks))
    ]


@given(st.integers(0, 10_000))
def test_a_stream_cut_anywhere_before_its_end_mark_is_truncated(at):
    data = _chunk("a", 1) + _chunk("é", 3) + END + DONE
    at %= len(data) - 1  # the last byte is an empty line's end: without it all is said
    reply = parse(Raw(sent_s=0.0, stamps=[0.0], buffers=[data[:at]]))
    assert reply.status == "truncated"
    assert reply.error.startswith("the stream ended without its ")
    assert reply.output_tokens in (0, 1, 3)
