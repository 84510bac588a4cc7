"""Attention of packed segments in padded rectangles: where no op takes segments of any length."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.attention.packing import Block
from trainer.attention.segments import Between, Saved

_PAD_LSE = 1e30  # exp(score - 1e30) = 0: padded queries contribute nothing to any gradient
_ALIGNED = 32  # the memory-efficient kernel wants log-sum-exps in multiples of this


@dataclass(frozen=True)
class Padded:
    """Segment attention through an op over rectangles.

    attend: q, k, v [n, H, Lq | Lk, D] with equal head counts, `causal`, `scale` -> output
        [n, H, Lq, D], log-sum-exp [n, H, Lq] (float32, or float64 for float64 input).
    differentiate: a :class:`Saved` of such rectangles, `causal`, `scale` -> gradients of q, k, v.
    """

    attend: Callable[..., tuple[Tensor, Tensor]]
    differentiate: Callable[..., tuple[Tensor, Tensor, Tensor]]

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, between: Between[Block]
    ) -> tuple[Tensor, Tensor]:
        """See :class:`trainer.attention.segments.SegmentAttention`."""
        queries, keys, scale = between.queries, between.keys, between.scale
        groups = q.shape[1] // k.shape[1]
        q, k, v = queries.gather(q), keys.gather(k), keys.gather(v)
        if between.causal:
            out, lse = self.attend(
                q, _repeat(k, groups), _repeat(v, groups), causal=True, scale=scale
            )
        else:
            out, lse = self.attend(_fold(q, groups), k, v, causal=False, scale=scale)
            out, lse = _unfold(out, groups), _unfold(lse, groups)
        return queries.collect(out), queries.collect(lse)

    def backward(self, saved: Saved, between: Between[Block]) -> tuple[Tensor, Tensor, Tensor]:
        """See :class:`trainer.attention.segments.SegmentAttention`."""
        queries, keys, scale = between.queries, between.keys, between.scale
        grad, q, k, v, out, lse = saved
        groups = q.shape[1] // k.shape[1]
        lse = queries.spread(lse.index_select(0, queries.real), _PAD_LSE)
        grad, q, out = queries.gather(grad), queries.gather(q), queries.gather(out)
        k, v = keys.gather(k), keys.gather(v)
        if between.causal:
            k, v = _repeat(k, groups), _repeat(v, groups)
            saved = Saved(grad, q, k, v, out, lse)
            dq, dk, dv = self.differentiate(saved, causal=True, scale=scale)
            dk, dv = _sum_repeats(dk, groups), _sum_repeats(dv, groups)
        else:
            grad, q, out, lse = (_fold(x, groups) for x in (grad, q, out, lse))
            saved = Saved(grad, q, k, v, out, lse)
            dq, dk, dv = self.differentiate(saved, causal=False, scale=scale)
            dq = _unfold(dq, groups)
        return queries.collect(dq), keys.collect(dk), keys.collect(dv)


def _repeat(x: Tensor, groups: int) -> Tensor:
    """Key/value heads [n, Hkv, L, D] -> [n, Hq, L, D]."""
    return x if groups == 1 else x.repeat_interleave(groups, dim=1)


def _sum_repeats(grad: Tensor, groups: int) -> Tensor:
    if groups == 1:
        return grad
    n, heads, *rest = grad.shape
    return grad.view(n, heads // groups, groups, *rest).sum(2)


def _fold(x: Tensor, groups: int) -> Tensor:
    """Query heads of one KV head become more queries: [n, Hq, C, ...] -> [n, Hkv, groups*C, ...].

    Allowed where nothing is causal; the prefix keys are then read once for all of them.
    """
    if groups == 1:
        return x
    n, heads, length, *rest = x.shape
    return x.reshape(n, heads // groups, groups * length, *rest)


def _unfold(x: Tensor, groups: int) -> Tensor:
    if groups == 1:
        return x
    n, heads, length, *rest = x.shape
    return x.reshape(n, heads * groups, length // groups, *rest)


# ------------------------------------------------------------------------ ops over rectangles


def _cpu(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    out, lse = fused(q, k, v, 0.0, causal, scale=scale)
    return out, lse


def _cpu_backward(saved: Saved, *, causal: bool, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    dq, dk, dv = fused(*saved, 0.0, causal, scale=scale)
    return dq, dk, dv


def _efficient(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    fused = torch.ops.aten._scaled_dot_product_efficient_attention
    out, lse, *_ = fused(q, k, v, None, True, 0.0, causal, scale=scale)
    return out, lse[..., : q.shape[2]]


def _efficient_backward(
    saved: Saved, *, causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    grad, q, k, v, out, lse = saved
    padding = (0, -lse.shape[-1] % _ALIGNED)
    lse = torch.nn.functional.pad(lse, padding, value=_PAD_LSE).contiguous()
    unused = torch.zeros((), dtype=torch.int64, device=q.device)  # state of the dropout
    fused = torch.ops.aten._scaled_dot_product_efficient_attention_backward
    wanted = [True, True, True, False]
    dq, dk, dv, _ = fused(
        grad, q, k, v, None, out, lse, unused, unused, 0.0, wanted, causal, scale=scale
    )
    return dq, dk, dv


def _plain(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    scores = _scores(q, k, causal, scale)
    lse = torch.logsumexp(scores, -1)
    return (scores - lse[..., None]).exp().to(v.dtype) @ v, lse


def _plain_backward(saved: Saved, *, causal: bool, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    grad, q, k, v, out, lse = saved
    weights = (_scores(q, k, causal, scale) - lse[..., None]).exp()
    wide = weights.dtype
    own = (grad.to(wide) * out.to(wide)).sum(-1, keepdim=True)
    d_scores = (weights * ((grad @ v.mT).to(wide) - own) * scale).to(q.dtype)
    return d_scores @ k, d_scores.mT @ q, weights.to(grad.dtype).mT @ grad


def _scores(q: Tensor, k: Tensor, causal: bool, scale: float) -> Tensor:
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    scores = (q.to(wide) @ k.to(wide).mT) * scale
    if causal:
        past = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
        scores = scores.masked_fill(~past, -torch.inf)
    return scores


CPU = Padded(_cpu, _cpu_backward)  # torch's fused attention of the CPU
EFFICIENT = Padded(_efficient, _efficient_backward)  # torch's memory-efficient one of CUDA
PLAIN = Padded(_plain, _plain_backward)  # the formula, any device; softmax in float32 or wider
