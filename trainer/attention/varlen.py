"""Attention of packed segments of any length: FlashAttention 2, 3 and 4, and the one torch carries.

None of them is needed to import this; each loader imports its library when it is called. All take
float16 and bfloat16 alone, share key heads among query heads by themselves, and give and take
log-sum-exps as [Hq, rows] in float32. What goes in and comes out of the loaded pair here is
[rows, Hq], as everywhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trainer.attention.packing import Block, Spans
from trainer.attention.segments import Between, Saved
from trainer.choice import module


@dataclass(frozen=True)
class Varlen:
    """Segment attention over packed rows: no padding, keys and values of shared heads once.

    attend: q [mq, Hq, D], k and v [mk, Hkv, D], the spans between which they attend
        -> output [mq, Hq, D], log-sum-exp [mq, Hq].
    differentiate: a :class:`Saved` of such rows, the spans -> gradients of q, k, v.
    """

    attend: Callable[..., tuple[Tensor, Tensor]]
    differentiate: Callable[..., tuple[Tensor, Tensor, Tensor]]

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, between: Between[Block]
    ) -> tuple[Tensor, Tensor]:
        """See :class:`trainer.attention.segments.SegmentAttention`."""
        queries, keys = between.queries, between.keys
        q, k, v = _rows(queries, q), _rows(keys, k), _rows(keys, v)
        return self.attend(q, k, v, _spans(between))

    def backward(self, saved: Saved, between: Between[Block]) -> tuple[Tensor, Tensor, Tensor]:
        """See :class:`trainer.attention.segments.SegmentAttention`."""
        grad, q, out, lse = (
            _rows(between.queries, x) for x in (saved.grad, saved.q, saved.out, saved.lse)
        )
        k, v = _rows(between.keys, saved.k), _rows(between.keys, saved.v)
        return self.differentiate(Saved(grad, q, k, v, out, lse), _spans(between))


def _rows(block: Block, flat: Tensor) -> Tensor:
    return flat.index_select(0, block.real)


def _spans(between: Between[Block]) -> Between[Spans]:
    return Between(
        between.queries.spans, between.keys.spans, causal=between.causal, scale=between.scale
    )


def window_attention(
    q: Tensor, k: Tensor, v: Tensor, spans: Spans, scale: float, op: Varlen
) -> Tensor:
    """Each segment to itself, no mask: [m, H, D] -> [m, H, D] in v's dtype, differentiable."""
    out: Tensor = _WindowAttention.apply(q, k, v, spans, scale, op)
    return out


class _WindowAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, spans: Spans, scale: float, op: Varlen
    ) -> Tensor:
        q, k, v = (x.to(v.dtype).contiguous() for x in (q, k, v))
        out, lse = op.attend(q, k, v, Between(spans, spans, causal=False, scale=scale))
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.spans, ctx.scale, ctx.op = spans, scale, op
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        grad = grad.to(ctx.saved_tensors[2].dtype).contiguous()
        between = Between(ctx.spans, ctx.spans, causal=False, scale=ctx.scale)
        gradients = ctx.op.differentiate(Saved(grad, *ctx.saved_tensors), between)
        return *gradients, None, None, None


# ------------------------------------------------------------------------------- the libraries


def torch_varlen() -> Varlen:
    """`torch.nn.attention.varlen`, which is FlashAttention 2 built into torch."""
    varlen = module("torch.nn.attention.varlen")

    def attend(q: Tensor, k: Tensor, v: Tensor, between: Between[Spans]) -> tuple[Tensor, Tensor]:
        out, lse = varlen.varlen_attn(
            q,
            k,
            v,
            *_lengths(between),
            return_aux=varlen.AuxRequest(lse=True),
            scale=between.scale,
            window_size=(-1, 0 if between.causal else -1),
            enable_gqa=q.shape[1] != k.shape[1],
        )
        return out, lse.T

    def differentiate(saved: Saved, between: Between[Spans]) -> tuple[Tensor, Tensor, Tensor]:
        grad, q, k, v, out, lse = saved
        lse, window = lse.T.contiguous(), [-1, 0 if between.causal else -1]
        unused = torch.zeros(2, dtype=torch.uint64, device=q.device)  # state of the dropout
        dq, dk, dv = torch.ops.torch_attn._varlen_attn_backward(
            *(grad, q, k, v, out, lse, *_lengths(between)),
            *(between.causal, unused, between.scale, window),
        )
        return dq, dk, dv

    return Varlen(attend, differentiate)


