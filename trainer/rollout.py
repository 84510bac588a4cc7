"""Rollouts: B charts, G sampled captions each.

Sampling draws on one stream of numbers per (seed, step, chart, rollout), so that a caption depends
neither on its place in the batch nor on what else is sampled, and a resumed run draws the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainer.policy import Captioner, Prompts


@dataclass(frozen=True)
class Rollout:
    """B * G captions, chart by chart.

    ids: series ids of the B charts.
    prompts: model inputs of the B charts.
    token_ids: int64 [L] per caption, ends with the end token only if the caption ended by itself.
    texts: the captions without special tokens.
    finished: whether a caption ended by itself.
    entropy: mean entropy per drawn token, nats.
    """

    ids: list[str]
    prompts: Prompts
    token_ids: list[Tensor]
    texts: list[str]
    finished: list[bool]
    entropy: float

    @property
    def group_size(self) -> int:
        """G."""
        return len(self.texts) // len(self.ids)

    def row_ids(self) -> list[str]:
        """Series id of every caption."""
        return [id_ for id_ in self.ids for _ in range(self.group_size)]


def uniforms(
    seed: int, step: int, ids: Sequence[str], group_size: int, length: int
) -> NDArray[np.float64]:
    """Numbers in [0, 1) that decide the tokens, float64 [B * G, length], multiples of 2^-32.

    A pure function of its arguments, row by row of (seed, step, id, rollout).
    """
    rows = np.empty((len(ids) * group_size, length))
    for row in range(rows.shape[0]):
        words = f"{seed}/{step}/{ids[row // group_size]}/{row % group_size}"
        key = int.from_bytes(hashlib.blake2b(words.encode(), digest_size=16).digest(), "little")
        rows[row] = np.random.Philox(key=key).random_raw(length) >> np.uint64(32)
    return rows * 2.0**-32


def sample(
    captioner: Captioner,
    prompts: Prompts,
    ids: Sequence[str],
    *,
    group_size: int,
    max_new_tokens: int,
    seed: int,
    step: int,
    charts_at_once: int,
) -> Rollout:
    """G captions of every chart, drawn at temperature 1 from the whole distribution."""
    numbers = torch.from_numpy(uniforms(seed, step, ids, group_size, max_new_tokens))
    token_ids: list[Tensor] = []
    finished: list[bool] = []
    entropies: list[float] = []
    for start in range(0, len(ids), charts_at_once):
        rows = list(range(start, min(start + charts_at_once, len(ids))))
        decoded = captioner.generate(
            prompts.select(rows),
            group_size=group_size,
            max_new_tokens=max_new_tokens,
            uniforms=numbers[rows[0] * group_size : (rows[-1] + 1) * group_size],
        )
        token_ids += decoded.token_ids
        finished += decoded.finished
        entropies.append(decoded.entropy * sum(len(t) for t in decoded.token_ids))
    n_tokens = sum(len(t) for t in token_ids)
    return Rollout(
        ids=list(ids),
        prompts=prompts,
        token_ids=token_ids,
        texts=captioner.texts(token_ids),
        finished=finished,
        entropy=sum(entropies) / n_tokens,
    )


def greedy(captioner: Captioner, prompts: Prompts, *, max_new_tokens: int) -> list[str]:
    """The caption of every chart that takes the likeliest token at each place."""
    return captioner.texts(captioner.generate(prompts, max_new_tokens=max_new_tokens).token_ids)
