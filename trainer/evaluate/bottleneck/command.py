"""The bottleneck of ``python -m trainer evaluate``: two tables per captioner and benchmark."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from trainer.evaluate.bottleneck import windows
from trainer.evaluate.bottleneck.windows import TASKS, Task, Windows
from trainer.evaluate.table import Table, UnmeasuredError

if TYPE_CHECKING:
    from trainer.evaluate.benchmark import Benchmark
    from trainer.evaluate.bottleneck.config import BottleneckConfig
    from trainer.evaluate.bottleneck.encoder import Encoder


def tables(
    texts: Mapping[str, str], benchmark: Benchmark, config: BottleneckConfig, device: str
) -> list[Table]:
    """Test errors of forecast and reconstruction from the captions, with controls.

    Raises:
        UnmeasuredError: the benchmark is not made of windows with something behind them.
        ValueError: no such encoder, a caption that is too long for it; and as `of_benchmark`.
    """
    from trainer.evaluate.bottleneck.metric import bottleneck

    if not benchmark.channels:
        raise UnmeasuredError("no windows of a long channel, nothing follows these series")
    encoder, decoder = _encoder(config.encoder, device), config.decoder()
    cut = _windows(benchmark, config.horizon)
    return [
        bottleneck(
            texts, cut, task, encoder, decoder, shared=_shared(benchmark, task, config, device)
        )
        for task in TASKS
    ]


@lru_cache(maxsize=1)
def _encoder(name: str, device: str) -> Encoder:
    from trainer.evaluate.bottleneck.encoder import Encoder

    return Encoder.load(name, device=device)


@lru_cache(maxsize=1)
def _windows(benchmark: Benchmark, horizon: int | None) -> Windows:
    return windows.of_benchmark(benchmark, horizon)


@lru_cache(maxsize=len(TASKS))
def _shared(
    benchmark: Benchmark, task: Task, config: BottleneckConfig, device: str
) -> dict[str, float]:
    """The controls that are the same for every captioner."""
    from trainer.evaluate.bottleneck.metric import shared_controls

    encoder = _encoder(config.encoder, device)
    return shared_controls(_windows(benchmark, config.horizon), task, encoder, config.decoder())
