"""Reward batches taken apart into single captions and put together again."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lineup_fast.rewards import RewardBatch

# Of a caption each, without `right`, which not every reward has.
ARRAYS = ("reward", "accuracy", "picks", "label_logprobs", "label_mass", "valid", "asked")
SHARED_COUNTS = ("groups", "prefilled_tokens", "prompt_tokens")  # of a batch, not of a caption


def split(batch: RewardBatch) -> list[RewardBatch]:
    """One batch per caption, in order.

    Ties, questions and the like are the caption's own; groups and tokens are dealt out evenly in
    whole numbers, so that they add up to those of the batch.
    """
    n = len(batch.reward)
    rows = []
    for at in range(n):
        part = slice(at, at + 1)
        row = replace(
            batch,
            reason=batch.reason[part],
            index=batch.index[part],
            right=None if batch.right is None else batch.right[part],
            **{name: getattr(batch, name)[part] for name in ARRAYS},
        )
        row.counts = _own_counts(row)
        for name in SHARED_COUNTS:
            total = batch.counts.get(name, 0)
            row.counts[name] = total * (at + 1) // n - total * at // n
        rows.append(row)
    return rows


def _own_counts(row: RewardBatch) -> dict[str, int]:
    best = row.label_logprobs.max(axis=2, keepdims=True)
    tied = (row.label_logprobs == best).sum(axis=2) > 1
    return {
        "captions": 1,
        "questions": int(row.asked.sum()),
        "invalid": int((~row.valid).sum()),
        "ties": int((tied & row.asked).sum()),
        "unparsed": int((row.asked & (row.picks < 0)).sum()),
    }


def free_of_charge(row: RewardBatch) -> RewardBatch:
    """The same answer given once more: no group and no token was spent on it."""
    return replace(row, counts={**row.counts, **dict.fromkeys(SHARED_COUNTS, 0)})


def join(rows: Sequence[RewardBatch]) -> RewardBatch:
    """One batch of at least one; counts add up, of timings the longest remains."""
    right = [row.right for row in rows if row.right is not None]
    counts: dict[str, int] = {}
    timings: dict[str, float] = {}
    for row in rows:
        for name, count in row.counts.items():
            counts[name] = counts.get(name, 0) + count
        for name, seconds in row.timings.items():
            timings[name] = max(timings.get(name, 0.0), seconds)
    arrays: dict[str, Any] = {
        name: np.concatenate([getattr(row, name) for row in rows]) for name in ARRAYS
    }
    return replace(
        rows[0],
        reason=[reason for row in rows for reason in row.reason],
        timings=timings,
        counts=counts,
        fingerprints=dict(rows[0].fingerprints),
        index=[index for row in rows for index in row.index],
        right=np.concatenate(right) if len(right) == len(rows) else None,
        **arrays,
    )
