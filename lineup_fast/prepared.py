"""Questions made before they are asked: a bounded table that threads share."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

V = TypeVar("V")


class Prepared(Generic[V]):
    """Values of a pure function under its arguments, the newest ``most`` of them.

    Safe for threads. Whether a value is there changes how long an answer takes, never what it is.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: OrderedDict[Hashable, V] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: Hashable) -> bool:
        with self._lock:
            return key in self._values

    def get(self, key: Hashable) -> V | None:
        """The value, or None where there is none or none any more."""
        with self._lock:
            return self._values.get(key)

    def put(self, key: Hashable, value: V) -> None:
        """Keeps a value, in place of the oldest one where the table is full."""
        with self._lock:
            self._values[key] = value
            while len(self._values) > self._most:
                self._values.popitem(last=False)
