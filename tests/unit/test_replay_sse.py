"""The stream parser: cuts between reads change neither text nor order nor counts."""

from __future__ import annotations

import hashlib
import json

from hypothesis import given
from hypothesis import strategies as st
from test_replay_http1 import chunked, cuts, pieces

from kvtop_lib.replay.http1 import Framing
from kvtop_lib.replay.reply import Raw, parse
from kvtop_lib.replay.sse import Lines

# no line ends inside a payload: JSON escapes them
payloads = st.lists(st.text(st.characters(exclude_characters="\r\n", codec="utf-8")), max_size=8)


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@given(payloads, st.sampled_from(["\n", "\r\n", "\r"]), cuts)
def test_events_survive_any_cut(texts, end, at):
    lines = [part for t in texts for part in (f"data: {t}", "")]
    data, reader = "".join(line + end for line in lines).encode(), Lines()
    found = [payload for piece in pieces(data, at) for payload in reader.feed(piece)]
    assert [f.decode() for f in found] == texts
    assert reader.rest == b""


@given(cuts)
def test_an_event_belongs_to_the_read_that_completed_its_line(at):
    data = "data: eins\n\n: comment\nevent: x\ndata:zwei äöü\n\ndata: unfinished".encode()
    cut, reader = pieces(data, at), Lines()
    found = [(i, p.decode()) for i, piece in enumerate(cut) for p in reader.feed(piece)]
    ends = [sum(map(len, cut[: i + 1])) for i in range(len(cut))]
    stops = [data.index(s.encode()) + len(s.encode()) for s in ("eins\n", "zwei äöü\n")]
    arrived = [next(i for i, e in enumerate(ends) if e >= stop) for stop in stops]
    assert found == list(zip(arrived, ["eins", "zwei äöü"], strict=True))
    assert reader.rest == b"data: unfinished"


def _event(text: str, total: int | None, **more) -> bytes:
    body = {"id": "x", "choices": [{"index": 0, "delta": {"content": text}}], **more}
    if total is not None:
        body["usage"] = {"prompt_tokens": 7, "completion_tokens": total}
    return b"data: " + json.dumps(body, ensure_ascii=False).encode() + b"\n\n"


END = b'data: {"id":"x","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"
parts = st.lists(st.tuples(st.text(min_size=1, max_size=6), st.integers(1, 5)), max_size=6)


@given(parts, cuts, cuts, st.lists(st.integers(1, 4), max_size=30), st.booleans())
def test_text_tokens_and_times_survive_any_cut(chunks, chunk_cuts, at, digests, framed):
    """HTTP chunks cut anywhere, reads cut anywhere, and reading begun at any time."""
    events, total = [], 0
    for text, n in chunks:
        total += n
        events.append(_event(text, total))
    body = b"".join([*events, END, DONE])
    data = chunked(pieces(body, chunk_cuts)) if framed else body
    whole, raw = pieces(data, at), Raw(sent_s=0.0, framing=Framing(None) if framed else None)
    todo = list(digests)
    for i, piece in enumerate(whole):
        raw.stamps.append(float(i))
        raw.buffers.append(piece)
        if todo:
            raw.digest(todo.pop())
    reply = parse(raw)
    assert (reply.status, reply.error, reply.output_tokens) == ("ok", None, total)
    assert reply.text_sha256 == (_sha("".join(t for t, _ in chunks)) if chunks else None)
    assert list(reply.totals) == [sum(n for _, n in chunks[: i + 1]) for i in range(len(chunks))]
    assert list(reply.times) == sorted(reply.times)
    if not framed:  # an event's time is that of the read with its line end
        ends = [sum(map(len, whole[: i + 1])) for i in range(len(whole))]
        stops = [sum(map(len, events[: i + 1])) - 1 for i in range(len(events))]
        arrived = [next(float(i) for i, e in enumerate(ends) if e >= stop) for stop in stops]
        assert list(reply.times) == arrived


@given(st.integers(0, 10_000))
def test_a_stream_cut_anywhere_before_its_end_mark_is_truncated(at):
    data = _event("a", 1) + _event("é", 3) + END + DONE
    at %= len(data) - 1  # the last byte is an empty line's end: without it all is said
    reply = parse(Raw(sent_s=0.0, stamps=[0.0], buffers=[data[:at]]))
    assert reply.status == "truncated"
    assert reply.error.startswith("the stream ended without its ")
    assert reply.output_tokens in (0, 1, 3)
