"""One call of an attention kernel: which segments attend to which, and what is differentiated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

from torch import Tensor

from trainer.attention.packing import Block, Spans

S = TypeVar("S", Block, Spans)


@dataclass(frozen=True)
class Between(Generic[S]):
    """The segments of `queries` attend to those of `keys`, one to one.

    Causal ones have `queries is keys`; in others all segments of `keys` are equally long.
    scale: what scores are multiplied with.
    """

    queries: S
    keys: S
    causal: bool
    scale: float


class Saved(NamedTuple):
    """What a backward pass reads: gradient of the output, inputs, output and log-sum-exp."""

    grad: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor
    lse: Tensor


class SegmentAttention(Protocol):
    """Attention of the segments of one block to those of another.

    Inputs hold all T rows of the flat sequence: q, out and grad [T, Hq, D], k and v [T, Hkv, D],
    lse [T, Hq] in float32 (float64 for float64). Results hold the rows of `queries` or `keys` only,
    in flat order.
    """

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, between: Between[Block]
    ) -> tuple[Tensor, Tensor]:
        """Output [m, Hq, D] and its log-sum-exp [m, Hq]."""

    def backward(self, saved: Saved, between: Between[Block]) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of q, k, v when `out` and `lse` may come from more keys than these."""
