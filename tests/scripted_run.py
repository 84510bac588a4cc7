"""A run of the real trainer on a random captioner with a scripted reward, also as a program.

``python tests/scripted_run.py MODEL RUN STEPS [--resume] [--kill-at N] [--async-depth N]
[--every N] [--set NAME=VALUE]...``
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from lineup_fast.rewards import RewardBatch
from trainer.config import RlooConfig
from trainer.record.console import Console
from trainer.rloo import train

K = 4


class FewSeries:
    """A corpus of random walks of 12 whole numbers, a third for each split."""

    fingerprint = "few"

    def __init__(self, n: int = 24) -> None:
        self._ids = [f"{i:04d}" for i in range(n)]

    def ids(self, split: str | None = None) -> list[str]:
        if split is None:
            return list(self._ids)
        return self._ids[("train", "val", "test").index(split) :: 3]

    def series(self, item: str) -> np.ndarray:
        steps = np.random.default_rng(int(item)).integers(-9, 10, 12)
        return np.clip(50 + np.cumsum(steps), 0, 100).astype(float)

    def pool(self, item: str) -> list[str]:
        return [other for other in self._ids if other != item][:8]


class ScriptedReward:
    """Reward 2 x rule(caption); captions that `fails` picks out are invalid."""

    def __init__(
        self,
        rule: Callable[[str], float],
        fails: Callable[[str], bool] = lambda caption: False,
        before: Callable[[int | None], None] = lambda index: None,
    ) -> None:
        self._rule, self._fails, self._before = rule, fails, before

    def score(
        self, captions: Sequence[str], ids: Sequence[str], *, index: int | None = None
    ) -> RewardBatch:
        self._before(index)
        n = len(captions)
        valid = np.array([not self._fails(c) for c in captions])
        accuracy = np.array([self._rule(c) for c in captions], np.float32)
        accuracy[~valid] = np.nan
        right = np.nan_to_num(accuracy)[:, None] * K > np.arange(K)
        picks = np.where(right, np.arange(K), (np.arange(K) + 1) % K).astype(np.int32)
        logprobs = np.full((n, K, K), -2.0, np.float32)
        return RewardBatch(
            reward=2 * accuracy,
            accuracy=accuracy,
            picks=picks,
            label_logprobs=logprobs,
            label_mass=np.exp(logprobs).sum(-1),
            valid=valid,
            reason=[None if v else "scripted" for v in valid],
            timings={},
            counts={"ties": 0},
            asked=np.repeat(valid[:, None], K, axis=1),
        )


def vowels(caption: str) -> float:
    """Share of lower-case letters from the front of the alphabet: a rule that is easy to learn."""
    return sum("a" <= c <= "m" for c in caption) / max(1, len(caption))


def settings(model: Path, run: Path, **changes: object) -> RlooConfig:
    """A few captions of a few tokens, with two updates a step."""
    values: dict[str, object] = {
        "run": run,
        "model": str(model),
        "steps": 6,
        "charts": 4,
        "group_size": 4,
        "captions_per_update": 8,
        "micro_groups": 2,
        "charts_at_once": 3,
        "max_new_tokens": 8,
        "caption_prompt": "Describe.",
        "chart_style": "tiny",
        "lr": 3e-3,
        "warmup_updates": 2,
        "eval_every": 2,
        "n_val": 4,
        "n_test": 4,
        "checkpoint_every": 2,
        "compute_dtype": "float32",
        "gradient_checkpointing": False,
        "threads": 1,
        "seed": 3,
    }
    return RlooConfig(**(values | changes))  # type: ignore[arg-type]


def _value(text: str) -> object:
    try:
        return int(text) if text.isdigit() else float(text)
    except ValueError:
        return text


def main(arguments: list[str]) -> None:
    model, run, steps = Path(arguments[0]), Path(arguments[1]), int(arguments[2])

    def number(flag: str) -> int | None:
        return int(arguments[arguments.index(flag) + 1]) if flag in arguments else None

    kill_at, depth = number("--kill-at"), number("--async-depth") or 0

    def maybe_die(index: int | None) -> None:
        if index is not None and index == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    reward = ScriptedReward(vowels, lambda caption: caption.startswith("x"), maybe_die)
    resume = "--resume" in arguments
    every = number("--every") or 2
    given = dict(arguments[i + 1].split("=") for i, a in enumerate(arguments) if a == "--set")
    changes = {name: _value(text) for name, text in given.items()}
    config = settings(model, run, steps=steps, resume=resume, async_depth=depth, eval_every=every,
                      checkpoint_every=every, **changes)  # fmt: skip
    train(config, FewSeries(), reward, console=Console("test", steps, enabled=False))


if __name__ == "__main__":
    main(sys.argv[1:])
