"""A model behind SGLang, whatever it is asked: what it says of itself, its memory, its weights."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from lineup_fast.verifiers.base import BackendError
from lineup_fast.verifiers.fleet_thread import FleetThread
from lineup_fast.verifiers.replicas import EngineReplica, HttpReplica, Replica
from lineup_fast.verifiers.sglang_wire import RefusedError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from typing import Self

    from lineup_fast.verifiers.fleet import Fleet

T = TypeVar("T")


class SGLangModel:
    """One model on servers at ``urls``, one or several, or in an ``engine`` of this process.

    deadline_s: of one call, further attempts included; retries: further attempts of a request that
    got no answer; connections: at once, per server; api_key: as given to --api-key.
    """

    _replica: ClassVar[type[HttpReplica]] = HttpReplica  # how a server is spoken to

    def __init__(
        self,
        urls: str | Sequence[str] | None = None,
        *,
        engine: Any = None,
        deadline_s: float = 600.0,
        retries: int = 4,
        connections: int = 64,
        api_key: str | None = None,
    ) -> None:
        if not deadline_s > 0:
            raise ValueError(f"deadline_s: expected more than 0, got {deadline_s}")
        if retries < 0:
            raise ValueError(f"retries: expected at least 0, got {retries}")
        self.deadline_s = deadline_s
        self.asleep = False
        self._model: dict[str, Any] = {}
        self._server: dict[str, Any] = {}
        made = partial(self._replica, api_key=api_key, connections=connections)
        self._fleet = FleetThread(_replicas(urls, engine, made), retries=retries)

    def sleep(self) -> None:
        """Give the engine's memory back, once calls under way have ended, until :meth:`wake`.

        A server needs --enable-memory-saver for it, and --enable-weights-cpu-backup to get its
        weights back. Raises: BackendError when it refuses.
        """
        self._command("release_memory_occupation")
        self.asleep = True

    def wake(self, *tags: str) -> None:
        """Take the memory again. tags: of what ("weights", "kv_cache", "cuda_graph"); none: all."""
        self._command("resume_memory_occupation", **({"tags": list(tags)} if tags else {}))
        self.asleep = False

    def close(self) -> None:
        """Close connections and the thread that waits for them."""
        self._fleet.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _read_infos(self) -> int | None:
        """Ask every replica about itself; returns the longest prompt that all of them read."""

        async def ask(fleet: Fleet) -> int | None:
            limits = []
            for replica in reversed(fleet.replicas):
                self._model, self._server = [
                    await self._answered(fleet.retried(lambda: replica.info(what)))  # noqa: B023
                    for what in ("model_info", "server_info")
                ]
                replica.pool_tokens = self._server.get("max_total_num_tokens")
                longest = self._server.get("max_req_input_len")  # refused from this length on
                limits += [] if longest is None else [int(longest) - 1]
            return min(limits, default=None)

        return self._fleet.run(ask)

    def _command(self, name: str, **options: Any) -> None:
        """Tell every replica, while nothing is asked."""

        async def tell(fleet: Fleet) -> None:
            async with fleet.alone():
                for replica in fleet.replicas:
                    await self._answered(replica.command(name, **options))

        self._fleet.run(tell)

    async def _answered(self, work: Awaitable[T]) -> T:
        """What the engine answers within the deadline; failures as BackendError."""
        try:
            async with asyncio.timeout(self.deadline_s):
                return await work
        except TimeoutError:
            raise BackendError(f"no answer within {self.deadline_s:g} s") from None
        except (RefusedError, UnavailableError) as error:
            raise BackendError(str(error)) from error


def _replicas(
    urls: str | Sequence[str] | None, engine: Any, server: Callable[[str], HttpReplica]
) -> Sequence[Replica]:
    if (urls is None) == (engine is None):
        raise ValueError("urls: expected addresses or an engine, one of them")
    if engine is not None:
        return [EngineReplica(engine)]
    addresses = [urls] if isinstance(urls, str) else list(urls or ())
    if not addresses or not all(url.startswith(("http://", "https://")) for url in addresses):
        raise ValueError(f"urls: expected addresses like http://127.0.0.1:30000, got {addresses}")
    return [server(url) for url in addresses]
