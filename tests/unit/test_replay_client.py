"""The client against servers whose every byte is written here."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import ssl
import subprocess

import pytest
from need import need

from kvtop_lib.replay import backlog, connection, loop
from kvtop_lib.replay.client import Client
from kvtop_lib.replay.http1 import Framing
from kvtop_lib.replay.limits import raise_open_files
from kvtop_lib.replay.reply import Raw, parse
from kvtop_lib.replay.request import send
from kvtop_lib.terms import KvtopError

OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
SAY = b'data: {"choices":[{"delta":{"content":"a"}}],"usage":{"completion_tokens":1}}\n\n'
STOP = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


END = b"0\r\n\r\n"
GOOD = OK + chunk(SAY) + chunk(STOP) + END


class Scripted:
    """Plays one script per request: bytes to write, or what to do with the connection."""

    def __init__(self, *scripts: list) -> None:
        self.scripts, self.requests, self.connections = list(scripts), [], 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
                self.requests.append((head, await reader.readexactly(length)))
                for step in self.scripts.pop(0) if self.scripts else [GOOD]:
                    if step == "abort":
                        return writer.transport.abort()
                    if step == "close":
                        return writer.close()
                    if step == "hang":
                        await asyncio.sleep(3600)
                    else:
                        writer.write(step)
                        await writer.drain()
                        await asyncio.sleep(0.01)  # so that reads are apart


def played(*scripts, requests: int = 1, after=None, timeout_s: float = 20.0, **more):
    """Replies and raws of requests that follow each other, the server, the client's facts."""
    server, found = Scripted(*scripts), []

    async def main() -> dict:
        tls = more.pop("tls", None)
        listening = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=tls)
        port = listening.sockets[0].getsockname()[1]
        url = f"{'https' if tls else 'http'}://{'localhost' if tls else '127.0.0.1'}:{port}/v1"
        async with Client(timeout_s, **more) as client:
            for i in range(requests):
                raw = Raw()
                await send(client, url, b"{}", raw)
                found.append((parse(raw), raw))
                if after:
                    await after(i, server)
            facts = client.facts()
        listening.close()
        return facts

    return found, server, loop.run(main())


def test_one_connection_serves_many_requests():
    found, server, facts = played(requests=5)
    assert [reply.status for reply, _ in found] == ["ok"] * 5
    assert [raw.reused for _, raw in found] == [False, *[True] * 4]
    assert server.connections == facts["connections_opened"] == 1
    head, data = server.requests[0]
    assert head.startswith(b"POST /v1 HTTP/1.1\r\nHost: 127.0.0.1:") and data == b"{}"
    for reply, raw in found:
        assert raw.sent_s <= raw.first_byte_s <= reply.first_token_s <= raw.end_s


@pytest.mark.parametrize("size", [1, 2, 3, 5, 16])
def test_an_answer_in_small_pieces_is_the_same_answer(size):
    steps = [GOOD[i : i + size] for i in range(0, len(GOOD), size)]
    (first, second), server, _ = played(steps, requests=2)
    assert (first[0].status, first[0].output_tokens) == ("ok", 1)
    assert second[0].status == "ok" and second[1].reused and server.connections == 1


@pytest.mark.parametrize("trailer", [b"", b"A: b\r\n"])
@pytest.mark.parametrize("held_back", range(1, 7))
def test_bytes_behind_the_end_do_not_hide_it(trailer, held_back):
    whole = OK + chunk(SAY) + chunk(STOP) + b"0\r\n" + trailer + b"\r\n"
    cut = len(whole) - held_back  # the server goes on sending and keeps the connection open
    steps = [whole[:cut], whole[cut:] + b"HTTP/1.1 200 OK\r\n", "hang"]
    (first, second), server, _ = played(steps, requests=2, timeout_s=5.0)
    assert (first[0].output_tokens, first[1].failure) == (1, None)
    assert not second[1].reused and server.connections == 2  # it is out of step: not used again


def test_other_framings():
    body = SAY + STOP
    counted = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    closing = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + body
    found, server, _ = played([counted], [closing, "close"], requests=3)
    assert [reply.status for reply, _ in found] == ["ok"] * 3
    assert [raw.reused for _, raw in found] == [False, True, False]
    assert server.connections == 2


def test_a_reused_connection_found_closed_is_tried_once_more_and_it_is_said():
    async def wait(i, server):
        await asyncio.sleep(0.05)

    # the server takes the second request and closes without a byte, as when it had idled
    found, server, facts = played([GOOD], ["abort"], requests=2, after=wait)
    assert [reply.status for reply, _ in found] == ["ok", "ok"]
    assert [raw.resent for _, raw in found] == [0, 1] and facts["requests_resent"] == 1
    assert server.connections == 2 and len(server.requests) == 3