def flash2() -> Varlen:
    """The package flash-attn, 2.7 and later: `_flash_attn_varlen_forward` and `_backward`."""
    library = module("flash_attn.flash_attn_interface")

    def attend(q: Tensor, k: Tensor, v: Tensor, between: Between[Spans]) -> tuple[Tensor, Tensor]:
        out, lse, *_ = library._flash_attn_varlen_forward(
            q, k, v, *_lengths(between), 0.0, between.scale, between.causal
        )
        return out, lse.T

    def differentiate(saved: Saved, between: Between[Spans]) -> tuple[Tensor, Tensor, Tensor]:
        grad, q, k, v, out, lse = saved
        dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
        library._flash_attn_varlen_backward(
            *(grad, q, k, v, out, lse.T.contiguous(), dq, dk, dv),
            *_lengths(between),
            dropout_p=0.0,
            softmax_scale=between.scale,
            causal=between.causal,
            window_size_left=-1,
            window_size_right=-1,
            softcap=0.0,
            alibi_slopes=None,
            deterministic=torch.are_deterministic_algorithms_enabled(),
        )
        return dq, dk, dv

    return Varlen(attend, differentiate)


def flash3() -> Varlen:
    """FlashAttention 3, built from its sources as `flash_attn_interface`."""
    library = module("flash_attn_interface")

    def attend(q: Tensor, k: Tensor, v: Tensor, between: Between[Spans]) -> tuple[Tensor, Tensor]:
        out, lse, *_ = library._flash_attn_forward(
            q, k, v, **_named(between), softmax_scale=between.scale, causal=between.causal
        )
        return out, lse.T

    def differentiate(saved: Saved, between: Between[Spans]) -> tuple[Tensor, Tensor, Tensor]:
        grad, q, k, v, out, lse = saved
        gradients = {
            f"d{name}": torch.empty_like(x) for name, x in zip("qkv", (q, k, v), strict=True)
        }
        library._flash_attn_backward(
            *(grad, q, k, v, out, lse.T.contiguous()),
            **_named(between),
            **gradients,
            softmax_scale=between.scale,
            is_causal=between.causal,
            deterministic=torch.are_deterministic_algorithms_enabled(),
        )
        return gradients["dq"], gradients["dk"], gradients["dv"]

    return Varlen(attend, differentiate)


def flash4() -> Varlen:
    """The package flash-attn-4: `flash_attn.cute`."""
    library = module("flash_attn.cute.interface")

    def attend(q: Tensor, k: Tensor, v: Tensor, between: Between[Spans]) -> tuple[Tensor, Tensor]:
        named = _named(between)
        out, lse, *_ = library._flash_attn_fwd(
            q, k, v, **named, softmax_scale=between.scale, causal=between.causal, return_lse=True
        )
        return out, lse.T

    def differentiate(saved: Saved, between: Between[Spans]) -> tuple[Tensor, Tensor, Tensor]:
        grad, q, k, v, out, lse = saved
        dq, dk, dv, *_ = library._flash_attn_bwd(
            *(q, k, v, out, grad, lse.T.contiguous()),
            **_named(between),
            softmax_scale=between.scale,
            causal=between.causal,
            deterministic=torch.are_deterministic_algorithms_enabled(),
        )
        return dq, dk, dv

    return Varlen(attend, differentiate)


def _lengths(between: Between[Spans]) -> tuple[Tensor, Tensor, int, int]:
    """As the four libraries order them."""
    queries, keys = between.queries, between.keys
    return queries.bounds, keys.bounds, queries.longest, keys.longest


def _named(between: Between[Spans]) -> dict[str, Any]:
    names = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")
    return dict(zip(names, _lengths(between), strict=True))
