"""Runs of the trainer in float64 for several ranks to repeat, also as a program.

``torchrun --nproc-per-node 2 tests/world_run.py MODEL FOLDER JOB [JOB …]``
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from lineup_fast.rewards import RewardBatch
from tests.scripted_run import FewSeries, ScriptedReward, settings, vowels
from trainer import sft
from trainer.config import RlooConfig
from trainer.policy import Captioner
from trainer.record.console import Console
from trainer.rloo import step_ids, train
from trainer.sft_config import SftConfig
from trainer.teacher import Teacher, TeacherCaption
from trainer.world import ALONE, World

# 8 series a step, two updates of 4 series, 2 of them for either rank.
SHAPE: dict[str, Any] = {
    "steps": 3, "charts": 8, "captions_per_update": 16, "eval_every": 3, "checkpoint_every": 3,
    "n_val": 5,
}  # fmt: skip
JOBS: dict[str, dict[str, Any]] = {
    "token_mean": {"micro_groups": 1},
    "caption_sum": {
        "normaliser": "caption_sum", "whiten": True, "gradient_checkpointing": True,
        "freeze_vision": True, "captions_per_update": 32, "async_depth": 1,
    },
    "adapters": {"lora_rank": 2, "lr": 1e-2, "gradient_checkpointing": True},
    "narrow": {  # float32 adapters on bfloat16 weights
        "steps": 1, "lora_rank": 2, "frozen_dtype": "bfloat16", "compute_dtype": "bfloat16",
        "captions_per_update": 32, "checkpoint_every": 1, "eval_every": 1,
    },
    "one_to_two": {"micro_groups": 1},
    "two_to_one": {"micro_groups": 1},
    # In float32; rank 1 has no item to validate on, and its reward breaks in step 2.
    "fails": {"captions_per_update": 32, "n_val": 1, "checkpoint_every": 1},
}  # fmt: skip
SINGLE = ("fails", "narrow")
TAUGHT: dict[str, dict[str, Any]] = {
    "taught": {},
    "taught_adapters": {"lora_rank": 2, "gradient_checkpointing": True},
}


def job(name: str, model: Path, folder: Path, **changes: Any) -> RlooConfig:
    """Settings of a job; its run lies in FOLDER/NAME."""
    return settings(model, folder / name, **(SHAPE | JOBS[name] | changes))


def lesson(name: str, model: Path, folder: Path, **changes: Any) -> SftConfig:
    """Settings of a job of supervised training; its run lies in FOLDER/NAME."""
    values: dict[str, Any] = {
        "run": folder / name, "model": str(model), "updates": 3, "captions_per_update": 6,
        "micro_captions": 2, "max_tokens": 40, "caption_prompt": "Describe.",
        "chart_style": "tiny", "lr": 1e-2, "eval_every": 3, "n_val": 5,
        "compute_dtype": "float32", "gradient_checkpointing": False, "threads": 1,
    }  # fmt: skip
    return SftConfig(**(values | TAUGHT[name] | changes))


def teach(config: SftConfig, world: World = ALONE) -> bool:
    """One run of supervised training, on captions of different lengths."""
    texts = ("It rises.", "It falls, then rises again.")
    captions = [TeacherCaption(item, text) for item in FewSeries().ids() for text in texts]
    quiet = Console("test", 3, enabled=False)
    return sft.train(config, FewSeries(), Teacher(captions), console=quiet, world=world)


class UnevenReward(ScriptedReward):
    """The scripted reward, with groups of some series and steps that teach nothing.

    In order of a step's series: places 0, 1, 4, 5 are rank 0's, the others rank 1's.
    """

    SAME = ((1, 2), (1, 3), (2, 6))  # step, place: all captions get the same reward
    INVALID = ((2, 0), (2, 4), (2, 5), (3, 0), (3, 1), (3, 2), (3, 3))

    def __init__(
        self, config: RlooConfig, before: Callable[[int | None], None] = lambda index: None
    ) -> None:
        super().__init__(vowels, lambda caption: caption.startswith("x"), before)
        train_ids = FewSeries().ids("train")
        self._order = {
            step: step_ids(train_ids, config.charts, config.seed, step) for step in (1, 2, 3)
        }

    def score(
        self, captions: Sequence[str], ids: Sequence[str], *, index: int | None = None
    ) -> RewardBatch:
        batch = super().score(captions, ids, index=index)
        for row, item in enumerate(ids if index is not None else []):
            place = (index, self._order[index or 0].index(item))
            if place in self.SAME:
                batch.reward[row] = batch.accuracy[row] = 0.5
                batch.valid[row] = True
            if place in self.INVALID:
                batch.reward[row] = batch.accuracy[row] = float("nan")
                batch.valid[row] = False
        return batch


def double_precision() -> Any:
    """`Captioner.load` for weights in float64, in which nothing hides behind rounding."""
    plain = Captioner.load.__func__  # type: ignore[attr-defined]

    def load(cls: type[Captioner], path: Path, **options: Any) -> Captioner:
        captioner: Captioner = plain(cls, path, **(options | {"dtype": torch.float64}))
        return captioner

    return classmethod(load)


def interrupt_at(step: int) -> Callable[[int | None], None]:
    """What asks this process to stop when the captions of a step are scored."""
    asked: list[int] = []

    def before(index: int | None) -> None:
        if index == step and not asked:
            asked.append(index)
            os.kill(os.getpid(), signal.SIGINT)

    return before


def fail_at(step: int) -> Callable[[int | None], None]:
    """A reward that breaks at a step."""

    def before(index: int | None) -> None:
        if index == step:
            raise RuntimeError("scripted failure")

    return before


def run(
    config: RlooConfig,
    world: World = ALONE,
    before: Callable[[int | None], None] = lambda index: None,
) -> bool:
    """One run; False where it was interrupted."""
    quiet = Console("test", 3, enabled=False)
    reward = UnevenReward(config, before)
    return train(config, FewSeries(), reward, console=quiet, world=world)


def main(arguments: list[str]) -> None:
    model, folder = Path(arguments[0]), Path(arguments[1])
    single, double = Captioner.__dict__["load"], double_precision()
    world = World.join("cpu")
    assert world.size == 2
    for name in arguments[2:]:
        Captioner.load = single if name in SINGLE else double  # type: ignore[method-assign]
        if name in TAUGHT:
            assert teach(lesson(name, model, folder), world)
            continue
        resume = name == "one_to_two"
        config = job(name, model, folder, resume=resume)
        before: Callable[[int | None], None] = lambda index: None  # noqa: E731
        if world.rank == 1 and name == "two_to_one":
            before = interrupt_at(2)
        if world.rank == 1 and name == "fails":
            before = fail_at(2)
        assert run(config, world, before) == (name != "two_to_one")
    world.leave()


if __name__ == "__main__":
    main(sys.argv[1:])
