"""What is known without a caption, and what a few true points say as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from trainer.evaluate.bottleneck.windows import TEST, TRAIN, Task, Windows
from trainer.evaluate.statistics import derangement

Floats = NDArray[np.float64]
DETACH_SEED = 1234
POINTS = (8, 16)


def naive(windows: Windows, task: Task) -> Floats:
    """What is said of the test windows without any learning, f64[n_test,out], as `targets`.

    forecast: the last value stays. reconstruct: the mean of the train windows, step by step.
    """
    targets = windows.targets(task)
    test = windows.rows(TEST)
    if task == "reconstruct":
        return np.tile(targets[windows.rows(TRAIN)].mean(axis=0), (len(test), 1))
    last = (windows.series[:, -1] - windows.mean) / windows.std
    return np.repeat(last[test, None], targets.shape[1], axis=1)


def detached(captions: Mapping[str, str], windows: Windows) -> dict[str, str]:
    """Every window with the caption of another one of its span, none with its own.

    Captions change hands within train, val and test, so that each span still reads what was
    written of it. Purged windows keep theirs; they are not used.

    Raises:
        ValueError: a span of fewer than two windows.
    """
    given = dict(captions)
    for span in range(TRAIN, TEST + 1):
        ids = windows.span_ids(span)
        from_whom = derangement(ids, DETACH_SEED, captions)
        if sorted(from_whom.values()) != sorted(ids) or any(i == j for i, j in from_whom.items()):
            raise AssertionError("derangement: expected a permutation without fixed points")
        given |= {id_: captions[other] for id_, other in from_whom.items()}
    return given


def points(series: Floats, count: int, decimals: int) -> str:
    """The values of f64[T] at ``count`` even steps as text, first and last among them.

    Raises:
        ValueError: fewer than 2 or more points than steps.
    """
    if not 2 <= count <= len(series):
        raise ValueError(f"count: expected 2 to {len(series)} points, got {count}")
    steps = np.rint(np.linspace(0, len(series) - 1, count)).astype(int)
    return ", ".join(f"{step}: {series[step] + 0.0:.{decimals}f}" for step in steps)


def printed_decimals(series: Floats) -> int:
    """Decimals that show three digits of the largest value of f64[N,T]; 0 for whole numbers."""
    if np.array_equal(series, np.rint(series)):
        return 0
    return int(np.clip(2 - np.floor(np.log10(np.abs(series).max())), 0, 12))


def caption_free(windows: Windows, counts: Sequence[int] = POINTS) -> dict[str, dict[str, str]]:
    """By control, captions that no captioner wrote: "empty", and "points8" and so on.

    A count above the window's length is not asked.
    """
    decimals = printed_decimals(windows.series)
    found = {"empty": dict.fromkeys(windows.ids, "")}
    for count in counts:
        if count <= windows.series.shape[1]:
            found[f"points{count}"] = {
                id_: points(series, count, decimals)
                for id_, series in zip(windows.ids, windows.series, strict=True)
            }
    return found
