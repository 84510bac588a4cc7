"""When to stop a run that learns nothing any more, as a pure function of its last rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainer.config import RlooConfig

OPENING_WORDS = 8


class CollapseError(RuntimeError):
    """The run was ended early, its last checkpoint written; the message says why."""


def distinct_openings(texts: Sequence[str]) -> float:
    """Different beginnings of eight words, as a share of the captions.

    Source: the reference's validation counts the same openings as a sign of collapse.
    """
    return len({" ".join(text.split()[:OPENING_WORDS]) for text in texts}) / max(1, len(texts))


def reason(rows: Sequence[dict[str, Any]], config: RlooConfig) -> str | None:
    """Why the run should end, None while it should not.

    rows: metrics of the latest training steps, oldest first. A sign has to hold in each of the
    last `collapse_window` steps, so that one odd step ends nothing.
    """
    window = config.collapse_window
    latest = [row for row in rows if "reward" in row][-window:]
    if window == 0 or len(latest) < window:
        return None

    def held(name: str, bad: Callable[[float], bool]) -> bool:
        values = [row.get(name) for row in latest]
        return all(value is not None and bad(value) for value in values)

    if held("lineup/invalid_frac", lambda x: x >= config.collapse_invalid):
        return (
            f"at least {config.collapse_invalid:.0%} of the captions got no answer from the "
            f"verifier in each of the last {window} steps; look at its log"
        )
    if held("frac_reward_zero_std", lambda x: x >= config.collapse_zero_std):
        return (
            f"in at least {config.collapse_zero_std:.0%} of the groups all captions got the same "
            f"reward, in each of the last {window} steps; such groups teach nothing. Try another "
            "seed, a lower learning rate, or harder candidates if the accuracy is near 1"
        )
    if held("lineup/distinct_openings_frac", lambda x: x <= config.collapse_openings):
        return (
            f"at most {config.collapse_openings:.1%} of the captions began differently in each of "
            f"the last {window} steps; the captioner says the same of every chart. Try a lower "
            "learning rate, or go back to an earlier checkpoint"
        )
    return None
