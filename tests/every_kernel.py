"""A call of every public kernel, for tests of what holds for all of them."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lineup_fast import charts, kernels
from lineup_fast.encoders import ByteEncoder
from lineup_fast.neighbour_index import NeighbourIndex
from lineup_fast.prompt_tokens import PromptBuilder

CAIRO = dataclasses.replace(charts.DEFAULT_STYLE, engine="cairo")
WINDOW = {"max_run": 4, "decimals": 4, "rule": "window"}


def calls(n: int, threads: int) -> dict[str, Callable[[], Any]]:
    """Calls whose work grows with n, by name; what they read is made before they run."""
    rng = np.random.default_rng(n)
    walk = rng.normal(size=n + 23).cumsum().round(3)
    series = np.lib.stride_tricks.sliding_window_view(walk, 24).copy()
    z, place, many = kernels.features(series), np.arange(n), np.tile(series, (20, 1))
    placed = {"source": place // 40, "start": place % 40}
    index = NeighbourIndex(z, series, **WINDOW, **placed)
    some, pool = list(series[: n // 100 + 1]), rng.integers(-1, n, (n, 128))
    image = charts.render(some[:1])[0]
    wide, images = np.tile(image, (n // 100 + 1, 1, 1)), np.stack([image] * (n // 500 + 1))
    builder = PromptBuilder(ByteEncoder())
    sets = series[: len(series) // 4 * 4].reshape(-1, 4, 24)
    words = [builder.caption_ids(["Rises, then falls."])] * len(sets)
    few, head = _ragged(4, 50), np.arange(9, dtype=np.int32)
    captions = _ragged(n, 12)
    return {
        "features": lambda: kernels.features(many, threads=threads),
        "longest_run": lambda: kernels.longest_run(walk, walk[::-1], decimals=1),
        "neighbours": lambda: kernels.neighbours(
            z, series, k=8, max_run=4, decimals=4, threads=threads
        ),
        "index": lambda: len(NeighbourIndex(z, series, **WINDOW, **placed, threads=threads)),
        "search": lambda: index.search(8, threads=threads),
        "query": lambda: index.query(z + 0.1, series + 0.5, k=8, **placed, threads=threads),
        "admissible": lambda: index.admissible(pool, threads=threads),
        "format_numbers": lambda: kernels.format_numbers(many.ravel(), 3),
        "number_ids": lambda: builder.number_ids(series, 2),
        "prompts": lambda: builder.prompts(sets, 2, words, threads=threads),
        "prompt_tree": lambda: kernels.prompt_tree(
            "caption_first", head, head, head, few, few, head, captions
        ),
        "render": lambda: charts.render(some, threads=threads),
        "render, cairo": lambda: charts.render(some[:20], CAIRO, threads=threads),
        "pixel_values": lambda: charts.pixel_values(some[: n // 500 + 1], threads=threads),
        "patches": lambda: charts.patches(images, threads=threads),
        "png": lambda: charts.png(wide),
    }


def _ragged(n: int, width: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    return np.arange(n * width, dtype=np.int32), np.arange(n + 1) * width


def digest(result: Any) -> str:
    """A hash of all that a kernel returned."""
    if dataclasses.is_dataclass(result):
        result = dataclasses.astuple(result)  # type: ignore[arg-type]
    if isinstance(result, tuple):
        result = "".join(digest(part) for part in result)
    if isinstance(result, np.ndarray):
        result = repr((result.dtype.str, result.shape)).encode() + result.tobytes()
    data = result if isinstance(result, bytes) else repr(result).encode()
    return hashlib.sha256(data).hexdigest()


def digests(n: int, threads: int) -> dict[str, str]:
    """The results of all calls, as hashes."""
    return {name: digest(call()) for name, call in calls(n, threads).items()}
