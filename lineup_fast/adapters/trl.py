"""TRL: a reward function for RLOOTrainer and GRPOTrainer (1.x; Unsloth runs the same trainers)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lineup_fast.client import RewardClient

Completion = str | Sequence[dict[str, Any]]


class LineupReward:
    """``RLOOTrainer(reward_funcs=LineupReward(client), …)``.

    The data set needs the column ``uid`` (``lineup-fast export --to trl``). The draw index is the
    trainer's step, so that a group split over ranks meets the same distractors. A caption without
    an answer gets None, which TRL leaves out of the baseline.
    """

    def __init__(self, client: RewardClient) -> None:
        self.client = client
        self.__name__ = "lineup"  # TRL's metric: rewards/lineup/mean

    async def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Completion],
        *,
        uid: Sequence[str],
        trainer_state: Any = None,
        log_metric: Callable[[str, float], None] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        """Rewards of the completions, None where there is no answer."""
        del prompts, columns
        index = None if trainer_state is None else int(trainer_state.global_step)
        captions = [completion_text(completion) for completion in completions]
        batch = await self.client.ascore(captions, list(uid), index=index)
        if log_metric is not None and len(captions):
            if batch.valid.any():
                log_metric("lineup/acc", float(batch.accuracy[batch.valid].mean()))
            log_metric("lineup/invalid_frac", float(1 - batch.valid.mean()))
        return [
            float(reward) if valid else None
            for reward, valid in zip(batch.reward, batch.valid, strict=True)
        ]


def completion_text(completion: Completion) -> str:
    """The text of a completion: a string, or messages whose contents are strings or text parts."""
    if isinstance(completion, str):
        return completion
    pieces: list[str] = []
    for message in completion:
        content = message.get("content") or ""
        parts = [{"text": content}] if isinstance(content, str) else content
        pieces += [str(part.get("text", "")) for part in parts]
    return "".join(pieces)
