"""Validation on fixed sets: greedy captions, all positions, the K - 1 nearest distractors."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from lineup_fast import charts, counters
from lineup_fast.reward_rows import join
from trainer import checkpoint, rewarding, rollouts
from trainer.loading import load_captioner
from trainer.record.metrics import mean
from trainer.world import ALONE, World

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lineup_fast.rewards import RewardBatch
    from trainer.config import RlooConfig
    from trainer.policy import Captioner, Prompts
    from trainer.record import RunFolder


class Series(Protocol):
    """What the trainer asks of a corpus."""

    fingerprint: str

    def ids(self, split: str | None = None) -> list[str]: ...

    def series(self, item: str) -> NDArray[np.float64]: ...

    def pool(self, item: str) -> list[str]: ...


class ChartSettings(Protocol):
    """Which settings decide how charts are drawn."""

    @property
    def chart_style(self) -> str: ...

    @property
    def threads(self) -> int: ...


class Reward(Protocol):
    """What the trainer asks of a reward; `lineup_fast.rewards.IdentificationReward` is one.

    `index` is the draw of distractors: the step in training, None for the fixed sets.
    """

    def score(
        self, captions: Sequence[str], ids: Sequence[str], *, index: int | None = None
    ) -> RewardBatch: ...


@dataclass(frozen=True)
class Scores:
    """Captions of a fixed set, scored; means are over valid captions.

    by_position: accuracy with the target at each of the K positions.
    rows: one dict per item, as written to validation/*.jsonl.
    """

    acc: float
    reward: float
    by_position: list[float]
    invalid_frac: float
    rows: list[dict[str, Any]]


def fixed_ids(corpus: Series, split: str, n: int) -> list[str]:
    """The first n items of a split in an order that depends on the ids' number only."""
    ids = sorted(corpus.ids(split))
    return [ids[row] for row in counters.order(len(ids), "fixed", split)[:n]]


def chart_prompts(
    captioner: Captioner, corpus: Series, ids: Sequence[str], config: ChartSettings
) -> Prompts:
    """Charts of the series with the caption prompt, as model inputs."""
    style = charts.STYLES[config.chart_style]
    images = charts.render([corpus.series(id_) for id_ in ids], style, threads=config.threads)
    return captioner.prompts(images)


def caption(
    captioner: Captioner, corpus: Series, ids: Sequence[str], config: RlooConfig
) -> list[str]:
    """The greedy caption of every item."""
    texts: list[str] = []
    for start in range(0, len(ids), config.charts_at_once):
        prompts = chart_prompts(
            captioner, corpus, ids[start : start + config.charts_at_once], config
        )
        texts += rollouts.greedy(captioner, prompts, max_new_tokens=config.max_new_tokens)
    return texts


def score(
    captions: Sequence[str],
    ids: Sequence[str],
    corpus: Series,
    reward: Reward,
    world: World = ALONE,
) -> Scores:
    """Scores captions on the fixed sets of their items, this rank's share; returns everybody's."""
    batch = reward.score(captions, ids) if len(ids) else None
    rewarding.idle(reward)
    shares = world.gather((list(captions), list(ids), batch))
    captions = [text for share in shares for text in share[0]]
    ids = [id_ for share in shares for id_ in share[1]]
    batch = join([share[2] for share in shares if share[2] is not None])
    rows, k = [], batch.picks.shape[1]
    for i, id_ in enumerate(ids):
        logprobs = batch.label_logprobs[i].astype(np.float64)
        with np.errstate(invalid="ignore"):  # what was not asked is NaN
            probs = np.exp(logprobs - np.logaddexp.reduce(logprobs, axis=-1, keepdims=True))
        rows.append(
            {
                "id": id_,
                "caption": captions[i],
                "accuracy": float(batch.accuracy[i]),
                "picks": batch.picks[i],
                "probs": probs,
                "valid": bool(batch.valid[i]),
                "reason": batch.reason[i],
                "distractors": []
                if batch.right is not None
                else rewarding.distractors(reward, corpus, id_, k - 1),
            }
        )
    valid = batch.valid
    return Scores(
        acc=mean(batch.accuracy[valid]),
        reward=mean(batch.reward[valid]),
        by_position=batch.accuracy_by_position().tolist(),
        invalid_frac=1.0 - mean(valid),
        rows=rows,
    )


def row(
    step: int,
    captioner: Captioner,
    corpus: Series,
    reward: Reward,
    ids: list[str],
    config: RlooConfig,
    folder: RunFolder,
    floor: float | None = None,
    world: World = ALONE,
) -> dict[str, Any]:
    """Validates the captioner; the metrics of its row, single items into validation/*.jsonl.

    floor: accuracy without a caption, where it is known from an earlier step.
    """
    started = time.perf_counter()
    ids = world.deal(ids)
    scores = score(caption(captioner, corpus, ids, config), ids, corpus, reward, world)
    if floor is None:
        floor = score([""] * len(ids), ids, corpus, reward, world).acc
    folder.write_validation(f"step-{step:06d}", scores.rows)
    return {
        "val/acc": scores.acc,
        "val/reward": scores.reward,
        "val/floor": floor,
        "val/acc_by_position": scores.by_position,
        "val/invalid_frac": scores.invalid_frac,
        "time/validation_s": time.perf_counter() - started,
    }


def final(
    config: RlooConfig,
    corpus: Series,
    reward: Reward,
    ids: list[str],
    folder: RunFolder,
    best: int,
    world: World = ALONE,
) -> dict[str, Any]:
    """Start and best checkpoint on the second fixed set, which selected nothing."""
    models = {"start": config.model, "best": config.model}
    if best > 0:
        models["best"] = str(checkpoint.folder(folder.checkpoints, best))
    result: dict[str, Any] = {"split": "test", "n": len(ids), "best_step": best}
    ids = world.deal(ids)
    for name, path in models.items():
        captioner = load_captioner(config, path, world)
        texts = caption(captioner, corpus, ids, config)
        scores = score(texts, ids, corpus, reward, world)
        folder.write_validation(f"final-{name}", scores.rows)
        result |= {f"{name}_acc": scores.acc, f"{name}_reward": scores.reward}
    blind = score([""] * len(ids), ids, corpus, reward, world)
    return result | {"floor": blind.acc}
