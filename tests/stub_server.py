"""An HTTP server whose every answer is chosen by the test: failures that a real one rarely has."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from lineup_fast import wire
from tests.scripted_server import reward

Reply = tuple[int, dict[str, str], bytes]


@contextmanager
def answering(answer: Callable[[int, dict[str, Any]], Reply]) -> Iterator[tuple[str, list[Any]]]:
    """An HTTP server that answers with a function of (number of the request, its body)."""
    seen: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            seen.append((time.monotonic(), body, dict(self.headers)))
            status, headers, text = answer(len(seen) - 1, body)
            self.send_response(status)
            for name, value in {**headers, "content-length": str(len(text))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            assert isinstance(sys.exception(), OSError)  # the client has gone

    with Server(("127.0.0.1", 0), Handler) as stub:
        thread = threading.Thread(target=stub.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{stub.server_port}", seen
        finally:
            stub.shutdown()
            thread.join()


def good(body: dict[str, Any], **changes: Any) -> Reply:
    batch = reward().score(body["captions"], body["ids"], index=0)
    return 200, {}, json.dumps({**wire.reply(batch), **changes}).encode()


def bad(status: int, text: str = "words", **headers: str) -> Reply:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return status, named, json.dumps({"error": text}).encode()
