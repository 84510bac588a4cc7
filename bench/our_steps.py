"""Steps of our trainer, measured: ``python -m bench.our_steps CORPUS OUT --steps N``."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from bench.step_meter import Meter
from lineup_fast.corpus import Corpus
from lineup_fast.rewards import RewardBatch
from trainer import loading, rloo
from trainer.config import RlooConfig
from trainer.policy import Captioner
from trainer.record import RunFolder
from trainer.record.console import Console
from trainer.world import World

ROOT = Path(__file__).parents[1]
GROUP = 8


class MeteredReward:
    """The scripted reward in the form the trainer asks for; validation is not stamped."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    def score(
        self, captions: Sequence[str], ids: Sequence[str], *, index: int | None = None
    ) -> RewardBatch:
        n = len(captions)
        made = [0.0] * n if index is None else self._meter.rewards(captions)
        reward = np.array(made, np.float32)
        return RewardBatch(
            reward=reward,
            accuracy=reward / 2,
            picks=np.zeros((n, 4), np.int32),
            label_logprobs=np.full((n, 4, 4), -1.4, np.float32),
            label_mass=np.ones((n, 4), np.float32),
            valid=np.ones(n, bool),
            reason=[None] * n,
            asked=np.ones((n, 4), bool),
        )


def settings(run: Path, steps: int, charts: int, lr: float) -> RlooConfig:
    """The tiny preset's model, one update a step, nothing validated in between."""
    return RlooConfig(
        run=run, model=str(ROOT / "trainer/tiny/captioner"), steps=steps, charts=charts,
        group_size=GROUP, captions_per_update=charts * GROUP, micro_groups=charts,
        charts_at_once=charts, max_new_tokens=48, caption_prompt="Describe the chart.",
        chart_style="tiny", lr=lr, warmup_updates=5, lr_floor_frac=1.0, eval_every=10**6,
        n_val=1, n_test=1, checkpoint_every=10**6, compute_dtype="float32",
        gradient_checkpointing=False, freeze_vision=True, threads=1, seed=0, collapse_window=0,
    )  # fmt: skip


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--charts", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-6)
    args = parser.parse_args()
    torch.set_num_threads(1)
    meter = Meter()
    load = loading.load_captioner

    def loaded(config: RlooConfig, path: str | Path, world: World) -> Captioner:
        captioner = load(config, path, world)
        if not meter.baseline:
            meter.model_is_loaded()
        return captioner

    rloo.load_captioner = loaded  # type: ignore[assignment]
    with tempfile.TemporaryDirectory() as folder:
        config = settings(Path(folder) / "run", args.steps, args.charts, args.lr)
        corpus = Corpus.load(args.corpus)
        rloo.train(config, corpus, MeteredReward(meter), console=Console("", 1, enabled=False))
        rows = RunFolder(config.run, resume=True).rows()
    for row in rows[3:-1]:  # the last one validates
        for stage in ("charts", "rollout", "reward", "update"):
            meter.stage(stage, row[f"time/{stage}_s"])
        meter.stage("whole steps", row["step_time"])
    meter.write(args.out)


if __name__ == "__main__":
    main()
