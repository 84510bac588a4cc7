"""Replicas of one model: who gets what, and what happens when one fails."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from lineup_fast.verifiers.sglang_wire import RefusedError, Reply, UnavailableError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from lineup_fast.verifiers.replicas import Replica
    from lineup_fast.verifiers.sglang_wire import PromptWriter

T = TypeVar("T")

FIRST_PAUSE_S = 0.5  # before the first further attempt; doubles from there
LONGEST_PAUSE_S = 8.0


class Fleet:
    """Spreads prompts over replicas; retries: further attempts after the first."""

    def __init__(self, replicas: Sequence[Replica], *, retries: int) -> None:
        self.replicas = list(replicas)
        self._retries = retries
        self._changed = asyncio.Condition()
        self._calls = 0
        self._held = False

    @asynccontextmanager
    async def call(self) -> AsyncIterator[None]:
        """A call that nothing :meth:`alone` overlaps."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._held)
            self._calls += 1
        try:
            yield
        finally:
            async with self._changed:
                self._calls -= 1
                self._changed.notify_all()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Waits until calls under way have ended and keeps new ones waiting."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._held)
            self._held = True
        try:
            async with self._changed:
                await self._changed.wait_for(lambda: self._calls == 0)
            yield
        finally:
            async with self._changed:
                self._held = False
                self._changed.notify_all()

    @asynccontextmanager
    async def place(self, tokens: int) -> AsyncIterator[Replica]:
        """The least loaded replica, once its cache has room for so many more tokens."""
        async with self._changed:
            replica = self._pick()
            while replica.load and replica.load + tokens > (replica.pool_tokens or float("inf")):
                await self._changed.wait()
                replica = self._pick()
            replica.load += tokens
        try:
            yield replica
        finally:
            async with self._changed:
                replica.load -= tokens
                self._changed.notify_all()

    async def ask(
        self,
        replica: Replica,
        writer: PromptWriter,
        nodes: Sequence[int],
        options: dict[str, Any],
    ) -> Sequence[Reply | str]:
        """Replies to prompts, or in words why there are none.

        A request that gets no answer is made again after a pause, elsewhere if there is another
        replica. Where the engine refuses several prompts together, each is asked alone, so that
        one cannot spoil the others.
        """

        async def attempt() -> list[Reply]:
            chosen = self._pick() if _just_failed(replica) else replica
            try:
                return await chosen.generate(writer, nodes, options)
            except UnavailableError:
                chosen.failed_at = time.monotonic()
                raise

        try:
            return await self.retried(attempt)
        except UnavailableError as error:
            return [str(error)] * len(nodes)
        except RefusedError as error:
            if len(nodes) == 1 or not error.splits:
                return [str(error)] * len(nodes)
        alone = [self.ask(replica, writer, [node], options) for node in nodes]
        return [answer for answers in await asyncio.gather(*alone) for answer in answers]

    async def retried(self, work: Callable[[], Awaitable[T]]) -> T:
        """The result of ``work``, tried again after a pause while it raises UnavailableError."""
        for attempt in range(self._retries):
            try:
                return await work()
            except UnavailableError as error:
                await asyncio.sleep(max(error.after_s, _pause_s(attempt)))
        return await work()

    def _pick(self) -> Replica:
        """Of the replicas that did not just fail, the one with least under way."""
        return min(self.replicas, key=lambda it: (_just_failed(it), it.load, it.failed_at))


def _just_failed(replica: Replica) -> bool:
    return time.monotonic() - replica.failed_at < LONGEST_PAUSE_S


def _pause_s(attempt: int) -> float:
    """Seconds before the next attempt: doubling, between half and all of it at random."""
    return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0**attempt) * random.uniform(0.5, 1.0)
