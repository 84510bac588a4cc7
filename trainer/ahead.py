"""The next step's inputs, prepared while the current step runs."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Generic, TypeVar

T = TypeVar("T")


class Ahead(Generic[T]):
    """Calls `prepare(step)` one step early, in one thread; a context manager.

    prepare: a pure function of the step, so that nothing depends on when it is called.
    last: the last step there is.
    """

    def __init__(self, prepare: Callable[[int], T], last: int) -> None:
        self._prepare, self._last = prepare, last
        self._worker = ThreadPoolExecutor(1, "lineup-ahead")
        self._next: tuple[int, Future[T]] | None = None

    def __enter__(self) -> Ahead[T]:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._worker.shutdown(cancel_futures=True)

    def take(self, step: int) -> T:
        """What was prepared for `step`; raises what its preparation raised."""
        if self._next is not None and self._next[0] == step:
            result = self._next[1].result()
        else:  # the first step of a run
            result = self._worker.submit(self._prepare, step).result()
        self._next = None
        if step < self._last:
            self._next = (step + 1, self._worker.submit(self._prepare, step + 1))
        return result
