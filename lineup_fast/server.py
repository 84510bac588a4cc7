"""The reward over HTTP: one process owns the corpus and the verifier, everybody asks it.

``RewardApp`` is a plain ASGI application; ``run`` serves it with uvicorn, which is imported there.
The event loop only reads, checks and writes; scoring happens on the coalescer's thread and counting
of draws, which writes a file, on another.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lineup_fast.coalesce import Coalescer, QueueFullError
from lineup_fast.openrlhf_contract import Turn, parse_remote, remote_reply
from lineup_fast.server_metrics import prometheus
from lineup_fast.wire import ScoreRequest, parse_score, reply

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable, MutableMapping
    from concurrent.futures import Future

    from lineup_fast.coalesce import Ticket
    from lineup_fast.draw_counter import DrawCounter
    from lineup_fast.rewards import IdentificationReward, RewardBatch

    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]

log = logging.getLogger(__name__)

DISCARDED_BODIES = 4  # body limits read and thrown away, so that a client gets to read the refusal
CLOSE_S = 2.0  # for a batch of which all callers have gone
JSON = "application/json"


@dataclass(frozen=True)
class Limits:
    """What one server takes on.

    body_bytes: of a request. deadline_s: from the first byte of a request to its reply.
    """

    body_bytes: int = 16 << 20
    deadline_s: float = 300.0

    def __post_init__(self) -> None:
        if self.body_bytes < 1:
            raise ValueError(f"body_bytes: expected at least 1, got {self.body_bytes}")
        if not self.deadline_s > 0:
            raise ValueError(f"deadline_s: expected more than 0, got {self.deadline_s}")


class RefusedError(Exception):
    """A request that gets an error instead of an answer."""

    def __init__(self, status: int, text: str, **headers: str) -> None:
        super().__init__(text)
        self.status = status
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


class _GoneError(Exception):
    """The client closed the connection."""


@dataclass
class Traffic:
    """Requests so far by (path, status), and those being worked on."""

    requests: dict[tuple[str, int], int] = field(default_factory=dict)
    active: int = 0
    draining: bool = False


class RewardApp:
    """ASGI application: POST /score, POST /get_reward, GET /health, GET /metrics.

    counter: numbers the draws of requests without an index; without it they are refused. token:
    what a request must carry as bearer token, but for /health. turn: how /get_reward finds the
    caption in a query.
    """

    def __init__(
        self,
        reward: IdentificationReward,
        coalescer: Coalescer,
        counter: DrawCounter | None = None,
        *,
        token: str | None = None,
        limits: Limits | None = None,
        turn: Turn | None = None,
    ) -> None:
        if token is not None and not token.strip():
            raise ValueError("token: expected some characters, got none")
        self.reward = reward
        self.coalescer = coalescer
        self.traffic = Traffic()
        self._counter = counter
        self._bearer = None if token is None else f"Bearer {token.strip()}".encode()
        self._limits = limits or Limits()
        self._turn = turn or Turn()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="lineup-draws")
        self._routes: dict[str, tuple[str, Callable[..., Awaitable[tuple[str, bytes]]]]] = {
            "/score": ("POST", self._score),
            "/get_reward": ("POST", self._get_reward),
            "/health": ("GET", self._health),
            "/metrics": ("GET", self._metrics),
        }

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            raise ValueError(f"scope: expected http, got {scope['type']}")
        path = scope["path"] if scope["path"] in self._routes else "other"
        headers = {}
        try:
            async with asyncio.timeout(self._limits.deadline_s):
                kind, body = await self._answer(scope, receive)
            status = 200
        except _GoneError:
            self._count(path, 499)
            return
        except RefusedError as refusal:
            status, headers, error = refusal.status, refusal.headers, str(refusal)
        except QueueFullError as full:
            status, error = 429, str(full)
            headers = {"retry-after": f"{full.retry_after_s:.0f}"}
        except ValueError as wrong:
            status, error = 400, str(wrong)
        except TimeoutError:
            status, error = 504, f"deadline: no answer within {self._limits.deadline_s:g} s"
        except Exception as broken:
            log.exception("%s failed", path)
            status, error = 500, f"{type(broken).__name__}: {broken}"
        if status != 200:
            kind, body = JSON, json.dumps({"error": error}).encode()
        self._count(path, status)
        fields = {"content-type": kind, "content-length": str(len(body)), **headers}
        pairs = [(name.encode(), value.encode()) for name, value in fields.items()]
        await send({"type": "http.response.start", "status": status, "headers": pairs})
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, scope: Message, receive: Receive) -> tuple[str, bytes]:
        """(content type, body) of a good request."""
        if scope["path"] not in self._routes:
            raise RefusedError(404, f"path: expected one of {', '.join(self._routes)}")
        method, handler = self._routes[scope["path"]]
        if scope["method"] != method:
            raise RefusedError(
                405, f"method: expected {method}, got {scope['method']}", allow=method
            )
        headers: dict[bytes, bytes] = dict(scope["headers"])
        if self._bearer is not None and scope["path"] != "/health":
            given = headers.get(b"authorization", b"")
            if not hmac.compare_digest(given, self._bearer):
                raise RefusedError(401, "token: expected the server's bearer token",
                              www_authenticate="Bearer")  # fmt: skip
        if method == "GET":
            return await handler()
        if self.traffic.draining:
            raise RefusedError(503, "server: shutting down", retry_after="1")
        # A page in a browser cannot send this type to another origin unasked.
        if headers.get(b"content-type", b"").split(b";")[0].strip().lower() != JSON.encode():
            raise RefusedError(400, f"content-type: expected {JSON}")
        self.traffic.active += 1
        try:
            body = await self._body(headers, receive)
            return await handler(body, receive)
        finally:
            self.traffic.active -= 1

    async def _body(self, headers: dict[bytes, bytes], receive: Receive) -> bytes:
        limit = self._limits.body_bytes
        chunks, size, more = [], 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _GoneError
            chunk = message.get("body", b"")
            size += len(chunk)
            if size <= limit:
                chunks.append(chunk)
            elif size > DISCARDED_BODIES * limit:
                break
            more = message.get("more_body", False)
        if size > limit:
            declared = headers.get(b"content-length", b"more").decode("latin-1")
            raise RefusedError(413, f"body: expected at most {limit} bytes, got {declared}")
        return b"".join(chunks)

    async def _score(self, body: bytes, receive: Receive) -> tuple[str, bytes]:
        batch = await self._rewards(parse_score(body), receive)
        return JSON, json.dumps(reply(batch), allow_nan=False).encode()

    async def _get_reward(self, body: bytes, receive: Receive) -> tuple[str, bytes]:
        asked = parse_remote(body, self._turn)
        batch = None
        if asked.captions:
            request = ScoreRequest(asked.captions, asked.ids, asked.index)
            batch = await self._rewards(request, receive)
        return JSON, json.dumps(remote_reply(batch), allow_nan=False).encode()

    async def _health(self) -> tuple[str, bytes]:
        if self.traffic.draining:
            raise RefusedError(503, "server: shutting down", retry_after="1")
        if not self.coalescer.alive:
            raise RefusedError(503, "server: the thread that scores has ended")
        return JSON, json.dumps({"status": "ok", "recipe": self.reward.recipe.name}).encode()

    async def _metrics(self) -> tuple[str, bytes]:
        text = prometheus(self.reward, self.coalescer, self.traffic)
        return "text/plain; version=0.0.4; charset=utf-8", text.encode()

    async def _rewards(self, request: ScoreRequest, receive: Receive) -> RewardBatch:
        """The rewards of a request, or the refusal of it."""
        n = len(request.captions)
        unknown = sorted({item for item in request.ids if item not in self.reward.corpus})
        if unknown:
            raise ValueError(
                f"ids: expected items of the corpus, got {len(unknown)} unknown, "
                f"such as {unknown[0]!r:.80}"
            )
        if n > self.coalescer.max_waiting:
            raise ValueError(f"captions: expected at most {self.coalescer.max_waiting}, got {n}")
        self.coalescer.check_room(n)  # before anything is counted
        indices = await self._indices(request)
        counted = request.index is None and not request.fixed and request.request_ids is None
        ticket = None
        try:
            ticket = self.coalescer.submit(request.captions, request.ids, indices)
            return await _waited(ticket, receive)
        except BaseException:
            if ticket is not None:
                self.coalescer.drop(ticket)
            if counted:  # no request id will ask for these draws again
                self._release(request.ids, [index for index in indices if index is not None])
            raise

    async def _indices(self, request: ScoreRequest) -> list[int | None]:
        if request.fixed:
            return [None] * len(request.captions)
        if request.index is not None:
            return list(request.index)
        if self._counter is None:
            raise ValueError(
                "index: expected the draw of each caption, or a server started with --group-size"
            )
        counting = asyncio.get_running_loop().run_in_executor(
            self._writer, self._counter.assign, request.ids, request.request_ids
        )
        return list(await asyncio.shield(counting))

    def _release(self, ids: list[str], indices: list[int]) -> None:
        assert self._counter is not None
        self._writer.submit(self._counter.release, ids, indices).add_done_callback(_log_failure)

    def _count(self, path: str, status: int) -> None:
        key = (path, status)
        self.traffic.requests[key] = self.traffic.requests.get(key, 0) + 1

    def close(self) -> bool:
        """End the threads and write the counter, when nobody waits for an answer any more.

        Returns: whether the verifier came to an end, within some seconds.
        """
        ended = self.coalescer.close(timeout_s=CLOSE_S)
        if not ended:
            log.warning("the verifier is left in the middle of a batch")
        self._writer.shutdown()
        if self._counter is not None:
            self._counter.close()
        return ended


def _log_failure(done: Future[None]) -> None:
    if done.exception() is not None:
        log.error("draws could not be given back: %s", done.exception())


async def _waited(ticket: Ticket, receive: Receive) -> RewardBatch:
    """The rewards when they are there; _GoneError as soon as the client is."""
    answer = asyncio.ensure_future(asyncio.wrap_future(ticket.future))
    leaving = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((answer, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise _GoneError
        return answer.result()
    finally:
        answer.cancel()
        leaving.cancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def check_exposure(host: str, token: str | None) -> None:
    """Raises ValueError for a host that others can reach without a token."""
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback and token is None:
        raise ValueError(
            f"host: expected a loopback address where there is no token, got {host!r}; "
            "set LINEUP_TOKEN or --token-file"
        )


def listener(host: str, port: int) -> socket.socket:
    """A bound socket that does not listen yet: connections are refused until the server runs."""
    import socket

    (family, _, _, _, address), *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound


def run(app: RewardApp, bound: socket.socket, on_ready: Callable[[], None] = lambda: None) -> None:
    """Serve until SIGTERM or SIGINT, then refuse new work, finish the accepted, and return.

    A second signal does not wait. In a thread other than the main one, no signals are listened to;
    set ``app.traffic.draining`` to end it.
    """
    import uvicorn

    class DrainingServer(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            self.drain = asyncio.create_task(self._when_drained())
            on_ready()

        def handle_exit(self, sig: int, frame: Any) -> None:
            if app.traffic.draining:
                self.force_exit = self.should_exit = True
            app.traffic.draining = True

        async def _when_drained(self) -> None:
            while not app.traffic.draining or app.traffic.active:
                await asyncio.sleep(0.02)
            self.should_exit = True

    config = uvicorn.Config(
        app,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=5,
    )
    DrainingServer(config).run(sockets=[bound])
