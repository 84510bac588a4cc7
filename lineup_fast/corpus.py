"""Making a corpus: windows by length with features, neighbour pools, splits and a fingerprint."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lineup_fast import kernels, windows
from lineup_fast.readers import Channel, Refusal, clean
from lineup_fast.store import COLUMNS, FORMAT, Corpus, Group, ItemMeta, Summary
from lineup_fast.windows import SPLITS, Windows

__all__ = ["Corpus", "ItemMeta", "Summary", "build", "item_id"]

Progress = Callable[[str, int, int], None]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class _Choices:
    """The arguments of `build` that decide what is in a corpus."""

    lengths: tuple[int, ...]
    sample: int | None
    seed: int
    scale: tuple[float, float] | None
    eta: float
    overlap: Literal["run", "window"]
    features_scale: str
    k: int
    split: tuple[float, float, float]
    stride: int | None

    def __post_init__(self) -> None:
        if not self.lengths or min(self.lengths) < 1:
            raise ValueError(f"lengths: expected positive numbers, got {list(self.lengths)}")
        if self.sample is not None and self.sample < 1:
            raise ValueError(f"sample: expected a positive number, got {self.sample}")
        if self.scale is not None and not -1e15 <= self.scale[0] < self.scale[1] <= 1e15:
            raise ValueError(f"scale: expected low < high within 1e15, got {self.scale}")
        if not 0 <= self.eta <= 1:
            raise ValueError(f"eta: expected 0 to 1, got {self.eta}")
        if self.overlap not in kernels.RULES:
            raise ValueError(f"overlap: expected run or window, got {self.overlap!r}")
        if self.features_scale not in ("zscore", "none"):
            raise ValueError(
                f"features_scale: expected zscore or none, got {self.features_scale!r}"
            )
        if not 2 <= self.k <= 12:
            raise ValueError(f"k: expected 2 to 12, got {self.k}")
        sound = len(self.split) == 3 and all(0 <= share < math.inf for share in self.split)
        if not sound or self.split[0] <= 0:
            raise ValueError(f"split: expected three shares, train above 0, got {self.split}")
        if self.stride is not None and self.stride < 1:
            raise ValueError(f"stride: expected a positive number, got {self.stride}")

    @property
    def pool_size(self) -> int:
        return max(8, 2 * (self.k - 1))

    def max_run(self, length: int) -> int:
        return max(1, math.floor(self.eta * length + 1e-9))

    def quotas(self, length: int) -> list[int] | None:
        """Windows per split to sample of one length; None: all."""
        if self.sample is None:
            return None
        shares = windows.fair_shares([self.sample] * len(self.lengths), self.sample)
        total = shares[self.lengths.index(length)]
        parts = [math.floor(total * share / sum(self.split)) for share in self.split]
        return [parts[0] + total - sum(parts), *parts[1:]]


class _Where(NamedTuple):
    """What computes; leaves no trace in a corpus."""

    threads: int
    device: Literal["cpu", "cuda"]


def build(
    channels: Iterable[Channel],
    *,
    lengths: Sequence[int],
    sample: int | None = None,
    seed: int = 0,
    scale: tuple[float, float] | None = None,
    eta: float = 0.2,
    overlap: Literal["run", "window"] = "run",
    features_scale: Literal["zscore", "none"] = "zscore",
    k: int = 4,
    split: tuple[float, float, float] = (0.8, 0.1, 0.1),
    test_sources: Sequence[str] | None = None,
    stride: int | None = None,
    refusals: Sequence[Refusal] = (),
    threads: int = 0,
    device: Literal["cpu", "cuda"] = "cpu",
    progress: Progress | None = None,
) -> Corpus:
    """Make a corpus out of channels.

    lengths : window lengths in steps; sample : number of windows, in equal shares per length and
    within it over the data sets (None: all); stride : steps between windows (None: half a length)
    scale : map each channel to whole numbers in this range (bounds from its train part)
    eta : overlap budget as a share of the length; overlap : compare values ("run") or positions
    k : candidates of a question; pools hold max(8, 2(k-1)) neighbours
    split : shares of train, val and test; test_sources : data sets held out (None: chosen by seed)
    device : where neighbours are searched; the corpus is the same
    Source: the paper's hard negatives; the distance is z-scored as in the reference code.

    Raises ValueError if nothing is left, RuntimeError if there is no such device.
    """
    kernels.require_device(device)
    choices = _Choices(
        tuple(sorted(set(lengths))),
        sample,
        seed,
        None if scale is None else (float(scale[0]), float(scale[1])),
        eta,
        overlap,
        features_scale,
        k,
        (float(split[0]), float(split[1]), float(split[2])),
        stride,
    )
    summary = Summary(refusals=list(refusals))
    kept: list[Channel] = []
    for channel in channels:
        cleaned, refused = clean(channel)
        kept += cleaned
        summary.refusals += refused
    if not kept:
        raise ValueError("channels: expected at least one with finite values, got none")
    plan = windows.plan_splits(kept, choices.split, test_sources, seed)
    summary.split_by = dict(sorted(plan.by.items()))
    where = _Where(threads, device)
    return _build(kept, choices, plan, summary, where, progress or (lambda *_: None))


def _build(
    channels: Sequence[Channel],
    choices: _Choices,
    plan: windows.SplitPlan,
    summary: Summary,
    where: _Where,
    progress: Progress,
) -> Corpus:
    ready: Sequence[Channel | None] = channels
    bounds: dict[str, tuple[float, float]] = {}
    if choices.scale is not None:
        ready, bounds = windows.scale_channels(channels, plan, choices.scale)
        for channel, scaled in zip(channels, ready, strict=True):
            if scaled is None:
                reason = "train part is constant or empty, cannot be scaled"
                summary.refusals.append(Refusal(channel.source, 0, "", reason))
    settings: dict[str, Any] = asdict(choices) | {
        "format": FORMAT,
        "pool_size": choices.pool_size,
        "scale_quantiles": windows.SCALE_QUANTILES,
        "scale_bounds": dict(sorted(bounds.items())),
        "split_by": summary.split_by,
        "test_sources": plan.held_out,
    }
    settings = json.loads(json.dumps(settings))  # lists for tuples, as they come back from disk
    groups: dict[int, Group] = {}
    captions: dict[str, str] = {}
    for number, length in enumerate(choices.lengths):
        progress(f"series of {length} steps", number, len(choices.lengths))
        counts: dict[str, int] = dict.fromkeys(COLUMNS, 0)
        cut = _select(ready, channels, plan, length, choices, counts)
        if len(cut.values):
            groups[length] = _group(cut, channels, choices, counts, where)
            captions |= _captions(groups[length], channels)
        summary.lengths[length] = counts
    progress("done", len(choices.lengths), len(choices.lengths))
    if not groups:
        longest = max(len(channel.values) for channel in channels)
        raise ValueError(
            f"lengths: expected some that the data can fill (longest channel: {longest} values), "
            f"got {list(choices.lengths)}"
        )
    return Corpus(settings, channels, groups, captions, summary)


def _select(
    ready: Sequence[Channel | None],
    channels: Sequence[Channel],
    plan: windows.SplitPlan,
    length: int,
    choices: _Choices,
    counts: dict[str, int],
) -> Windows:
    """The windows of one length after filters and sampling."""
    cut = windows.cut_all(ready, plan, length, choices.stride or max(1, length // 2))
    counts["windows"] = len(cut)
    if choices.scale is not None and len(cut):
        scale = choices.scale
        flat = np.concatenate([windows.flat(values, scale) for values in cut.blocks()])
        counts["flat"] = int(flat.sum())
        cut = cut.take(np.flatnonzero(~flat))
    keep = windows.first_of_equals(cut.blocks())
    counts["duplicates"] = len(cut) - len(keep)
    cut = cut.take(keep)
    quotas = choices.quotas(length)
    if quotas is not None:
        cut = cut.take(windows.sample_rows(cut, channels, quotas, choices.seed))
    counts["series"] = len(cut)
    return cut.copy()


def _group(
    cut: Windows,
    channels: Sequence[Channel],
    choices: _Choices,
    counts: dict[str, int],
    where: _Where,
) -> Group:
    """Features and pools of the windows of one length."""
    length = cut.values.shape[1]
    decimals = run_decimals(float(np.abs(cut.values).max()))
    max_run = choices.max_run(length)
    phi = kernels.features(cut.values, threads=where.threads)
    z = phi
    if choices.features_scale == "zscore":
        std = phi.std(axis=0)
        z = (phi - phi.mean(axis=0)) / np.where(std > 0, std, 1.0)
    names = sorted({channel.source for channel in channels})
    code = {name: number for number, name in enumerate(names)}
    pool = kernels.neighbours(
        z,
        cut.values,
        k=choices.pool_size,
        max_run=max_run,
        decimals=decimals,
        rule=choices.overlap,
        source=np.array([code[channels[c].source] for c in cut.channel], dtype=np.int32),
        start=cut.start,
        group=cut.split.astype(np.int32),
        threads=where.threads,
        device=where.device,
    )
    size = (pool >= 0).sum(axis=1)
    enough = size >= choices.k - 1
    runs = _longest_constant_run(np.round(cut.values, min(decimals, 300)))
    counts["constant"] = int((runs == length).sum())
    counts["constant_runs"] = int((runs > max_run).sum())
    counts["full_pool"] = int((size == choices.pool_size).sum())
    counts["left_out"] = int((~enough).sum())
    counts["short_pool"] = len(size) - counts["full_pool"] - counts["left_out"]
    for number, name in enumerate(SPLITS):
        counts[name] = int((enough & (cut.split == number)).sum())
    ids = [
        item_id(values, channels[channel].source, int(start))
        for values, channel, start in zip(cut.values, cut.channel, cut.start, strict=True)
    ]
    return Group(ids, cut, phi, pool, decimals, max_run)


def run_decimals(largest: float) -> int:
    """Decimals that values of this magnitude are rounded to before runs are compared.

    Source: the reference's 4, more where all values are so small that 4 would make them equal.
    """
    decimals = max(4, 4 - math.floor(math.log10(largest))) if largest > 0 else 4
    return min(decimals, kernels.MAX_ROUNDING)


def item_id(values: Floats, source: str, start: int) -> str:
    """Content hash of an item: 16 hex digits of sha256 over values, source and start."""
    digest = hashlib.sha256(np.ascontiguousarray(values, dtype="<f8").tobytes())
    digest.update(json.dumps([source, start]).encode())
    return digest.hexdigest()[:16]


def _longest_constant_run(values: Floats) -> NDArray[np.int64]:
    """Longest stretch of one value in each row, int64[N]."""
    best = np.ones(len(values), dtype=np.int64)
    now = best.copy()
    for step in range(1, values.shape[1]):
        now = np.where(values[:, step] == values[:, step - 1], now + 1, 1)
        best = np.maximum(best, now)
    return best


def _captions(group: Group, channels: Sequence[Channel]) -> dict[str, str]:
    found = {}
    for item, channel in zip(group.ids, group.windows.channel, strict=True):
        caption = channels[channel].caption
        if caption is not None:
            found[item] = caption
    return found
