"""A fleet in an event loop of its own, for blocking calls that wait for many answers at once."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from lineup_fast.verifiers.fleet import Fleet

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from concurrent.futures import Future

    from lineup_fast.verifiers.replicas import Replica

T = TypeVar("T")


class FleetThread:
    """Runs coroutines for callers of any thread, also of one whose event loop is running.

    The loop starts with the first call. A forked child starts its own, with connections of its own.
    """

    def __init__(self, replicas: Sequence[Replica], *, retries: int) -> None:
        self._replicas = list(replicas)
        self._retries = retries
        self._lock = threading.Lock()
        self._pid = -1

    def run(self, work: Callable[[Fleet], Coroutine[Any, Any, T]]) -> T:
        """The result of ``work``; where the caller is interrupted, it is cancelled."""
        future = self.submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def submit(self, work: Callable[[Fleet], Coroutine[Any, Any, T]]) -> Future[T]:
        """The result of ``work`` to come."""
        with self._lock:
            if self._pid != os.getpid():
                self._start()
            return asyncio.run_coroutine_threadsafe(work(self._fleet), self._loop)

    def close(self) -> None:
        """Close connections and end the thread; calls under way are cancelled."""
        with self._lock:
            if self._pid == os.getpid():
                asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._thread.join()
                self._loop.close()
            self._pid = -1

    def _start(self) -> None:
        for replica in self._replicas:
            replica.reset()
        self._fleet = Fleet(self._replicas, retries=self._retries)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="lineup-verifier", daemon=True
        )
        self._thread.start()
        self._pid = os.getpid()

    async def _end(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for replica in self._replicas:
            await replica.close()
