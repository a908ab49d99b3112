"""A server in place of SGLang: it answers what `Server` asks, and it has unruly offspring.

``fake_server.py PORT PIDFILE [--die] [--busy N] [--cold N]``: a child that ignores SIGTERM in a
session of its own, and a grandchild whose parent has gone; all write their pids to PIDFILE.
"""

import argparse
import json
import os
import signal
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

parser = argparse.ArgumentParser()
parser.add_argument("port", type=int)
parser.add_argument("pids")
parser.add_argument("--die", action="store_true")
parser.add_argument("--busy", type=int, default=0, help="refusals of /flush_cache")
parser.add_argument("--cold", type=int, default=0, help="answers of /health before it is warm")
args = parser.parse_args()


def note(pid: int) -> None:
    with open(args.pids, "a") as f:
        f.write(f"{pid}\n")


def stubborn() -> None:
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    note(os.getpid())
    time.sleep(120)
    os._exit(0)


note(os.getpid())
if os.fork() == 0:
    stubborn()
if os.fork() == 0:
    if os.fork() == 0:
        stubborn()
    os._exit(0)
os.wait()
if args.die:
    while len(open(args.pids).readlines()) < 3:
        time.sleep(0.01)
    sys.exit("ValueError: the flags do not fit")
refusals = [args.busy]
cold = [args.cold]
early = [0]  # chat requests before the warm-up was over


class Handler(BaseHTTPRequestHandler):
    def reply(self, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        if self.path == "/server_info":
            state = {"max_total_num_tokens": 1234, "api_key": "hidden", "dtype": "float16"}
            self.reply(200, state | ({"early": early[0]} if args.cold else {}))
        elif self.path == "/health" and cold[0] > 0:
            cold[0] -= 1
            self.reply(503, "starting")
        else:
            self.reply(200, {"data": []})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"null")
        if self.path.startswith("/flush_cache?timeout="):
            refusals[0] -= 1
            self.reply(400 if refusals[0] >= 0 else 200, "flushed")
        else:  # the continuation of a prompt is its words' lengths
            early[0] += cold[0] > 0
            ids = [len(w) for w in body["messages"][-1]["content"].split()][: body["max_tokens"]]
            message = {"content": " ".join(map(str, ids))}
            choice = {"message": message, "finish_reason": "stop"}
            if body.get("return_token_ids"):
                choice["response_token_ids"] = ids
            self.reply(200, {"choices": [choice]})

    def log_message(self, *_: object) -> None:
        pass


ThreadingHTTPServer(("127.0.0.1", args.port), Handler).serve_forever()
