"""Stand-ins for the FlashAttention libraries: their signatures, the formula, any device and dtype.

Log-sum-exps go in and out as [heads, rows], as theirs do. Signatures as in flash-attn 2.8.3, the
`hopper` folder of its repository (FlashAttention 3) and flash-attn-4 4.0.0b36, shortened to what a
caller of packed segments may name.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from torch import Tensor


def _scores(q: Tensor, k: Tensor, causal: bool, scale: float) -> Tensor:
    wide = torch.promote_types(q.dtype, torch.float32)
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    scores = torch.einsum("ihd,jhd->hij", q.to(wide), k.to(wide)) * scale
    if causal:
        assert q.shape[0] == k.shape[0]
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
    return scores


def _segments(cu_q: Tensor, cu_k: Tensor, max_q: int, max_k: int) -> Iterator[tuple[slice, slice]]:
    assert cu_q.dtype == cu_k.dtype == torch.int32
    assert cu_q.shape == cu_k.shape
    assert (int(cu_q.diff().max()), int(cu_k.diff().max())) == (max_q, max_k)
    assert int(cu_q.diff().min()) > 0  # kernels differ in what they make of an empty one
    for i in range(len(cu_q) - 1):
        yield slice(int(cu_q[i]), int(cu_q[i + 1])), slice(int(cu_k[i]), int(cu_k[i + 1]))


def attend(
    q: Tensor, k: Tensor, v: Tensor, *lengths: Any, scale: float, causal: bool
) -> tuple[Tensor, Tensor]:
    """Output [mq, Hq, D] and log-sum-exp [Hq, mq]."""
    assert int(lengths[0][-1]) == len(q)
    assert int(lengths[1][-1]) == len(k) == len(v)
    out = torch.empty_like(q)
    lse = torch.empty(q.shape[1], len(q), dtype=torch.promote_types(q.dtype, torch.float32))
    repeats = q.shape[1] // k.shape[1]
    for rows, keys in _segments(*lengths):
        scores = _scores(q[rows], k[keys], causal, scale)
        lse[:, rows] = torch.logsumexp(scores, -1)
        weights = (scores - lse[:, rows, None]).exp().to(v.dtype)
        out[rows] = torch.einsum("hij,jhd->ihd", weights, v[keys].repeat_interleave(repeats, 1))
    return out, lse


def differentiate(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    *lengths: Any,
    scale: float,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients, given output and log-sum-exp [Hq, mq] over more keys than these."""
    assert lse.shape == (q.shape[1], len(q))
    assert lse.is_contiguous()
    dq, dk, dv = (torch.zeros_like(x) for x in (q, k, v))
    repeats = q.shape[1] // k.shape[1]
    for rows, keys in _segments(*lengths):
        weights = (_scores(q[rows], k[keys], causal, scale) - lse[:, rows, None]).exp()
        g, o = grad[rows].to(weights.dtype), out[rows].to(weights.dtype)
        wide_k, wide_v = (x[keys].to(weights.dtype).repeat_interleave(repeats, 1) for x in (k, v))
        own = (g * o).sum(-1).T[..., None]
        d_scores = weights * (torch.einsum("ihd,jhd->hij", g, wide_v) - own) * scale
        dq[rows] = torch.einsum("hij,jhd->ihd", d_scores, wide_k).to(q.dtype)
        d_keys = torch.einsum("hij,ihd->jhd", d_scores, q[rows].to(weights.dtype))
        d_values = torch.einsum("hij,ihd->jhd", weights, g)
        for total, part in ((dk, d_keys), (dv, d_values)):
            shared = part.unflatten(1, (-1, repeats)).sum(2)
            total[keys] = shared.to(total.dtype)
    return dq, dk, dv


def _flash2() -> ModuleType:
    library = ModuleType("flash_attn.flash_attn_interface")

    def _flash_attn_varlen_forward(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale,
        causal, window_size_left=-1, window_size_right=-1, softcap=0.0, alibi_slopes=None,
        return_softmax=False, block_table=None, leftpad_k=None, seqused_k=None, zero_tensors=False,
    ):  # fmt: skip
        assert dropout_p == softcap == 0
        assert window_size_left == window_size_right == -1
        lengths = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
        out, lse = attend(q, k, v, *lengths, scale=softmax_scale, causal=causal)
        return out, lse, torch.empty(0), torch.empty(2)

    def _flash_attn_varlen_backward(
        dout, q, k, v, out, softmax_lse, dq, dk, dv, cu_seqlens_q, cu_seqlens_k, max_seqlen_q,
        max_seqlen_k, dropout_p, softmax_scale, causal, window_size_left, window_size_right,
        softcap, alibi_slopes, deterministic, rng_state=None, zero_tensors=False,
    ):  # fmt: skip
        assert dropout_p == softcap == 0
        assert window_size_left == window_size_right == -1
        lengths = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
        found = differentiate(
            dout, q, k, v, out, softmax_lse, *lengths, scale=softmax_scale, causal=causal
        )
        for target, value in zip((dq, dk, dv), found, strict=True):
            target.copy_(value)
        return torch.empty(0)

    library._flash_attn_varlen_forward = _flash_attn_varlen_forward
    library._flash_attn_varlen_backward = _flash_attn_varlen_backward
    return library


