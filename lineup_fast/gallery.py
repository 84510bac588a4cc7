"""Charts of a corpus or a data file as PNG files: what ``lineup-fast render`` does."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Container, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lineup_fast import charts
from lineup_fast.charts import ChartStyle
from lineup_fast.readers import Refusal, clean, read
from lineup_fast.store import Corpus

_BATCH = 32


def select(
    source: str | os.PathLike[str], names: Sequence[str] = ()
) -> tuple[dict[str, NDArray[np.float64]], list[Refusal]]:
    """Series f64[T] by name, and what was refused.

    source : a corpus, whose items are named by id, or what `lineup_fast.readers.read` takes, whose
    channels are named by source and drawn whole; names : which of them (none: all)

    Raises ValueError if a name is unknown, and what reading raises.
    """
    refusals: list[Refusal] = []
    if (Path(source) / "corpus.json").is_file():
        corpus = Corpus.load(source)
        found = {item: corpus.series(item) for item in names or corpus.ids() if item in corpus}
    else:
        channels, refusals = read(source)
        found = {}
        for channel in channels:
            kept, refused = clean(channel)
            refusals += refused
            for part in kept:
                found[_unused(part.source, found)] = part.values
        found = {name: found[name] for name in names or found if name in found}
    unknown = [name for name in names if name not in found]
    if unknown:
        raise ValueError(f"names: expected names in {source}, got {', '.join(unknown[:3])}")
    return found, refusals


def write(
    series: dict[str, NDArray[np.float64]],
    folder: str | os.PathLike[str],
    style: ChartStyle,
    *,
    threads: int = 0,
    progress: Callable[[str, int, int], None] = lambda *_: None,
) -> list[Path]:
    """Write a PNG per series into the folder, which is made; returns the paths in order."""
    target = Path(folder)
    if target.exists() and not target.is_dir():
        raise ValueError(f"output: expected a folder, got {target}")
    target.mkdir(parents=True, exist_ok=True)
    paths: dict[str, Path] = {}
    for batch in _batches(list(series)):
        images = charts.render([series[name] for name in batch], style, threads=threads)
        for name, image in zip(batch, images, strict=True):
            stem = _unused(re.sub(r"[^\w.-]+", "_", name).strip("._")[:100] or "series", paths)
            paths[stem] = target / f"{stem}.png"
            paths[stem].write_bytes(charts.png(image))
        progress("drawing", len(paths), len(series))
    return list(paths.values())


def _batches(names: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(names), _BATCH):
        yield names[start : start + _BATCH]


def _unused(name: str, taken: Container[str]) -> str:
    """The name, numbered if there is one like it."""
    number, fresh = 1, name
    while fresh in taken:
        number += 1
        fresh = f"{name}-{number}"
    return fresh
