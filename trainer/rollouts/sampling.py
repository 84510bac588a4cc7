"""Rollouts: B charts, G sampled captions each.

Sampling draws on one stream of numbers per (seed, step, chart, rollout), so that a caption depends
neither on its place in the batch nor on what else is sampled, and a resumed run draws the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainer.policy import Captioner, Prompts
    from trainer.world import World


@dataclass(frozen=True)
class Part:
    """Captions of some charts of a step, handed on while the others are being sampled.

    rows: which charts, neighbours in the step's order.
    token_ids: int64 [L] per caption, ends with the end token only if the caption ended by itself.
    token_logps: float32 [L] per caption, log-probability of each token when it was drawn.
    texts: the captions without special tokens.
    finished: whether a caption ended by itself.
    entropy: mean entropy per drawn token, nats.
    """

    rows: list[int]
    token_ids: list[Tensor]
    token_logps: list[Tensor]
    texts: list[str]
    finished: list[bool]
    entropy: float

    @property
    def group_size(self) -> int:
        """G."""
        return len(self.texts) // len(self.rows)


@dataclass(frozen=True)
class Rollout:
    """B * G captions, chart by chart.

    ids: series ids of the B charts.
    prompts: model inputs of the B charts.
    token_ids, token_logps, texts, finished, entropy: see :class:`Part`.
    """

    ids: list[str]
    prompts: Prompts
    token_ids: list[Tensor]
    token_logps: list[Tensor]
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


def gather(ids: Sequence[str], prompts: Prompts, parts: Sequence[Part]) -> Rollout:
    """The rollout that `parts`, in order, make up.

    Raises:
        ValueError: a chart is missing, comes twice or out of order.
    """
    rows = [row for part in parts for row in part.rows]
    if rows != list(range(len(ids))):
        raise ValueError(f"parts: expected charts 0 to {len(ids) - 1} in order, got {rows}")
    sizes = [sum(len(ids) for ids in part.token_ids) for part in parts]
    entropy = sum(part.entropy * size for part, size in zip(parts, sizes, strict=True))
    return Rollout(
        ids=list(ids),
        prompts=prompts,
        token_ids=[x for part in parts for x in part.token_ids],
        token_logps=[x for part in parts for x in part.token_logps],
        texts=[x for part in parts for x in part.texts],
        finished=[x for part in parts for x in part.finished],
        entropy=entropy / sum(sizes),
    )


def of_all_ranks(rollout: Rollout, world: World) -> Rollout:
    """Captions of all ranks, rank after rank; prompts stay those of this one."""
    if world.size == 1:
        return rollout
    n = len(rollout.ids)
    own = Part(
        rows=list(range(world.rank * n, (world.rank + 1) * n)),
        token_ids=[ids.cpu() for ids in rollout.token_ids],
        token_logps=[logps.cpu() for logps in rollout.token_logps],
        texts=rollout.texts,
        finished=rollout.finished,
        entropy=rollout.entropy,
    )
    ids = [id_ for share in world.gather(rollout.ids) for id_ in share]
    return gather(ids, rollout.prompts, world.gather(own))


class Sampler(Protocol):
    """What draws the captions of a step.

    off_policy: captions come from another program than the one that learns from them, so that its
    log-probabilities may differ from ours.
    """

    @property
    def off_policy(self) -> bool: ...

    def sample(self, prompts: Prompts, ids: Sequence[str], step: int) -> Iterator[Part]:
        """Parts of the rollout as they finish; every chart in exactly one of them."""

    def push(self, captioner: Captioner) -> None:
        """Takes over the weights after an update."""

    def sleep(self) -> None:
        """Gives device memory back until captions are asked for again."""

    def close(self) -> None:
        """Lets go of connections."""


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


@dataclass(frozen=True)
class TransformersSampler:
    """Captions drawn by the captioner itself, at temperature 1 from the whole distribution.

    group_size: G. charts_at_once: charts decoded together, which make one part.
    """

    captioner: Captioner
    group_size: int
    max_new_tokens: int
    seed: int
    charts_at_once: int
    off_policy: bool = False

    def sample(self, prompts: Prompts, ids: Sequence[str], step: int) -> Iterator[Part]:
        """G captions of every chart."""
        length, size = self.max_new_tokens, self.group_size
        for start in range(0, len(ids), self.charts_at_once):
            rows = list(range(start, min(start + self.charts_at_once, len(ids))))
            numbers = uniforms(self.seed, step, [ids[row] for row in rows], size, length)
            decoded = self.captioner.generate(
                prompts.select(rows),
                group_size=size,
                max_new_tokens=length,
                uniforms=torch.from_numpy(numbers),
            )
            yield Part(
                rows=rows,
                token_ids=decoded.token_ids,
                token_logps=decoded.token_logps,
                texts=self.captioner.texts(decoded.token_ids),
                finished=decoded.finished,
                entropy=decoded.entropy,
            )

    def push(self, captioner: Captioner) -> None:
        """Nothing to do: it samples from the weights that learn."""

    def sleep(self) -> None:
        """Nothing to do: it has no memory of its own."""

    def close(self) -> None:
        """Nothing to do."""


def greedy(captioner: Captioner, prompts: Prompts, *, max_new_tokens: int) -> list[str]:
    """The caption of every chart that takes the likeliest token at each place."""
    return captioner.texts(captioner.generate(prompts, max_new_tokens=max_new_tokens).token_ids)
