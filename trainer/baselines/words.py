"""The words of the settings that choose a reward: which go together, and the name they make."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainer.config import RlooConfig

_MOST_K = {"reverse": 2, "synthetic": 4}  # kinds of distractors that can make only so many


def check_reward(config: RlooConfig) -> None:
    """Raises ValueError where words of one reward stand beside another."""
    kind = config.distractors
    if config.reward == "answerability" and config.questions is None:
        raise ValueError("questions: expected a bank with reward answerability, got None")
    if config.lookalikes is not None and kind != "nearest":
        raise ValueError(f"lookalikes: expected distractors nearest, got {kind}")
    standard = kind == "nearest" and config.lookalikes is None
    if config.reward_url and not (standard and config.reward == "identification"):
        raise ValueError(
            "reward_url: expected the identification reward with nearest distractors, whose "
            f"servers there are, got {config.reward} with {kind}"
        )
    if config.reward != "identification" and not standard:
        raise ValueError(
            f"distractors: expected nearest, they have no part in {config.reward}, got {kind}"
        )
    most = _MOST_K.get(kind, config.k)
    if config.k > most:
        raise ValueError(f"k: expected at most {most} with {kind} distractors, got {config.k}")


def reward_name(config: RlooConfig) -> str:
    """What names the reward in results: the recipe, or the baseline with its scoring."""
    kind = "lookalikes" if config.lookalikes is not None else config.distractors
    name = f"{config.reward}.{config.scoring}"
    if config.reward == "identification":
        name = config.recipe().name + ("" if kind == "nearest" else f".{kind}")
    return name + (".masked" if config.mask_numbers else "")