def _flash3() -> ModuleType:
    library = ModuleType("flash_attn_interface")

    def _flash_attn_forward(
        q, k, v, k_new=None, v_new=None, qv=None, out_=None, cu_seqlens_q=None, cu_seqlens_k=None,
        cu_seqlens_k_new=None, seqused_q=None, seqused_k=None, max_seqlen_q=None,
        max_seqlen_k=None, softmax_scale=None, causal=False, window_size_left=-1,
        window_size_right=-1,
    ):  # fmt: skip
        lengths = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
        out, lse = attend(q, k, v, *lengths, scale=softmax_scale, causal=causal)
        return out, lse, torch.empty(0), torch.empty(0)

    def _flash_attn_backward(
        dout, q, k, v, out, softmax_lse, cu_seqlens_q=None, cu_seqlens_k=None, sequed_q=None,
        sequed_k=None, max_seqlen_q=None, max_seqlen_k=None, dq=None, dk=None, dv=None,
        softmax_scale=None, is_causal=False, window_size_left=-1, window_size_right=-1,
        softcap=0.0, deterministic=False, sm_margin=0,
    ):  # fmt: skip
        lengths = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
        found = differentiate(
            dout, q, k, v, out, softmax_lse, *lengths, scale=softmax_scale, causal=is_causal
        )
        for target, value in zip((dq, dk, dv), found, strict=True):
            target.copy_(value)
        return torch.empty(0)

    library._flash_attn_forward = _flash_attn_forward
    library._flash_attn_backward = _flash_attn_backward
    return library


def _flash4() -> ModuleType:
    library = ModuleType("flash_attn.cute.interface")

    def _flash_attn_fwd(
        q, k, v, qv=None, cu_seqlens_q=None, cu_seqlens_k=None, seqused_q=None, seqused_k=None,
        max_seqlen_q=None, max_seqlen_k=None, min_seqlen_k=None, page_table=None,
        softmax_scale=None, causal=False, softcap=None, window_size_left=None,
        window_size_right=None, return_lse=False,
    ):  # fmt: skip
        lengths = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
        out, lse = attend(q, k, v, *lengths, scale=softmax_scale, causal=causal)
        return out, lse if return_lse else None, None, None, None

    def _flash_attn_bwd(
        q, k, v, out, dout, lse, softmax_scale=None, causal=False, softcap=0.0,
        window_size_left=None, window_size_right=None, cu_seqlens_q=None, cu_seqlens_k=None,
        seqused_q=None, seqused_k=None, max_seqlen_q=None, max_seqlen_k=None,
        deterministic=False, dq=None, dk=None, dv=None, dlse=None,
    ):  # fmt: skip
        lengths = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
        return differentiate(dout, q, k, v, out, lse, *lengths, scale=softmax_scale, causal=causal)

    library._flash_attn_fwd = _flash_attn_fwd
    library._flash_attn_bwd = _flash_attn_bwd
    return library


@contextmanager
def installed() -> Iterator[None]:
    """The three packages can be imported, and torch's own kernel runs on a CPU."""
    modules = {library.__name__: library for library in (_flash2(), _flash3(), _flash4())}
    for parent in ("flash_attn", "flash_attn.cute"):
        modules[parent] = ModuleType(parent)
    before = {name: sys.modules.get(name) for name in modules}
    sys.modules.update(modules)
    aten = torch.library.Library("aten", "IMPL")
    try:
        aten.impl("_flash_attention_forward", _aten_forward, "CPU")
        aten.impl("_flash_attention_backward", _aten_backward, "CPU")
        yield
    finally:
        aten._destroy()
        for name, library in before.items():
            if library is None:
                del sys.modules[name]
            else:
                sys.modules[name] = library


def _aten_forward(
    q, k, v, cu_q, cu_k, max_q, max_k, dropout_p, is_causal, return_debug_mask=False, *,
    scale=None, window_size_left=None, window_size_right=None, **unused,
):  # fmt: skip
    assert (window_size_left, window_size_right) == (-1, 0 if is_causal else -1)
    out, lse = attend(q, k, v, cu_q, cu_k, max_q, max_k, scale=scale, causal=is_causal)
    return out, lse, torch.zeros(2, dtype=torch.uint64), torch.empty(0), torch.empty(0)


def _aten_backward(
    grad, q, k, v, out, lse, cu_q, cu_k, max_q, max_k, dropout_p, is_causal, rng_state, unused, *,
    scale=None, window_size_left=None, window_size_right=None,
):  # fmt: skip
    assert (window_size_left, window_size_right) == (-1, 0 if is_causal else -1)
    lengths = (cu_q, cu_k, max_q, max_k)
    return differentiate(grad, q, k, v, out, lse, *lengths, scale=scale, causal=is_causal)
