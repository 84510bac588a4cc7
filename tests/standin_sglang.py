"""A stand-in for an SGLang server: its routes, its cache's rules and its ways of failing.

It computes nothing like a language model. Requests and replies go through SGLang's own schema; a
prefix is cached once a request that has it was answered, prompts of one request do not see each
other, and an id outside the vocabulary ends the server, all as with the real one.
"""

from __future__ import annotations

import json
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

from tests.sglang_schema import schema

VOCABULARY = 300
LONGEST = 4000  # refused from this length on


def log_probs(ids: Sequence[int], weights: str = "") -> np.ndarray:
    """Log-probabilities [VOCABULARY] behind ids: any fixed function of them."""
    seed = zlib.crc32(np.array(ids, dtype=np.int32).tobytes() + weights.encode())
    logits = np.random.default_rng(seed).standard_normal(VOCABULARY)
    return np.asarray(logits - np.logaddexp.reduce(logits))


class StandIn:
    """The server; ``with StandIn() as server`` starts it. port 0: any free one.

    faults: taken one by one by the requests to /generate, each called before the request is
    answered; what it returns as (status, body) is sent instead. Attributes tell what happened.
    """

    def __init__(self, port: int = 0, *, weights: str = "a", pool: int | None = 100_000) -> None:
        self.faults: list[Callable[[], tuple[int, Any] | None]] = []
        self.bodies: list[dict[str, Any]] = []
        self.commands: list[tuple[str, dict[str, Any]]] = []
        self.headers: list[dict[str, str]] = []
        self.weights, self.version, self.pool = weights, "default", pool
        self.dead = False
        self.null_ids: set[int] = set()  # ids whose log-probability is not a number
        self._known: set[int] = {0}
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", port), _handler(self))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> StandIn:
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def get(self, path: str) -> tuple[int, Any]:
        """Answer a GET request."""
        if path == "/model_info":
            return 200, {
                "model_path": f"/models/{self.weights}",
                "tokenizer_path": "/models/tokenizer",
                "is_generation": True,
                "weight_version": self.version,
            }
        if path == "/server_info":
            return 200, {"max_total_num_tokens": self.pool, "max_req_input_len": LONGEST}
        return (200, "") if path == "/health" else (404, {"detail": "Not Found"})

    def post(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        """Answer a POST request."""
        if path == "/generate":
            return self._generate(body)
        with self._lock:
            self.commands.append((path, body))
            if path == "/release_memory_occupation":
                self._known = {0}
            if path == "/update_weights_from_disk":
                if "missing" in body["model_path"]:
                    return 400, {"success": False, "message": "no such folder"}
                self.weights, self.version = body["model_path"], body["weight_version"]
                self._known = {0}
        return 200, ""

    def _generate(self, body: dict[str, Any]) -> tuple[int, Any]:
        try:
            schema().GenerateRequest.from_json_value(body)
        except schema().JsonContractError as error:
            return 400, {"error": str(error)}
        with self._lock:
            self.bodies.append(body)
            fault = self.faults.pop(0) if self.faults else None
        answer = fault() if fault is not None else None
        if answer is not None:
            return answer
        wanted = body.get("token_ids_logprob", [])
        if any(not 0 <= token < VOCABULARY for token in wanted):
            message = f"out-of-vocabulary token id; valid range is [0, {VOCABULARY})."
            return 400, {"error": {"message": message}}
        prompts = body["input_ids"]
        if any(len(ids) >= LONGEST for ids in prompts):
            return 400, {"error": {"message": "too long"}}
        if any(not 0 <= token < VOCABULARY for ids in prompts for token in ids):
            self.dead = True
            return 500, "the server has ended"
        with self._lock:
            held = [self._cached(ids) for ids in prompts]
            for ids in prompts:
                self._known |= set(_prefixes(ids))
        steps = body["sampling_params"]["max_new_tokens"]
        rows = [self._reply(*pair, wanted, steps) for pair in zip(prompts, held, strict=True)]
        for row in rows:
            schema().GenerateResponse.from_json_value(row)
        return 200, rows

    def log_probs(self, ids: Sequence[int]) -> np.ndarray:
        """What the model says behind ids, [VOCABULARY]."""
        return log_probs(ids, self.weights)

    def _cached(self, ids: list[int]) -> int:
        cached = 0
        for prefix in _prefixes(ids)[:-1]:
            if prefix not in self._known:
                break
            cached += 1
        return cached

    def _reply(self, ids: list[int], cached: int, wanted: list[int], steps: int) -> dict[str, Any]:
        first = self.log_probs(ids)
        output: list[int] = []
        for _ in range(steps):
            output.append(int(self.log_probs([*ids, *output]).argmax()))
        labels = [[None if i in self.null_ids else first[i], i, None] for i in wanted]
        return {
            "text": "",
            "output_ids": output,
            "meta_info": {
                "id": "x",
                "finish_reason": {"type": "length", "length": steps},
                "prompt_tokens": len(ids),
                "cached_tokens": cached,
                "completion_tokens": steps,
                "output_token_ids_logprobs": [labels] if wanted else [],
            },
        }


def _prefixes(ids: list[int]) -> list[int]:
    """A key of every prefix, the whole last."""
    keys, key = [], 0
    for token in ids:
        key = hash((key, token))
        keys.append(key)
    return keys


def _handler(standin: StandIn) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._send(*standin.get(self.path))

        def do_POST(self) -> None:
            standin.headers.append(dict(self.headers))
            length = int(self.headers["Content-Length"])
            self._send(*standin.post(self.path, json.loads(self.rfile.read(length) or b"{}")))

        def _send(self, status: int, body: Any) -> None:
            if standin.dead or status == 0:  # no answer at all
                self.close_connection = True
                return
            data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            if status == 429:
                self.send_header("Retry-After", "1")
            self.end_headers()
            try:
                self.wfile.write(data)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True  # who asked has gone

        def log_message(self, *words: Any) -> None:
            """Says nothing."""

    return Handler


def broken() -> tuple[int, Any]:
    """A fault: the connection is closed without an answer."""
    return 0, ""


def status(code: int, body: Any = None) -> Callable[[], tuple[int, Any]]:
    """A fault: this status instead of an answer."""
    return lambda: (code, body or {"error": {"message": f"fault {code}"}})


def slow(seconds: float) -> Callable[[], None]:
    """A fault: the answer takes longer."""
    return lambda: time.sleep(seconds)