def test_an_idle_connection_that_closes_is_not_used_again():
    async def wait(i, server):
        await asyncio.sleep(0.1)

    found, server, facts = played([GOOD, "close"], requests=2, after=wait)
    assert [reply.status for reply, _ in found] == ["ok", "ok"]
    assert facts["requests_resent"] == 0 and server.connections == 2


def test_a_fresh_connection_that_is_lost_is_a_failure_not_a_retry():
    [(reply, raw)], server, _ = played(["abort"])
    assert (reply.status, reply.failure) == ("http_error", "lost") and raw.resent == 0
    assert "before the answer" in reply.error and len(server.requests) == 1


def test_a_reused_connection_that_dies_after_a_byte_is_not_tried_again():
    found, server, _ = played([GOOD], [OK[:20], "abort"], requests=2)
    assert found[1][0].failure == "lost" and len(server.requests) == 2


@pytest.mark.parametrize("end", ["abort", "close"])
def test_a_cut_stream_keeps_what_arrived(end):
    [(reply, _)], _, _ = played([OK, chunk(SAY), chunk(SAY)[:9], end])
    assert (reply.status, reply.failure, reply.output_tokens) == ("truncated", "cut", 1)


def test_what_came_before_broken_framing_is_kept():
    [(reply, _)], _, _ = played([OK, chunk(SAY), b"zz\r\n\r\n", "hang"], timeout_s=3.0)
    assert (reply.status, reply.failure, reply.output_tokens) == ("stream_error", "bad_chunk", 1)


@pytest.mark.parametrize("end", ["close", "abort", "hang"])
@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (b"zz\r\n", "a chunk's size is b'zz'"),
        (b"zz\r\ndata: x\n\n\r\n", "a chunk's size is b'zz'"),
        (b"-3\r\n", "a chunk's size is b'-3'"),
        (b"\r\n", "a chunk's size is b''"),
        (b"3\r\nabcdef\r\n", "a chunk is longer than it says"),
        (b"f" * 5000, "a chunk has no size"),
    ],
)
def test_broken_framing_is_no_cut_however_the_connection_ends(broken, said, end):
    [(reply, _)], _, _ = played([OK, chunk(SAY), broken, end], timeout_s=0.5)
    assert (reply.status, reply.failure, reply.output_tokens) == ("stream_error", "bad_chunk", 1)
    assert reply.error == said


@pytest.mark.parametrize("begun", [b"5", b"a;x=", b"5\r\nda"])
def test_a_chunk_that_only_began_is_a_cut(begun):
    [(reply, _)], _, _ = played([OK, chunk(SAY), begun, "close"])
    assert (reply.status, reply.failure, reply.output_tokens) == ("truncated", "cut", 1)


def test_what_broke_behind_the_last_event_changes_nothing():
    [(reply, _)], _, _ = played([OK, chunk(SAY), chunk(STOP), b"zz\r\n", "close"])
    assert (reply.status, reply.failure) == ("ok", None)


def test_a_clean_end_without_the_last_events():
    [(reply, _)], _, _ = played([OK, chunk(SAY), END])
    assert (reply.status, reply.failure) == ("truncated", "no_final_chunk")


def test_silence_before_and_inside_an_answer():
    found, _, _ = played(["hang"], [OK, chunk(SAY), "hang"], requests=2, timeout_s=0.5)
    assert [(r.status, r.failure) for r, _ in found] == [
        ("timeout", "no_answer"),
        ("timeout", "stall"),
    ]
    assert found[1][0].output_tokens == 1


