"""Attention over packed groups: each caption sees its own prefix and itself, exactly.

A prefix is causal in itself. A caption attends to its prefix (no mask) and to itself (causal),
never to a sibling; the two parts are merged through their log-sum-exp, and every part runs in a
stock fused attention: no dense mask exists anywhere.

Source: the log-sum-exp returned by the attention ops carries no gradient, so the merge is one
custom autograd function in which the backward of each part receives the *merged* output and the
*merged* log-sum-exp. With P_ij = exp(s_ij - lse_merged) and D_i = dO_i . O_i, the usual
dS = P * (dP - D) is then exact for either part alone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trainer.attention.packing import Block, CaptionBlocks, GroupLayout
from trainer.attention.segments import Between, Saved, SegmentAttention


def shared_prefix_attention(
    q: Tensor, k: Tensor, v: Tensor, layout: GroupLayout, scale: float, op: SegmentAttention
) -> Tensor:
    """q [T, Hq, D], k and v [T, Hkv, D] -> [T, Hq, D] in the dtype of v, differentiable."""
    out: Tensor = _SharedPrefixAttention.apply(q, k, v, layout, scale, op)
    return out


def merged_attention(
    q: Tensor, k: Tensor, v: Tensor, layout: GroupLayout, scale: float, op: SegmentAttention
) -> tuple[Tensor, Tensor]:
    """Output [T, Hq, D] and log-sum-exp [T, Hq] over all that each row sees, no gradient."""
    prefix, captions = layout.prefix, layout.captions
    out_p, lse_p = op.forward(q, k, v, _itself(prefix, scale))
    if captions is None:
        return out_p, lse_p
    out = q.new_empty(q.shape)
    lse = lse_p.new_empty(q.shape[:2])
    out[prefix.real], lse[prefix.real] = out_p, lse_p
    ox, lx = op.forward(q, k, v, _to_prefixes(captions, scale))
    os_, ls = op.forward(q, k, v, _itself(captions.own, scale))
    merged = torch.logaddexp(lx, ls)  # [m, Hq]
    wx, ws = (lx - merged).exp()[..., None], (ls - merged).exp()[..., None]
    out[captions.own.real] = (ox * wx + os_ * ws).to(out.dtype)
    lse[captions.own.real] = merged
    return out, lse


def _itself(block: Block, scale: float) -> Between[Block]:
    return Between(block, block, causal=True, scale=scale)


def _to_prefixes(captions: CaptionBlocks, scale: float) -> Between[Block]:
    return Between(captions.together, captions.prefixes, causal=False, scale=scale)


class _SharedPrefixAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        layout: GroupLayout,
        scale: float,
        op: SegmentAttention,
    ) -> Tensor:
        q, k = q.to(v.dtype), k.to(v.dtype)  # rotary embedding runs in float32 under autocast
        out, lse = merged_attention(q, k, v, layout, scale, op)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.layout, ctx.scale, ctx.op = layout, scale, op
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        q, k, v, out, lse = ctx.saved_tensors
        prefix, captions = ctx.layout.prefix, ctx.layout.captions
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        saved = Saved(grad.contiguous().to(v.dtype), q, k, v, out, lse)

        gq, gk, gv = ctx.op.backward(saved, _itself(prefix, ctx.scale))
        dq[prefix.real], dk[prefix.real], dv[prefix.real] = gq, gk, gv
        if captions is not None:
            own, prefixes = captions.own, captions.prefixes
            gx, gk, gv = ctx.op.backward(saved, _to_prefixes(captions, ctx.scale))
            dk[prefixes.real] += gk
            dv[prefixes.real] += gv
            gq, gk, gv = ctx.op.backward(saved, _itself(own, ctx.scale))
            dq[own.real], dk[own.real], dv[own.real] = gx + gq, gk, gv
        return dq, dk, dv, None, None, None
