"""A group as one sequence: chart and prompt once, G captions behind them.

Layout of the flat sequence, group after group::

    prefix_0 | caption_00 | caption_01 | ... | prefix_1 | caption_10 | ...

Each prefix is causal in itself; each caption attends to its own prefix (no mask) and to itself
(causal), never to a sibling. The two parts of a caption are merged through their log-sum-exp,
which is exact, and every part runs in the stock fused attention: no dense mask exists anywhere.

Who attends to whom follows from explicit segment lengths, never from positions. The last token of
a caption is not fed (nothing is predicted from it), so a caption of L tokens takes L - 1 rows.

Source: the log-sum-exp returned by the attention ops carries no gradient, so the merge is one
custom autograd function in which the backward of each part receives the *merged* output and the
*merged* log-sum-exp. With P_ij = exp(s_ij - lse_merged) and D_i = dO_i . O_i, the usual
dS = P * (dP - D) is then exact for either part alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

_PAD_LSE = 1e30  # exp(score - 1e30) = 0: padded queries contribute nothing to any gradient


@dataclass(frozen=True)
class Block:
    """Rows of one kind of segment as a padded rectangle.

    rows: int64 [n, length], row of the flat sequence, padding points at row 0.
    slots: int64 [m], where the m real rows lie in the flattened rectangle, in flat order.
    real: int64 [m], the same rows in the flat sequence.
    """

    rows: Tensor
    slots: Tensor
    real: Tensor

    def gather(self, flat: Tensor) -> Tensor:
        """Rows [T, H, D] -> [n, H, length, D]; padding holds some other row, never NaN."""
        n, length = self.rows.shape
        picked = flat.index_select(0, self.rows.reshape(-1))
        return picked.view(n, length, *flat.shape[1:]).transpose(1, 2)

    def spread(self, values: Tensor, fill: float = 0.0) -> Tensor:
        """Real values [m, H, ...] -> [n, H, length, ...] with `fill` in the padding."""
        n, length = self.rows.shape
        if self.slots.numel() == n * length:
            return values.reshape(n, length, *values.shape[1:]).transpose(1, 2)
        out = values.new_full((n * length, *values.shape[1:]), fill)
        out[self.slots] = values
        return out.view(n, length, *values.shape[1:]).transpose(1, 2)

    def collect(self, rect: Tensor) -> Tensor:
        """[n, H, length, ...] -> real values [m, H, ...] in flat order."""
        flat = rect.transpose(1, 2).reshape(-1, rect.shape[1], *rect.shape[3:])
        if self.slots.numel() == flat.shape[0]:
            return flat
        return flat.index_select(0, self.slots)


@dataclass(frozen=True)
class GroupLayout:
    """Where the tokens of several groups lie in one flat sequence.

    n_rows: length of the flat sequence.
    prefix: the prefixes, [groups, P].
    cross: all caption rows of a group side by side, [groups, most caption rows in a group].
    own: each caption by itself, [captions with at least one row, longest].
    positions: int64 [T], index j within prefix or caption.
    scored_from: int64 [N], for every caption token in order, the row whose logits predict it.
    group_of_row: int64 [T].
    in_caption: bool [T].
    """

    n_rows: int
    prefix: Block
    cross: Block | None
    own: Block | None
    positions: Tensor
    scored_from: Tensor
    group_of_row: Tensor
    in_caption: Tensor

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """Shared-prefix attention; q [1, Hq, T, D], k and v [1, Hkv, T, D] -> [1, T, Hq, D]."""
        del layer
        flat = (x[0].transpose(0, 1) for x in (q, k, v))
        out: Tensor = _SharedPrefixAttention.apply(*flat, self, scale)
        return out[None]


def group_layout(
    prefix_length: int, caption_lengths: list[list[int]], device: torch.device | str = "cpu"
) -> GroupLayout:
    """Layout of groups that all have prefixes of `prefix_length` tokens.

    Args:
        prefix_length: P, tokens of chart and prompt, the same for all groups of one pack.
        caption_lengths: completion tokens of each caption of each group, all >= 1.
    """
    if prefix_length < 1:
        raise ValueError(f"prefix_length: expected at least 1, got {prefix_length}")
    if not caption_lengths or any(min(group, default=0) < 1 for group in caption_lengths):
        raise ValueError(
            f"caption_lengths: expected captions of at least 1 token, got {caption_lengths}"
        )
    prefixes: list[np.ndarray] = []
    captions: list[np.ndarray] = []
    crosses: list[np.ndarray] = []
    scored: list[np.ndarray] = []
    positions: list[np.ndarray] = []
    groups: list[np.ndarray] = []
    start = 0
    for group, lengths in enumerate(caption_lengths):
        prefix = np.arange(start, start + prefix_length)
        positions.append(np.arange(prefix_length))
        row = start + prefix_length
        for length in lengths:
            own = np.arange(row, row + length - 1)
            captions.append(own)
            scored.append(np.concatenate([prefix[-1:], own]))
            positions.append(np.arange(length - 1))
            row += length - 1
        prefixes.append(prefix)
        crosses.append(np.arange(start + prefix_length, row))
        groups.append(np.full(row - start, group))
        start = row
    in_caption = np.ones(start, bool)
    in_caption[np.concatenate(prefixes)] = False
    prefix_block = _block(prefixes, device)
    assert prefix_block is not None
    return GroupLayout(
        n_rows=start,
        prefix=prefix_block,
        cross=_block(crosses, device),
        own=_block([c for c in captions if c.size], device),
        positions=torch.as_tensor(np.concatenate(positions), device=device),
        scored_from=torch.as_tensor(np.concatenate(scored), device=device),
        group_of_row=torch.as_tensor(np.concatenate(groups), device=device),
        in_caption=torch.as_tensor(in_caption, device=device),
    )


def _block(segments: list[np.ndarray], device: torch.device | str) -> Block | None:
    longest = max((s.size for s in segments), default=0)
    if longest == 0:
        return None
    rows = np.zeros((len(segments), longest), np.int64)
    slots = [i * longest + np.arange(s.size) for i, s in enumerate(segments)]
    for i, segment in enumerate(segments):
        rows[i, : segment.size] = segment
    tables = (rows, np.concatenate(slots), np.concatenate(segments))
    return Block(*(torch.as_tensor(t, device=device) for t in tables))


class _SharedPrefixAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, layout: GroupLayout, scale: float
    ) -> Tensor:
        """q [T, Hq, D], k and v [T, Hkv, D] -> [T, Hq, D]."""
        q, k = q.to(v.dtype), k.to(v.dtype)  # rotary embedding runs in float32 under autocast
        groups = q.shape[1] // k.shape[1]
        prefix, cross, own = layout.prefix, layout.cross, layout.own
        kp, vp = prefix.gather(k), prefix.gather(v)
        out = q.new_empty(q.shape)
        o, lse_p = attention(
            prefix.gather(q), _repeat(kp, groups), _repeat(vp, groups), causal=True, scale=scale
        )
        out[prefix.real] = prefix.collect(o)
        lse = None
        if cross is not None and own is not None:
            ox, lx = attention(_fold(cross.gather(q), groups), kp, vp, causal=False, scale=scale)
            ox = cross.collect(_unfold(ox, groups))
            lx = cross.collect(_unfold(lx, groups))
            os_, ls = attention(
                own.gather(q),
                _repeat(own.gather(k), groups),
                _repeat(own.gather(v), groups),
                causal=True,
                scale=scale,
            )
            os_, ls = own.collect(os_), own.collect(ls)
            lse = torch.logaddexp(lx, ls)  # [m, Hq]
            wx, ws = (lx - lse).exp()[..., None], (ls - lse).exp()[..., None]
            out[own.real] = (ox * wx + os_ * ws).to(out.dtype)
        ctx.save_for_backward(q, k, v, out, lse_p, lse)
        ctx.layout, ctx.scale = layout, scale
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        q, k, v, out, lse_p, lse = ctx.saved_tensors
        layout, scale = ctx.layout, ctx.scale
        groups = q.shape[1] // k.shape[1]
        prefix, cross, own = layout.prefix, layout.cross, layout.own
        grad = grad.contiguous().to(v.dtype)
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)

        kp, vp = prefix.gather(k), prefix.gather(v)
        gq, gk, gv = attention_backward(
            prefix.gather(grad),
            prefix.gather(q),
            _repeat(kp, groups),
            _repeat(vp, groups),
            prefix.gather(out),
            lse_p,
            causal=True,
            scale=scale,
        )
        dq[prefix.real] = prefix.collect(gq)
        dkp, dvp = _sum_repeats(gk, groups), _sum_repeats(gv, groups)
        if cross is not None and own is not None:
            gc, oc = grad.index_select(0, own.real), out.index_select(0, own.real)
            gq, gk, gv = attention_backward(
                _fold(cross.spread(gc), groups),
                _fold(cross.gather(q), groups),
                kp,
                vp,
                _fold(cross.spread(oc), groups),
                _fold(cross.spread(lse, _PAD_LSE), groups),
                causal=False,
                scale=scale,
            )
            dkp, dvp = dkp + gk, dvp + gv
            dqc = cross.collect(_unfold(gq, groups))
            gq, gk, gv = attention_backward(
                own.spread(gc),
                own.gather(q),
                _repeat(own.gather(k), groups),
                _repeat(own.gather(v), groups),
                own.spread(oc),
                own.spread(lse, _PAD_LSE),
                causal=True,
                scale=scale,
            )
            dq[own.real] = dqc + own.collect(gq)
            dk[own.real] = own.collect(_sum_repeats(gk, groups))
            dv[own.real] = own.collect(_sum_repeats(gv, groups))
        dk[prefix.real], dv[prefix.real] = prefix.collect(dkp), prefix.collect(dvp)
        return dq, dk, dv, None, None


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


def attention(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """Softmax attention and its log-sum-exp, without gradient: fused on the CPU, plain elsewhere.

    Args:
        q, k, v: [n, H, Lq | Lk, D], equal head counts.
    Returns:
        output [n, H, Lq, D], log-sum-exp [n, H, Lq] (float32, or float64 for float64 input).
    """
    if q.device.type == "cpu":
        fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        out, lse = fused(q, k, v, 0.0, causal, scale=scale)
        return out, lse
    return plain_attention(q, k, v, causal=causal, scale=scale)


def attention_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    *,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k, v when `out` and `lse` may come from more keys than these."""
    if q.device.type == "cpu":
        fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        dq, dk, dv = fused(grad, q, k, v, out, lse, 0.0, causal, scale=scale)
        return dq, dk, dv
    return plain_attention_backward(grad, q, k, v, out, lse, causal=causal, scale=scale)


def plain_attention(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """`attention` by the formula, for any device and dtype; softmax in float32 or wider."""
    scores = _scores(q, k, causal, scale)
    lse = torch.logsumexp(scores, -1)
    return (scores - lse[..., None]).exp().to(v.dtype) @ v, lse


def plain_attention_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    *,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """`attention_backward` by the formula."""
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
