"""The numbers of a step, under the names people grep for, and the stop watch."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from trainer.collapse import distinct_openings

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lineup_fast.rewards import RewardBatch
    from trainer.rollouts import Rollout


def step_metrics(captions: Rollout, scores: RewardBatch) -> dict[str, Any]:
    """Metrics of a rollout and its scores; means are over valid captions, reward_std and
    frac_reward_zero_std over groups with at least two of them.
    """
    valid = scores.valid
    lengths = np.array([len(ids) for ids in captions.token_ids])
    groups = [
        scores.reward[rows][valid[rows]]
        for rows in np.arange(len(valid)).reshape(-1, captions.group_size)
    ]
    spreads = np.array([np.std(g, dtype=np.float64) for g in groups if len(g) >= 2])
    return {
        "reward": mean(scores.reward[valid]),
        "reward_std": mean(spreads),
        "frac_reward_zero_std": mean(spreads == 0.0),
        "completions/mean_length": mean(lengths),
        "completions/clipped_ratio": 1.0 - mean(np.array(captions.finished)),
        "entropy": captions.entropy,
        "lineup/acc": mean(scores.accuracy[valid]),
        "lineup/acc_by_position": scores.accuracy_by_position(),
        "lineup/label_mass": mean(scores.label_mass[scores.asked]),
        "lineup/invalid_frac": 1.0 - mean(valid),
        "lineup/groups_unlearnable": len(groups) - len(spreads),
        "lineup/ties": int(scores.counts.get("ties", 0)),
        "lineup/shared_frac": _shared(scores.counts),
        "lineup/distinct_openings_frac": distinct_openings(captions.texts),
        "lineup/unique_frac": len(set(captions.texts)) / len(captions.texts),
    }


def _shared(counts: dict[str, int]) -> float:
    """Share of the verifier's prompt tokens that a shared prefix saved."""
    asked = counts.get("prompt_tokens", 0)
    return 1.0 - counts["prefilled_tokens"] / asked if asked else 0.0


def mean(values: NDArray[Any]) -> float:
    """Mean, NaN (null in the record) where there is nothing."""
    return float(np.mean(values, dtype=np.float64)) if len(values) else float("nan")


class Clock:
    """Seconds of the stages of a step, as they are recorded."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        name = f"time/{stage}_s"
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started
