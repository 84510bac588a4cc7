"""Windows in three spans of time, none of which sees another: lookback, what follows, their scale.

A channel is cut at 60 % and 80 % of its length. A window belongs to the span in which its target
starts; if its lookback or its target reaches into another span it is purged. Targets are
standardised by the train span.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from trainer.evaluate.benchmark_build import Item
from trainer.evaluate.benchmark_sources import Scale, windows

if TYPE_CHECKING:
    from lineup_fast.readers import Channel
    from trainer.evaluate.benchmark import Benchmark

Floats = NDArray[np.float64]
Task = Literal["forecast", "reconstruct"]
TASKS: tuple[Task, ...] = get_args(Task)
SPANS = ("train", "val", "test")
TRAIN, VAL, TEST, PURGED = 0, 1, 2, -1
SHARES = (0.6, 0.2, 0.2)
STD_FLOOR = 1e-8


@dataclass(frozen=True)
class Preset:
    """A task size. lookback, horizon: steps. scale: as of `benchmark_sources.scaled`. n: windows
    drawn out of a channel, over all spans."""

    lookback: int
    horizon: int
    scale: Scale
    n: int


PRESETS = {
    "paper": Preset(128, 16, "standard", 5000),
    "tiny": Preset(24, 6, (0.0, 100.0), 5000),
}


@dataclass(frozen=True, eq=False)
class Windows:
    """N windows of one length with what follows them.

    ids: content hashes of the lookback. series f64[N,L], future f64[N,H]: on the scale of the
    benchmark. split i8[N]: TRAIN, VAL, TEST or PURGED. mean, std f64[N]: of the train span of the
    channel that a window is from, the std population + 1e-8. low, high f64[N]: least and largest
    value there.
    """

    name: str
    ids: tuple[str, ...]
    series: Floats
    future: Floats
    split: NDArray[np.int8]
    mean: Floats
    std: Floats
    low: Floats
    high: Floats

    def rows(self, span: int) -> NDArray[np.intp]:
        """Positions of the windows of a span, in the order of ids."""
        return np.flatnonzero(self.split == span)

    def span_ids(self, span: int) -> list[str]:
        """Ids of the windows of a span."""
        return [self.ids[row] for row in self.rows(span)]

    def targets(self, task: Task) -> Floats:
        """What the decoder is to say, in units of the train span's deviation: f64[N,H] or [N,L].

        Raises:
            ValueError: another task.
        """
        if task not in TASKS:
            raise ValueError(f"task: expected {' or '.join(TASKS)}, got {task!r}")
        values = self.future if task == "forecast" else self.series
        return (values - self.mean[:, None]) / self.std[:, None]


def spans(starts: NDArray[np.int64], lookback: int, horizon: int, length: int) -> NDArray[np.int8]:
    """The span of each window, i8[N]: that of its target's start; PURGED where it crosses.

    starts i64[N]: position of the first lookback value in a channel of ``length`` values.

    Source: reference, ts_downstream, splits 60/20/20 by the start of the target; the purge is
    ours (there a target of train may reach 15 steps into val, lookbacks further back).
    """
    bounds = [int(SHARES[0] * length), int((SHARES[0] + SHARES[1]) * length)]

    def span_at(position: NDArray[np.int64]) -> NDArray[np.intp]:
        return np.searchsorted(bounds, position, side="right")

    first, last = span_at(starts), span_at(starts + lookback + horizon - 1)
    own = span_at(starts + lookback)
    return np.where((first == own) & (last == own), own, PURGED).astype(np.int8)


@dataclass
class _Cut:
    """Windows on their way, one entry per window."""

    future: list[Floats] = field(default_factory=list)
    split: list[int] = field(default_factory=list)
    scale: list[tuple[float, float, float, float]] = field(default_factory=list)


def assemble(
    name: str,
    items: Sequence[Item],
    channels: Mapping[str, Floats],
    horizon: int,
    breaks: Mapping[str, Sequence[int]] | None = None,
) -> Windows:
    """The windows of items that were cut out of channels.

    channels: by source, f64[length]. breaks: by source, positions b with a gap before values[b].

    Raises:
        ValueError: items of different lengths, one that is not what its channel holds at its
            start, crosses a gap, or has no room for the horizon; a span without windows; a train
            span that is constant.
    """
    if horizon < 1:
        raise ValueError(f"horizon: expected at least 1, got {horizon}")
    lookbacks = {len(item.values) for item in items}
    if len(lookbacks) != 1:
        raise ValueError(f"{name}: expected windows of one length, got {sorted(lookbacks)}")
    lookback = lookbacks.pop()
    if len({item.id for item in items}) != len(items):
        raise ValueError(f"{name}: expected every window once, got one twice")
    scales = {source: _train_scale(source, values) for source, values in channels.items()}
    cut = _Cut()
    for item in items:
        values = channels.get(item.source)
        if values is None:
            raise ValueError(f"{name}: expected the channel {item.source!r}, got none")
        end = item.start + lookback + horizon
        gaps = (breaks or {}).get(item.source, ())
        if end > len(values) or any(item.start < gap < end for gap in gaps):
            raise ValueError(
                f"{name}: expected {lookback} + {horizon} steps without a gap from "
                f"{item.start} of {item.source}, which has {len(values)}"
            )
        if not np.array_equal(values[item.start : end - horizon], item.values):
            raise ValueError(f"{name}: expected {item.id} to equal its channel at {item.start}")
        cut.future.append(values[end - horizon : end])
        at = np.array([item.start])
        cut.split.append(int(spans(at, lookback, horizon, len(values))[0]))
        cut.scale.append(scales[item.source])
    mean, std, low, high = np.array(cut.scale).T
    found = Windows(
        name,
        tuple(item.id for item in items),
        np.stack([item.values for item in items]),
        np.stack(cut.future),
        np.array(cut.split, dtype=np.int8),
        mean, std, low, high,
    )  # fmt: skip
    for number, span in enumerate(SPANS):
        if len(found.rows(number)) < 2:
            raise ValueError(f"{name}: expected at least 2 windows of the {span} span, got fewer")
    return found


def _train_scale(source: str, values: Floats) -> tuple[float, float, float, float]:
    train = values[: int(SHARES[0] * len(values))]
    if not len(train) or train.min() == train.max():
        raise ValueError(f"{source}: expected a train span that varies, got {len(train)} values")
    std = float(train.std()) + STD_FLOOR
    return float(train.mean()), std, float(train.min()), float(train.max())


def of_benchmark(benchmark: Benchmark, horizon: int | None = None) -> Windows:
    """The windows of a benchmark that was cut out of long channels.

    horizon: steps to be forecast; None: those that the benchmark kept room for.

    Raises:
        ValueError: no channels, a longer horizon than gaps were looked for in, a scale that was
            taken from more than the train span; and as `assemble`.
    """
    meta, name = benchmark.meta, benchmark.name
    room = int(meta.get("horizon", 0))
    if not benchmark.channels or not room:
        raise ValueError(
            f"{name}: expected windows of a long channel with a horizon (etth2, ettm2, saugeen, "
            "demand), got series without what follows them"
        )
    horizon = room if horizon is None else horizon
    if horizon > room:
        raise ValueError(f"horizon: expected at most the {room} steps of {name}, got {horizon}")
    if meta.get("scale", "none") != "none" and float(meta.get("fit_frac", 1.0)) > SHARES[0]:
        raise ValueError(
            f"{name}: expected a scale from the first {SHARES[0]:.0%} of the channel, got one "
            f"from {float(meta.get('fit_frac', 1.0)):.0%}"
        )
    items = [
        Item(benchmark.series(id_), benchmark.source(id_), benchmark.start(id_))
        for id_ in benchmark.ids
    ]
    return assemble(name, items, benchmark.channels, horizon)


def of_channel(
    name: str, channel: Channel, preset: Preset, *, n: int | None = None, seed: int = 2020
) -> Windows:
    """Windows of a channel, drawn without replacement from all that cross no gap.

    n: so many, None: the preset's; fewer where the channel has fewer.

    Raises:
        ValueError: the channel is too short for the preset; and as `assemble`.
    """
    gathered = windows(
        channel,
        lookback=preset.lookback,
        horizon=preset.horizon,
        n=preset.n if n is None else n,
        scale=preset.scale,
        fit_frac=SHARES[0],
        seed=seed,
    )
    breaks = {channel.source: channel.breaks}
    return assemble(name, gathered.items, gathered.channels, preset.horizon, breaks)
