"""Calls of reward servers: connections, retries, deadline, which server is asked.

One event loop on a thread of its own carries all calls of a process, so that they share
connections whether they come from threads, from event loops, or from ``asyncio.run`` each time.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lineup_fast.verifiers.base import BackendError
from lineup_fast.wire import read_object, read_reply, score_body

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence
    from concurrent.futures import Future

    from lineup_fast.rewards import RewardBatch
    from lineup_fast.wire import ScoreRequest

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 10.0  # rest of a server that failed, doubled each time
JITTER_S = 0.2  # calls that waited for the same server come back at different moments
HEALTH_S = 10.0
BUSY, BAD_INPUT, FORBIDDEN = 429, (400, 404, 405, 413), (401, 403)

_opening = threading.Lock()
_inherited: list[Any] = []  # connections of the process that forked this one: kept, never used


def _forget_lock() -> None:
    global _opening
    _opening = threading.Lock()


os.register_at_fork(after_in_child=_forget_lock)


@dataclass
class _Server:
    """One URL and how it does; a server that failed rests for a while."""

    url: str
    active: int = 0
    failures: int = 0
    rests_from: float = 0.0
    rests_until: float = 0.0

    def rest(self, began: float, trouble: _Trouble) -> None:
        """Leave it alone; calls that began before it last failed do not count again."""
        if began < self.rests_from:
            return
        self.failures += 1
        pause = FIRST_PAUSE_S * 2.0 ** min(self.failures - 1, 16)
        if trouble.pause_s is not None:
            pause = trouble.pause_s
        self.rests_from = time.monotonic()
        self.rests_until = self.rests_from + min(pause, LONGEST_PAUSE_S)


@dataclass(frozen=True)
class _Trouble:
    """Why a try brought no answer. pause_s: when to come again, if the server said so."""

    reason: str
    busy: bool = False
    pause_s: float | None = None


class _Connections:
    """The event loop and the HTTP connections of one process."""

    def __init__(self, *, secure: bool) -> None:
        try:
            import httpx
        except ImportError as error:
            raise ImportError(f"{error}: a client of servers needs lineup-fast[serve]") from None
        self.pid = os.getpid()
        self.loop = asyncio.new_event_loop()
        self.failed = httpx.TransportError
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        self.http = httpx.AsyncClient(
            verify=secure, limits=limits, timeout=None, trust_env=False
        )  # without https, reading the certificates would be the most expensive thing here
        self._thread = threading.Thread(target=self._run, name="lineup-client", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self.loop.close()

    def close(self) -> None:
        """Close the connections and end the thread."""
        asyncio.run_coroutine_threadsafe(self.http.aclose(), self.loop).result(10.0)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10.0)


class ServerCalls:
    """Calls of servers that score alike, the least busy one that answers first.

    urls: at least one; token: sent as bearer token; deadline_s: of a call with its retries;
    retries: after the first failure. ``k`` is that of the last answer, 0 before.
    """

    def __init__(
        self, urls: Sequence[str], token: str | None, deadline_s: float, retries: int
    ) -> None:
        for url in urls:
            if not isinstance(url, str) or not url.startswith(("http://", "https://")):
                raise ValueError(f"reward: expected a reward or http:// URLs, got {url!r:.80}")
        if not urls:
            raise ValueError("reward: expected a reward or at least one URL, got none")
        self._servers = [_Server(url.rstrip("/")) for url in urls]
        self._headers = {"content-type": "application/json"}
        if token is not None:
            self._headers["authorization"] = f"Bearer {token.strip()}"
        self._deadline_s = deadline_s
        self._retries = retries
        self._connections: _Connections | None = None
        self._means: tuple[str, dict[str, str]] | None = None
        self.k = 0

    def __getstate__(self) -> dict[str, Any]:
        servers = [_Server(server.url) for server in self._servers]
        return {**self.__dict__, "_connections": None, "_servers": servers}

    def submit(self, request: ScoreRequest) -> Future[RewardBatch | str]:
        """The rewards of a request to come, or the reason why there are none."""
        if len(self._servers) > 1 and request.index is None and not request.fixed:
            raise ValueError(
                "index: expected the draw of each caption with several servers, which would each "
                "count on their own"
            )
        connections = self._opened()
        call: Coroutine[Any, Any, RewardBatch | str] = self._call(connections, request)
        return asyncio.run_coroutine_threadsafe(call, connections.loop)

    def wait(self, request: ScoreRequest) -> RewardBatch | str:
        """As :meth:`submit`, waited for; interrupted, the call ends too."""
        answer = self.submit(request)
        try:
            return answer.result()
        except BaseException:
            answer.cancel()
            raise

    def check_health(self) -> None:
        """Raises BackendError where a server does not answer that it is well."""
        connections = self._opened()

        async def ask(url: str) -> str | None:
            try:
                response = await connections.http.get(f"{url}/health", timeout=HEALTH_S)
            except connections.failed as error:
                return f"{url}: {type(error).__name__}: {error}".rstrip(": ")
            if response.status_code == 200:
                return None
            return f"{url}: {response.status_code}: {_error_text(response.content)}"

        for server in self._servers:
            call = asyncio.run_coroutine_threadsafe(ask(server.url), connections.loop)
            trouble = call.result()
            if trouble is not None:
                raise BackendError(trouble)

    def close(self) -> None:
        """Close the connections; a later call opens new ones."""
        with _opening:
            connections, self._connections = self._connections, None
        if connections is not None and connections.pid == os.getpid():
            connections.close()

    def _opened(self) -> _Connections:
        """The connections of this process."""
        with _opening:
            if self._connections is not None and self._connections.pid != os.getpid():
                _inherited.append(self._connections)
                self._connections = None
                self._servers = [_Server(server.url) for server in self._servers]
            if self._connections is None:
                secure = any(server.url.startswith("https") for server in self._servers)
                self._connections = _Connections(secure=secure)
            return self._connections

    async def _call(self, connections: _Connections, request: ScoreRequest) -> RewardBatch | str:
        """Try until there is an answer, the retries are used up, or time is."""
        end = time.monotonic() + self._deadline_s
        body = score_body(request)
        failures, reason = 0, "no server is free"
        tries = dict.fromkeys((server.url for server in self._servers), 0)
        while True:
            now = time.monotonic()
            server = min(
                self._servers,
                key=lambda s: (max(now, s.rests_until), tries[s.url], s.active, s.failures),
            )
            tries[server.url] += 1
            pause = server.rests_until - now
            pause += random.uniform(0, JITTER_S) if pause > 0 else 0.0
            if now + pause >= end:
                return f"{reason} (deadline of {self._deadline_s:g} s)"
            if pause > 0:
                await asyncio.sleep(pause)
            server.active += 1
            began = time.monotonic()
            try:
                answer = await self._try(connections, server.url, body, request, end)
            finally:
                server.active -= 1
            if not isinstance(answer, _Trouble):
                server.failures = 0
                return answer
            server.rest(began, answer)
            failures += not answer.busy
            reason = f"{server.url}: {answer.reason}"
            if failures > self._retries:
                return f"{reason} ({failures} tries)"

    async def _try(
        self,
        connections: _Connections,
        url: str,
        body: bytes,
        request: ScoreRequest,
        end: float,
    ) -> RewardBatch | _Trouble:
        """One try; raises ValueError where the server says that the request is wrong."""
        try:
            async with asyncio.timeout(end - time.monotonic()):
                response = await connections.http.post(
                    f"{url}/score", content=body, headers=self._headers
                )
        except TimeoutError:
            return _Trouble("no answer in time")
        except connections.failed as error:
            return _Trouble(f"{type(error).__name__}: {error}".rstrip(": "))
        if response.status_code == 200:
            try:
                batch = read_reply(response.content, len(request.captions))
            except ValueError as error:
                return _Trouble(str(error))
            self._check_meaning(url, batch)
            return batch
        text = _error_text(response.content)
        if response.status_code in FORBIDDEN:
            raise ValueError(f"token: {url} refuses it ({text})")
        if response.status_code in BAD_INPUT:
            raise ValueError(text)
        return _Trouble(
            f"{response.status_code}: {text}",
            busy=response.status_code == BUSY,
            pause_s=_seconds(response.headers.get("retry-after")),
        )

    def _check_meaning(self, url: str, batch: RewardBatch) -> None:
        """Rewards of different recipes, corpora or verifiers are never mixed."""
        self.k = batch.picks.shape[1]
        means = (batch.recipe, batch.fingerprints)
        if self._means is None:
            self._means = means
        if means != self._means:
            raise ValueError(
                f"reward: expected {self._means} from every server and at all times, "
                f"got {means} from {url}"
            )


def _error_text(body: bytes) -> str:
    try:
        return str(read_object(body)["error"])
    except (ValueError, KeyError):
        return f"{body[:80]!r}"


def _seconds(text: str | None) -> float | None:
    try:
        return None if text is None else max(0.0, float(text))
    except ValueError:  # a date, which servers of ours do not send
        return None
