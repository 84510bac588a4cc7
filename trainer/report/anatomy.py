"""Anatomy of the captions of one validation pass: their length, what they name, what is true."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainer.report.claims import Axis, claims, time_is_true, value_is_true

OPENING_WORDS = 5
_DIGITS = re.compile(r"\d+(?:[.,]\d+)*")

Series = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class CaptionCheck:
    """Counts for one caption against one series."""

    n_values: int
    true_values: int
    n_times: int
    checked_times: int
    true_times: int


@dataclass(frozen=True, slots=True)
class Anatomy:
    """Means and shares over the captions of a validation pass; None where nothing could be checked.

    ``*_true_elsewhere`` holds the same captions against another series of the same length: what
    such sentences get right by luck.
    """

    n_captions: int
    characters: float
    words: float
    times: float
    values: float
    values_true: float | None
    values_true_elsewhere: float | None
    times_true: float | None
    times_true_elsewhere: float | None
    distinct_openings: int
    common_opening: str
    common_opening_frac: float
    distinct_captions: int


def check(caption: str, series: Series, axis: Axis = None) -> CaptionCheck:
    """Count how many values and times ``caption`` names and how many are true of ``series`` [T]."""
    values, times = claims(caption, len(series))
    verdicts = [time_is_true(claim, series, axis) for claim in times]
    return CaptionCheck(
        n_values=len(values),
        true_values=sum(value_is_true(claim, series, axis) for claim in values),
        n_times=len(times),
        checked_times=sum(verdict is not None for verdict in verdicts),
        true_times=sum(verdict is True for verdict in verdicts),
    )


def opening(caption: str) -> str:
    """Return the first words of a caption in lower case, every number written as ``#``."""
    return " ".join(_DIGITS.sub("#", caption.lower()).split()[:OPENING_WORDS])


def anatomy(captions: Sequence[str], series: Sequence[Series], axis: Axis = None) -> Anatomy:
    """Return the anatomy of ``captions`` [n], each about the series [T_i] of the same index.

    ``axis`` is the y-range of the charts where it is fixed.

    Raises
    ------
    ValueError
        When there is nothing to measure or the lengths differ.
    """
    if not captions or len(captions) != len(series):
        raise ValueError(
            f"captions: expected one per series, at least 1, got {len(captions)} of {len(series)}"
        )
    own = [check(c, s, axis) for c, s in zip(captions, series, strict=True)]
    elsewhere = [check(captions[i], series[j], axis) for i, j in other_series(series)]
    openings = Counter(opening(caption) for caption in captions)
    common, count = openings.most_common(1)[0]
    n = len(captions)
    return Anatomy(
        n_captions=n,
        characters=sum(len(c) for c in captions) / n,
        words=sum(len(c.split()) for c in captions) / n,
        times=sum(c.n_times for c in own) / n,
        values=sum(c.n_values for c in own) / n,
        values_true=_share(own, "true_values", "n_values"),
        values_true_elsewhere=_share(elsewhere, "true_values", "n_values"),
        times_true=_share(own, "true_times", "checked_times"),
        times_true_elsewhere=_share(elsewhere, "true_times", "checked_times"),
        distinct_openings=len(openings),
        common_opening=common,
        common_opening_frac=count / n,
        distinct_captions=len(set(captions)),
    )


def other_series(series: Sequence[Series]) -> list[tuple[int, int]]:
    """Pair every item with the next one of equal length; lengths that occur once have no pair."""
    by_length: dict[int, list[int]] = defaultdict(list)
    for i, values in enumerate(series):
        by_length[len(values)].append(i)
    return [
        (i, group[(k + 1) % len(group)])
        for group in by_length.values()
        if len(group) > 1
        for k, i in enumerate(group)
    ]


def _share(checks: list[CaptionCheck], part: str, whole: str) -> float | None:
    total = sum(getattr(c, whole) for c in checks)
    return sum(getattr(c, part) for c in checks) / total if total else None
