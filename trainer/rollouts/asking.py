"""Rewards of a step, asked for as captions finish."""

from __future__ import annotations

from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING

from lineup_fast.reward_rows import join
from trainer.rollouts.sampling import Part, Rollout, gather

if TYPE_CHECKING:
    from lineup_fast.rewards import RewardBatch
    from trainer.policy import Prompts
    from trainer.validate import Reward


class Asking:
    """One rollout whose captions are scored part by part while the others are being sampled.

    worker: runs the calls of `reward`, one after the other, off the sampling thread.
    """

    def __init__(self, reward: Reward, ids: list[str], prompts: Prompts, step: int) -> None:
        self._reward, self._ids, self._prompts, self._step = reward, ids, prompts, step
        self._parts: list[tuple[Part, Future[RewardBatch]]] = []

    def ask(self, part: Part, worker: Executor) -> None:
        """Hands the captions of a part to the reward."""
        ids = [self._ids[row] for row in part.rows for _ in range(part.group_size)]
        call = worker.submit(self._reward.score, part.texts, ids, index=self._step)
        self._parts.append((part, call))

    def result(self) -> tuple[Rollout, RewardBatch]:
        """All captions with their rewards, in the order of the step's series; waits for them."""
        ordered = sorted(self._parts, key=lambda pair: pair[0].rows[0])
        captions = gather(self._ids, self._prompts, [part for part, _ in ordered])
        return captions, join([call.result() for _, call in ordered])
