"""Randomness as a function of counters: the same words give the same numbers everywhere."""

from __future__ import annotations

import hashlib
import json

import numpy as np
from numpy.typing import NDArray


def _bits(n: int, words: tuple[int | str, ...]) -> NDArray[np.uint64]:
    """n random 64-bit words (Philox, whose raw stream is fixed by its definition)."""
    plain = [word if isinstance(word, str) else int(word) for word in words]
    digest = hashlib.sha256(json.dumps(plain).encode()).digest()
    key = np.frombuffer(digest[:16], dtype="<u8").astype(np.uint64)
    return np.asarray(np.random.Philox(key=key).random_raw(n), dtype=np.uint64)


def order(n: int, *words: int | str) -> NDArray[np.int64]:
    """A uniformly random order of 0..n-1, int64[n], a pure function of n and the words."""
    return np.argsort(_bits(n, words), kind="stable")


def fraction(*words: int | str) -> float:
    """A uniform number in [0, 1), a pure function of the words."""
    return float(_bits(1, words)[0] >> np.uint64(11)) / 2.0**53
