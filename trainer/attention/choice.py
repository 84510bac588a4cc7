"""Which attention runs where: the first of those that are here and agree with the formula.

On CUDA, for float16 and bfloat16, FlashAttention on packed rows: of the packages 3 (Hopper), 4
(Hopper and Blackwell, before its first release) and 2, else the one torch carries; else torch's
memory-efficient attention, and then the formula, in padded rectangles. On a CPU torch's fused
attention. Before one is used, output, log-sum-exp and gradients of a few small groups are compared
with one dense softmax, once per process, device, dtype and shape of the heads.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.attention.packing import GroupLayout, group_layout
from trainer.attention.padded import CPU, EFFICIENT, PLAIN
from trainer.attention.segments import SegmentAttention
from trainer.attention.shared_prefix import merged_attention, shared_prefix_attention
from trainer.attention.varlen import flash2, flash3, flash4, torch_varlen
from trainer.choice import Candidate, Choice, UnfitError, first_right

# Largest difference that passes, as a share of the largest value of the tensor in question.
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 2e-2}
_HALVES = (torch.float16, torch.bfloat16)
# Captions behind the prefix of each group of the check: one without rows, one group without any.
_CHECKED_PREFIX, _CHECKED_CAPTIONS = 67, [[9, 1, 40, 2], [1, 1], [150, 3]]


@dataclass(frozen=True)
class Heads:
    """What a kernel is built for.

    device: "cpu", "cuda:0", …; query, key_value: number of heads; dim: width of each.
    """

    device: str
    dtype: torch.dtype
    query: int
    key_value: int
    dim: int

    @classmethod
    def of(cls, q: Tensor, k: Tensor, v: Tensor) -> Heads:
        """Of rows [..., H, D]; the dtype is that of the values."""
        return cls(str(v.device), v.dtype, q.shape[-2], k.shape[-2], q.shape[-1])


@functools.cache
def choose(heads: Heads) -> Choice[SegmentAttention]:
    """What attends for these heads, and why those before it do not."""
    candidates = [
        Candidate(name, functools.partial(_loaded, load, dtypes, heads.dtype))
        for name, load, dtypes in CANDIDATES.get(torch.device(heads.device).type, ())
    ]
    last: Candidate[SegmentAttention] = Candidate("the plain formula", lambda: PLAIN)
    # In a thread of its own: no_grad, autocast and checkpointing of the caller stay outside.
    with ThreadPoolExecutor(1) as thread:
        checked = functools.partial(check, heads=heads)
        return thread.submit(first_right, candidates, checked, last).result()


Loader = Callable[[], SegmentAttention]
# By type of device: name, loader, dtypes it takes (None: all).
CANDIDATES: dict[str, tuple[tuple[str, Loader, tuple[torch.dtype, ...] | None], ...]] = {
    "cpu": (("torch's fused attention", lambda: CPU, None),),
    "cuda": (
        ("flash-attn 3", flash3, _HALVES),
        ("flash-attn 4", flash4, _HALVES),
        ("flash-attn 2", flash2, _HALVES),
        ("torch.nn.attention.varlen", torch_varlen, _HALVES),
        ("torch's memory-efficient attention", lambda: EFFICIENT, (*_HALVES, torch.float32)),
    ),
}


def _loaded(
    load: Loader, dtypes: tuple[torch.dtype, ...] | None, dtype: torch.dtype
) -> SegmentAttention:
    op = load()  # "not installed" says more than "not for this dtype"
    if dtypes is not None and dtype not in dtypes:
        names = " and ".join(_short(kind) for kind in dtypes)
        raise UnfitError(f"takes {names}, not {_short(dtype)}")
    return op


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def check(op: SegmentAttention, heads: Heads) -> None:
    """Compares `op` with one dense softmax; raises ValueError where they differ."""
    layout = group_layout(_CHECKED_PREFIX, _CHECKED_CAPTIONS, heads.device)
    random = torch.Generator().manual_seed(0)
    n_kv = min(heads.key_value, 2)  # more of the same would be the same
    n_q = n_kv * (heads.query // heads.key_value)
    q, k, v, grad = (
        torch.randn(layout.n_rows, n, heads.dim, generator=random, dtype=torch.float64)
        .to(heads.dtype)
        .to(heads.device)
        for n in (n_q, n_kv, n_kv, n_q)
    )
    scale = heads.dim**-0.5
    wide = torch.float64 if heads.dtype == torch.float64 else torch.float32
    device = torch.device(heads.device)
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        for x in (q, k, v):
            x.requires_grad_()
        out = shared_prefix_attention(q, k, v, layout, scale, op)
        found = [out.detach(), *torch.autograd.grad(out, (q, k, v), grad)]
        found.append(merged_attention(q.detach(), k.detach(), v.detach(), layout, scale, op)[1])
    q, k, v = (x.detach().to(wide).requires_grad_() for x in (q, k, v))
    dense, lse = dense_attention(q, k, v, layout, scale)
    gradients = torch.autograd.grad(dense, (q, k, v), grad.to(wide))
    expected = [dense.detach(), *gradients, lse.detach()]
    names = ("output", "gradient of q", "gradient of k", "gradient of v", "log-sum-exp")
    for name, ours, right in zip(names, found, expected, strict=True):
        off = float((ours.to(wide) - right).abs().max() / right.abs().max())
        allowed = _TOLERANCE[heads.dtype]
        if not off <= allowed:  # NaN is wrong, too
            raise ValueError(f"{name}: expected the formula's within {allowed:g}, off by {off:.2g}")


def dense_attention(
    q: Tensor, k: Tensor, v: Tensor, layout: GroupLayout, scale: float
) -> tuple[Tensor, Tensor]:
    """The same attention with a mask over all T rows: output [T, Hq, D], lse [T, Hq].

    Obvious and slow, O(T^2) memory; differentiable.
    """
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    rows = torch.arange(layout.n_rows, device=q.device)
    past = rows[:, None] >= rows
    group, segment = layout.group_of_row, (layout.positions == 0).cumsum(0)
    to_prefix = (group[:, None] == group) & ~layout.in_caption
    seen = past & (to_prefix | (segment[:, None] == segment))
    scores = torch.einsum("ihd,jhd->hij", q, k) * scale
    scores = scores.masked_fill(~seen, -torch.inf)
    lse = torch.logsumexp(scores, -1)
    return torch.einsum("hij,jhd->ihd", (scores - lse[..., None]).exp(), v), lse.T
