"""Small calls to a server: one way to open an address, which no proxy stands in."""

from __future__ import annotations

import socket
import threading

import pytest
from scripted_server import ScriptedServer

from kvtop_lib import replay
from kvtop_lib.engine import client
from kvtop_lib.paths import repo_root
from kvtop_lib.terms import KvtopError
from kvtop_lib.top.source import get
from kvtop_lib.trace.served import served_engine


@pytest.mark.parametrize(
    "ask",
    [
        client.flush,
        replay.flush,
        lambda url: client.call(f"{url}/model_info", timeout_s=30),
        lambda url: get(f"{url}/metrics", 30),
        served_engine,
    ],
)
def test_no_call_goes_through_a_proxy(monkeypatch, ask):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # nobody is there
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with ScriptedServer() as server:
        ask(server.url)


def test_there_is_one_flush_and_one_opener():
    package = repo_root() / "kvtop_lib"
    texts = {f.relative_to(package).as_posix(): f.read_text() for f in package.rglob("*.py")}
    for words in ("build_opener(", "/flush_cache?"):
        assert [name for name, text in texts.items() if words in text] == ["engine/client.py"]
    assert replay.flush is client.flush


@pytest.mark.parametrize("status", [200, 500])
@pytest.mark.parametrize("ask", [client.flush, lambda url: client.call(url, timeout_s=30)])
def test_a_body_that_is_cut_is_told_in_a_sentence(ask, status):
    def answer():
        with server.accept()[0] as asked:
            asked.recv(65536)
            asked.sendall(b"HTTP/1.1 %d X\r\nContent-Length: 50\r\n\r\nno room" % status)

    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        threading.Thread(target=answer).start()
        if status == 200 and ask is client.flush:
            return ask(url)  # its body says nothing
        with pytest.raises(KvtopError, match="no room" if status == 500 else "does not answer"):
            ask(url)
    return None
