"""HTTP/1.1 framing: what a server sent is what comes out, wherever the network cut it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtop_lib.replay.http1 import BadAnswer, Framing, take_head

cuts = st.lists(st.integers(0, 10_000), max_size=12)


def pieces(data: bytes, at: list[int]) -> list[bytes]:
    edges = [0, *sorted({c % (len(data) + 1) for c in at}), len(data)]
    return [data[a:b] for a, b in zip(edges, edges[1:], strict=False) if b > a]


def chunked(parts: list[bytes], extension: str = "", trailer: bytes = b"") -> bytes:
    coded = b"".join(f"{len(p):x}{extension}\r\n".encode() + p + b"\r\n" for p in parts)
    return coded + b"0\r\n" + trailer + b"\r\n"


bodies = st.lists(st.binary(min_size=1, max_size=40), max_size=6)


@given(bodies, cuts, st.sampled_from(["", ";name=value", " "]), st.sampled_from([b"", b"A: b\r\n"]))
def test_chunks_survive_any_cut(parts, at, extension, trailer):
    framing, found, ended = Framing(None), [], []
    for piece in pieces(chunked(parts, extension, trailer), at):
        found.append(framing.feed(piece))
        ended.append(framing.ended)
    assert b"".join(found) == b"".join(parts)
    assert ended[-1] and not any(ended[:-1])  # not before the last byte
    assert framing.extra == b""


def test_a_body_that_looks_like_the_end_is_not_the_end():
    framing = Framing(None)
    tricky = b"data: 0\r\n\r\n"
    assert framing.feed(chunked([tricky])[:-5]) == tricky and not framing.ended
    assert framing.feed(b"0\r\n\r\n") == b"" and framing.ended


@pytest.mark.parametrize(
    "data", [b"xyz\r\nabc\r\n", b"3\r\nabcd\r\n", b"-3\r\nabc\r\n", b"\r\n\r\n", b"z" * 5000]
)
def test_broken_chunks_are_refused(data):
    with pytest.raises(BadAnswer):
        Framing(None).feed(data)


@given(st.binary(max_size=60), cuts)
def test_a_counted_body_ends_with_its_last_byte(body, at):
    framing, found = Framing(len(body)), b""
    for piece in pieces(body, at):
        assert not framing.ended
        found += framing.feed(piece)
    assert framing.ended and found == body
    framing.feed(b"more")
    assert framing.extra == b"more"


def test_a_body_without_length_ends_with_the_connection():
    framing = Framing(-1)
    assert framing.feed(b"abc") == b"abc" and not framing.ended


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def test_heads():
    head, rest = take_head(HEAD + b"5\r\n")
    assert (head.status, head.keep_alive, rest) == (200, True, b"5\r\n")
    assert head.framing().length is None
    interim, _ = take_head(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + HEAD)
    assert interim.status == 200
    old, _ = take_head(b"HTTP/1.0 200 OK\r\ncontent-length:  12 \r\n\r\n")
    assert not old.keep_alive and old.framing().length == 12
    closing, _ = take_head(b"HTTP/1.1 200\r\nConnection: Close\r\n\r\n")
    assert not closing.keep_alive and closing.framing().length == -1
    assert take_head(b"HTTP/1.1 204 No Content\r\n\r\n")[0].framing().ended


@given(st.integers(0, len(HEAD) - 1))
def test_a_part_of_a_head_is_no_head(n):
    assert take_head(HEAD[:n]) is None


@pytest.mark.parametrize(
    "data", [b"SSH-2.0-x\r\n", b"HTTP/2 200\r\n\r\n", b"HTTP/1.1 " + b"x" * 70000]
)
def test_what_is_no_http_is_refused(data):
    with pytest.raises(BadAnswer, match="not an HTTP/1.1 answer"):
        take_head(data)


@pytest.mark.parametrize(
    "field",
    [b"Content-Encoding: gzip", b"Content-Length: -1", b"Content-Length: " + b"9" * 5000],
    ids=lambda field: field[:20].decode(),
)
def test_bodies_that_cannot_be_read_are_refused(field):
    head, _ = take_head(b"HTTP/1.1 200 OK\r\n" + field + b"\r\n\r\n")
    with pytest.raises(BadAnswer):
        head.framing()