@pytest.mark.parametrize(
    ("answer", "status", "failure"),
    [
        (b"HTTP/1.1 404 No\r\nContent-Length: 4\r\n\r\ngone", "http_error", "http_4xx"),
        (b"HTTP/1.1 503 No\r\nContent-Length: 4\r\n\r\nbusy", "http_error", "http_5xx"),
        (b"HTTP/1.1 307 No\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n", "http_error", "http_3xx"),
        (b"SSH-2.0-OpenSSH\r\n", "stream_error", "bad_answer"),
        (OK + b"zz\r\n", "stream_error", "bad_chunk"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", "stream_error", "not_a_stream"),
    ],
)
def test_answers_that_are_no_stream(answer, status, failure):
    [(reply, raw)], _, _ = played([answer, "hang"], timeout_s=3.0)
    assert (reply.status, reply.failure) == (status, failure)
    assert reply.error


def test_what_a_server_says_of_an_error_is_one_line():
    said = b"HTTP/1.1 500 No\r\nContent-Length: 6\r\n\r\na\nb\r\n\xff"
    event = b'data: {"error":{"message":"out\\nof  memory\\n"}}\n\n'
    found, _, _ = played([said], [OK, chunk(event), END], requests=2)
    assert [reply.error for reply, _ in found] == ["HTTP 500: a b \ufffd", "out of memory"]


def test_an_error_that_does_not_end_fails_its_request_and_is_not_kept(monkeypatch):
    monkeypatch.setattr(connection, "ERROR_LIMIT", 1000)
    head = b"HTTP/1.1 500 No\r\nTransfer-Encoding: chunked\r\n\r\n"
    endless = [head, *[chunk(b"x" * 300)] * 100]
    [(reply, raw)], _, _ = played(endless, timeout_s=600.0)
    assert (reply.status, reply.failure) == ("http_error", "http_5xx")
    assert reply.error == "HTTP 500: its text has not ended after 1000 bytes"
    assert 1000 < len(b"".join(raw.buffers)) < 30_000


def test_nobody_listens():
    async def main() -> Raw:
        server = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        raw = Raw()
        async with Client(5.0) as client:
            await send(client, f"http://127.0.0.1:{port}/", b"{}", raw)
        return raw

    reply = parse(loop.run(main()))
    assert (reply.status, reply.failure) == ("http_error", "refused")
    assert "no connection to 127.0.0.1" in reply.error


def test_a_cancelled_request_closes_its_connection_and_keeps_what_came():
    async def main() -> tuple[Raw, int]:
        server = Scripted([OK, chunk(SAY), "hang"])
        listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/"
        raw, again = Raw(), Raw()
        async with Client(20.0) as client:
            task = asyncio.create_task(send(client, url, b"{}", raw))
            while not raw.has_body:
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await send(client, url, b"{}", again)
        listening.close()
        assert parse(again).status == "ok" and not again.reused
        return raw

    reply = parse(loop.run(main()))
    assert (reply.status, reply.output_tokens) == ("cancelled", 1)


def test_bytes_are_read_while_a_stream_runs_and_do_not_pile_up():
    many = 200
    events = [
        chunk(SAY.replace(b'tokens":1', b'tokens":%d' % (i + 1))) for i in range(many)
    ]  # fmt: skip
    steps = [OK, *(b"".join(events[i : i + 10]) for i in range(0, many, 10)), chunk(STOP) + END]
    [(reply, raw)], _, facts = played(steps, digest_s=0.01)
    assert list(reply.totals) == list(range(1, many + 1))
    assert 0 < facts["raw_peak_bytes"] < sum(map(len, steps)) / 2
    held = reply.times.itemsize * len(reply.times) + reply.totals.itemsize * len(reply.totals)
    assert held <= 100 * many and not raw.buffers and not raw.stamps


def _waiting(n: int) -> Raw:
    raw = Raw(sent_s=0.0, framing=Framing(None))
    for i in range(n):
        raw.stamps.append(float(i))
        raw.buffers.append(chunk(SAY))
    return raw


def test_little_is_left_for_later_unless_much_waits_in_total(monkeypatch):
    few, many = _waiting(backlog.WORTH_BUFFERS - 1), _waiting(500)
    waiting = backlog.Backlog({id(few): few, id(many): many})
    size = sum(map(len, few.buffers + many.buffers))
    asyncio.run(waiting.read())
    assert len(few.buffers) == backlog.WORTH_BUFFERS - 1 and not many.buffers
    assert waiting.peak_bytes == size and waiting.tokens == 1
    monkeypatch.setattr(backlog, "RAW_LIMIT", sum(map(len, few.buffers)))
    asyncio.run(waiting.read())
    assert not few.buffers


def test_broken_framing_does_not_stop_the_reading_of_others():
    bad, good = _waiting(20), _waiting(20)
    bad.buffers[3] = b"zz\r\n"
    waiting = backlog.Backlog({id(bad): bad, id(good): good})
    asyncio.run(waiting.read())
    assert not good.buffers and parse(bad).failure == "bad_chunk"


def test_https_and_a_certificate_that_nobody_signed(tmp_path, monkeypatch):
    need(shutil.which("openssl"), "openssl makes the certificate of this test")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
         "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", cert],
        check=True, capture_output=True,
    )  # fmt: skip
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(cert, key)
    [(reply, _)], _, _ = played(tls=tls)
    assert (reply.status, reply.failure) == ("http_error", "no_connection")
    assert "certificate" in reply.error.lower()
    monkeypatch.setenv("SSL_CERT_FILE", str(cert))
    found, server, _ = played(tls=tls, requests=2)
    assert [reply.status for reply, _ in found] == ["ok", "ok"] and server.connections <= 2


def test_a_limit_of_open_files_that_is_too_low_is_said(monkeypatch):
    import resource

    monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, 4096))
    raised = []
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: raised.append(limits))
    assert raise_open_files(2000) == 4096 and raised == [(4096, 4096)]
    with pytest.raises(KvtopError, match="5000 streams need 5128 open files .* allows 4096"):
        raise_open_files(5000)
