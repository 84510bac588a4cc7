"""Where SGLang runs: behind a URL, several of them, or in this process."""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol

from lineup_fast.verifiers.sglang_wire import (
    RefusedError,
    UnavailableError,
    generate_body,
    read_replies,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lineup_fast.verifiers.sglang_wire import PromptWriter, Reply

CONNECT_S = 10.0


class Replica(Protocol):
    """One copy of the model. load: tokens under way; pool_tokens: what its cache holds."""

    name: str
    load: int
    pool_tokens: int | None
    failed_at: float

    async def generate(
        self, writer: PromptWriter, nodes: Sequence[int], options: dict[str, Any]
    ) -> list[Reply]:
        """Replies to the prompts that end at ``nodes``."""
        ...

    async def rows(self, **request: Any) -> Any:
        """The engine's own answer to a request of other fields."""
        ...

    async def info(self, what: str) -> dict[str, Any]:
        """``model_info`` or ``server_info``."""
        ...

    async def command(self, name: str, **options: Any) -> None:
        """``flush_cache``, ``update_weights_from_disk`` and the like."""
        ...

    def reset(self) -> None:
        """Be as new, with nothing under way: a forked child starts over."""
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...


class HttpReplica:
    """A server at ``url``. api_key: as given to the server's --api-key."""

    def __init__(self, url: str, *, api_key: str | None = None, connections: int = 64) -> None:
        self.name = url.rstrip("/")
        self.pool_tokens: int | None = None
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._connections = connections
        self.reset()

    def reset(self) -> None:
        """See :class:`Replica`."""
        self.load = 0
        self.failed_at = -float("inf")
        self._client: Any = None

    async def generate(
        self, writer: PromptWriter, nodes: Sequence[int], options: dict[str, Any]
    ) -> list[Reply]:
        """See :class:`Replica`."""
        body = generate_body([writer.json(node) for node in nodes], options)
        return read_replies(await self._call("POST", "generate", body), len(nodes), options)

    async def rows(self, **request: Any) -> Any:
        """See :class:`Replica`."""
        return await self._call("POST", "generate", json.dumps(request).encode())

    async def info(self, what: str) -> dict[str, Any]:
        """See :class:`Replica`."""
        answer = await self._call("GET", what)
        if not isinstance(answer, dict):
            raise RefusedError(f"{self.name}: expected an object from /{what}, got {answer!r:.80}")
        return answer

    async def command(self, name: str, **options: Any) -> None:
        """See :class:`Replica`."""
        await self._call("POST", name, json.dumps(options).encode())

    async def _call(self, method: str, path: str, body: bytes | None = None) -> Any:
        import httpx

        if self._client is None:
            # No limit on reading: the deadline of the whole call is kept by who calls.
            self._client = httpx.AsyncClient(
                headers=self._headers | {"Content-Type": "application/json"},
                limits=httpx.Limits(
                    max_connections=self._connections,
                    max_keepalive_connections=self._connections,
                ),
                timeout=httpx.Timeout(None, connect=CONNECT_S),
                trust_env=False,
            )
        try:
            response = await self._client.request(method, f"{self.name}/{path}", content=body)
        except httpx.RequestError as error:
            raise UnavailableError(f"{self.name}: {type(error).__name__}: {error}") from error
        return _answer(self.name, response.status_code, response.headers, response.content)

    async def close(self) -> None:
        """See :class:`Replica`."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()


def _answer(name: str, status: int, headers: Any, content: bytes) -> Any:
    """A response's JSON, or the exception that its status calls for."""
    if status >= 500 or status in (408, 429):
        wait = headers.get("Retry-After", "")
        message = f"{name}: status {status}: {_message(content)}"
        raise UnavailableError(message, float(wait) if wait.isdigit() else 0.0)
    if status >= 400:
        message = f"{name}: status {status}: {_message(content)}"
        raise RefusedError(message, splits=status in (400, 413, 422))
    if not content or content[:1] not in b'{["':
        return content.decode("utf-8", "replace")
    try:
        return json.loads(content)
    except ValueError as error:
        raise RefusedError(f"{name}: expected JSON, got {content[:80]!r}") from error


def _message(content: bytes) -> str:
    """What an error reply says: {"error": {"message"}}, {"error"}, {"message"} or plain text."""
    text = content.decode("utf-8", "replace")[:500]
    try:
        found = json.loads(content)
    except ValueError:
        return text
    while isinstance(found, dict):
        found = found.get("error", found.get("message", text))
    return str(found)[:500]


class EngineReplica:
    """An ``sglang.Engine`` of this process.

    It answers one call at a time, in a thread of its own; whatever is asked for meanwhile goes into
    the next call together. Nobody else may use the engine while a verifier does.
    """

    name = "engine"

    def __init__(self, engine: Any) -> None:
        self.pool_tokens: int | None = None
        self._engine = engine
        self.reset()

    def reset(self) -> None:
        """See :class:`Replica`."""
        self.load = 0
        self.failed_at = -float("inf")
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sglang-engine")
        self._lock = threading.Lock()
        self._waiting: list[tuple[list[list[int]], dict[str, Any], Future[list[Any]]]] = []

    async def generate(
        self, writer: PromptWriter, nodes: Sequence[int], options: dict[str, Any]
    ) -> list[Reply]:
        """See :class:`Replica`."""
        answer: Future[list[Any]] = Future()
        with self._lock:
            self._waiting.append(([writer.ids(node) for node in nodes], options, answer))
        await asyncio.sleep(0)  # who starts together with us goes into the same call
        self._thread.submit(self._next_call)
        return read_replies(await asyncio.wrap_future(answer), len(nodes), options)

    def _next_call(self) -> None:
        """One call of the engine for all that wait and ask for the same."""
        with self._lock:
            waiting = [it for it in self._waiting if it[2].set_running_or_notify_cancel()]
            taken = [it for it in waiting if it[1] == waiting[0][1]]
            self._waiting = [it for it in waiting if it[1] != waiting[0][1]]
        if not taken:
            return
        prompts = [ids for entry in taken for ids in entry[0]]
        try:
            rows = self._use("generate", input_ids=prompts, **taken[0][1])
        except (RefusedError, UnavailableError) as error:
            for _, _, answer in taken:
                answer.set_exception(error)
            return
        for ids, _, answer in taken:
            answer.set_result(rows[: len(ids)])
            rows = rows[len(ids) :]

    def _use(self, method: str, **options: Any) -> Any:
        try:
            return getattr(self._engine, method)(**options)
        except ValueError as error:
            raise RefusedError(f"engine: {error}", splits=True) from error
        except Exception as error:
            raise UnavailableError(f"engine: {type(error).__name__}: {error}") from error

    async def _in_thread(self, method: str, **options: Any) -> Any:
        return await asyncio.wrap_future(self._thread.submit(self._use, method, **options))

    async def rows(self, **request: Any) -> Any:
        """See :class:`Replica`."""
        return await self._in_thread("generate", **request)

    async def info(self, what: str) -> dict[str, Any]:
        """See :class:`Replica`."""
        return dict(await self._in_thread(f"get_{what}"))

    async def command(self, name: str, **options: Any) -> None:
        """See :class:`Replica`."""
        options.pop("weight_version", None)  # known to the server's route alone
        answer = await self._in_thread(name, **options)
        if isinstance(answer, tuple) and answer and answer[0] is False:
            raise RefusedError(f"engine: {name}: {answer[1]}")

    async def close(self) -> None:
        """The engine itself stays with who made it."""
        self._thread.shutdown(wait=False)
