"""The soak's parts against a server with a script."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from kvtop_lib.bench import soak
from kvtop_lib.terms import KvtopError


class Script(BaseHTTPRequestHandler):
    """Five events per stream; two KV tokens stay until the load was asked for twice."""

    events, ends, status, asked = 5, True, 200, 0

    def log_message(self, *_):
        pass

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(self.status)
        self.end_headers()
        if self.path.startswith("/flush_cache"):
            return
        assert json.loads(body)["stream"]
        lines = [b"data: {}\n\n" for _ in range(self.events)]
        self.wfile.writelines([*lines, b"data: [DONE]\n\n"] if self.ends else lines)

    def do_GET(self):
        cls = type(self)
        cls.asked += 1
        used = 2 if cls.asked < 3 else 0
        load = {"num_running_reqs": 0, "num_waiting_reqs": 0, "num_used_tokens": used}
        body = json.dumps({"loads": [load]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def served():
    script = type("Script", (Script,), {})
    server = ThreadingHTTPServer(("127.0.0.1", 0), script)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", script
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_stream_is_read_to_its_end_or_left(served):
    url, _ = served
    assert soak.stream(url, "text", 5, None) is True
    assert soak.stream(url, "text", 5, 2) is False
    assert soak.stream(url, "text", 5, 50) is True


def test_a_stream_that_breaks_off_is_a_failure(served):
    url, script = served
    script.ends = False
    with pytest.raises(KvtopError, match="ended before its last event"):
        soak.stream(url, "text", 5, None)
    script.status = 503
    with pytest.raises(KvtopError, match="answered 503"):
        soak.stream(url, "text", 5, None)


def test_an_idle_server_gets_time_to_say_so(served, monkeypatch):
    monkeypatch.setattr(soak.time, "sleep", lambda s: None)
    assert soak.leftovers(served[0]) == {}


def test_what_stays_is_named(served):
    url, _ = served
    assert soak.leftovers(url, wait_s=0) == {"num_used_tokens": 2}


def test_the_table_visits_every_width():
    widths = {w for _, w in soak.ARM.draft.table.items()}
    assert widths == set(soak.ARM.draft.widths)
    assert max(soak.ARM.draft.table) < soak.LANES
