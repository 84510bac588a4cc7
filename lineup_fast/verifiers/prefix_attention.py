"""Exact attention behind shared prefixes.

A packed row of nodes attends in two parts: to the prefix of each node (every key visible, so no
mask) and to itself (causal). The parts are merged through their log-sum-exp, which gives the same
numbers as one softmax over both. Dense or tree masks would lose the causal skipping of the fused
kernels, and with it the gain.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from lineup_fast.verifiers.prefix_plan import buckets

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from lineup_fast.verifiers.prefix_plan import Forest, Wave

NAME = "lineup_prefix"
MATH_SCORES = 1 << 27  # attention scores held at once where no fused kernel returns its log-sum-exp
BLOCK = 192  # rows of causal attention computed at once
JOINED = 128  # keys of a prefix up to which its continuations keep a copy of them in front
_CPU_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_cpu_flash: Callable[..., tuple[Tensor, Tensor]] = (
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
)


def _math(q: Tensor, k: Tensor, v: Tensor, scale: float, *, causal: bool) -> tuple[Tensor, Tensor]:
    """The formula itself, in float32 or better, a bounded number of scores at a time."""
    exact = torch.promote_types(q.dtype, torch.float32)
    if q.shape[1] != k.shape[1]:
        repeats = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
    k, v = k.to(exact), v.to(exact)
    step = max(1, MATH_SCORES // (q.shape[0] * q.shape[1] * k.shape[2]))
    outs, lses = [], []
    for start in range(0, q.shape[2], step):
        part = q[:, :, start : start + step].to(exact)
        scores = (part @ k.transpose(-1, -2)) * scale
        if causal:
            hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device)
            scores = scores.masked_fill(hidden.triu(start + 1), float("-inf"))
        lses.append(torch.logsumexp(scores, dim=-1))
        outs.append((torch.exp(scores - lses[-1][..., None]) @ v).to(q.dtype))
    return torch.cat(outs, dim=2), torch.cat(lses, dim=2)


def attend(q: Tensor, k: Tensor, v: Tensor, scale: float, *, causal: bool) -> tuple[Tensor, Tensor]:
    """Attention and its log-sum-exp.

    Args: q [B, Hq, Lq, D]; k, v [B, Hkv, Lk, D], Hq a multiple of Hkv; ``causal`` needs Lq = Lk.
    Returns: output [B, Hq, Lq, D] in q's dtype, lse [B, Hq, Lq] in float32 (float64 for float64).
    The returned lse carries no usable gradient.
    """
    if q.device.type != "cpu" or q.dtype not in _CPU_DTYPES:
        return _math(q, k, v, scale, causal=causal)
    if causal and q.shape[2] > BLOCK:
        return _causal_blocks(q, k, v, scale)
    return _cpu_flash(q, k, v, 0.0, causal, scale=scale)


def _causal_blocks(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Causal attention a block of rows at a time, over all keys before it and over its own.

    The fused CPU kernel leaves out hidden keys 512 at a time only: it reads a square of up to 512
    rows whole, and a third more than it must of 1,500 rows.
    """
    exact = torch.promote_types(q.dtype, torch.float32)
    out = torch.empty_like(q)
    lse = torch.empty(q.shape[:3], dtype=exact, device=q.device)
    for start in range(0, q.shape[2], BLOCK):
        rows = slice(start, start + BLOCK)
        part = attend(q[:, :, rows], k[:, :, rows], v[:, :, rows], scale, causal=True)
        if start:
            before = attend(q[:, :, rows], k[:, :, :start], v[:, :, :start], scale, causal=False)
            part = merge(*part, *before)
        out[:, :, rows], lse[:, :, rows] = part
    return out, lse


def merge(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    """Attention over the union of two disjoint sets of keys, and its log-sum-exp.

    Args: outputs [..., D] over each set, and their log-sum-exps [...]. Returns: the same pair,
    the output in the dtype of the log-sum-exps.
    """
    weight = torch.sigmoid(lse_b - lse_a)[..., None]
    out = torch.lerp(out_a.to(weight.dtype), out_b.to(weight.dtype), weight)
    return out, torch.logaddexp(lse_a, lse_b)


@dataclass(frozen=True)
class PackedWave:
    """One wave on the device: what the attention of every layer needs to know.

    ids, positions int64 [1, N]; prefixes: (first row, last row, an ancestor of all of them), whose
    kept keys together cover the path of every row; fronts: for each node the ancestor whose kept
    keys are kept in front of its own, -1 for none; selves: per bucket a slice of rows of one
    segment, or (segments C, rows [C*L] to gather, the real ones among them, their places).
    """

    ids: Tensor
    positions: Tensor
    wave: Wave
    prefixes: list[tuple[int, int, int]]
    fronts: list[int]
    selves: list[slice | tuple[int, Tensor, Tensor, Tensor]]
    kept: KeptKeys


@dataclass
class KeptKeys:
    """Keys and values of computed nodes, behind those of a short prefix: layer → node → (k, v),
    each [1, Hkv, L, D]."""

    layers: dict[int, dict[int, tuple[Tensor, Tensor]]] = field(default_factory=dict)

    def keep(self, layer: int, packed: PackedWave, k: Tensor, v: Tensor) -> None:
        """Remember the keys and values of every node of the wave."""
        store = self.layers.setdefault(layer, {})
        rows = packed.wave.offsets.tolist()
        nodes = zip(packed.wave.nodes, packed.fronts, rows[:-1], rows[1:], strict=True)
        for node, front, first, last in nodes:
            own = k[:, :, first:last], v[:, :, first:last]
            if front < 0:
                store[node] = own
            else:
                keys, values = store[front]
                store[node] = torch.cat([keys, own[0]], 2), torch.cat([values, own[1]], 2)


def _covering(forest: Forest, path: list[int]) -> tuple[list[int], bool]:
    """Nodes of a path whose kept keys together are those of the whole path, and whether the next
    node keeps those of the last one in front of its own.

    Attending to a few keys costs nearly what attending to many does: a prefix of at most
    ``JOINED`` keys is no part of its own.
    """
    ends: list[int] = []
    size = JOINED + 1
    for node in path:
        if size > JOINED:
            ends.append(node)
            size = 0
        ends[-1] = node
        size += len(forest.ids[node])
    return ends, size <= JOINED


def pack_wave(forest: Forest, wave: Wave, kept: KeptKeys, device: torch.device) -> PackedWave:
    """Ids, positions and segment indices of a wave as tensors."""
    rows = wave.offsets
    lengths = np.diff(rows)
    ids = np.concatenate([forest.ids[node] for node in wave.nodes]).astype(np.int64)
    begins = np.array([forest.start[node] for node in wave.nodes], dtype=np.int64)
    positions = np.arange(rows[-1]) + np.repeat(begins - rows[:-1], lengths)
    prefixes: list[tuple[int, int, int]] = []
    fronts: list[int] = []
    open_at: dict[int, int] = {}  # ancestor → its latest entry
    for number, node in enumerate(wave.nodes):
        first, last = int(rows[number]), int(rows[number + 1])
        ancestors, joins = _covering(forest, forest.path(node)[:-1])
        fronts.append(ancestors[-1] if joins else -1)
        for ancestor in ancestors:
            entry = open_at.get(ancestor)
            if entry is None or prefixes[entry][1] < first:
                open_at[ancestor] = len(prefixes)
                prefixes.append((first, last, ancestor))
            else:
                prefixes[entry] = (prefixes[entry][0], last, ancestor)
    selves: list[slice | tuple[int, Tensor, Tensor, Tensor]] = []
    for bucket in buckets(lengths):
        if len(bucket) == 1:
            selves.append(slice(int(rows[bucket[0]]), int(rows[bucket[0] + 1])))
            continue
        longest = int(lengths[bucket[0]])
        steps = np.arange(longest)
        real = steps < lengths[bucket][:, None]
        gather = np.where(real, rows[bucket][:, None] + steps, rows[bucket][:, None])
        places = np.flatnonzero(real.ravel())
        selves.append(
            (
                len(bucket),
                torch.from_numpy(gather.ravel()).to(device),
                torch.from_numpy(gather.ravel()[places]).to(device),
                torch.from_numpy(places).to(device),
            )
        )
    return PackedWave(
        torch.from_numpy(ids)[None].to(device),
        torch.from_numpy(positions)[None].to(device),
        wave,
        prefixes,
        fronts,
        selves,
        kept,
    )


def _attend_selves(
    packed: PackedWave, q: Tensor, k: Tensor, v: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """Causal attention inside each node, in float32 or better.

    Args: q [N, Hq, D]; k, v [N, Hkv, D]. Returns: output [N, Hq, D] and log-sum-exp [N, Hq].
    """
    exact = torch.promote_types(q.dtype, torch.float32)
    out = torch.empty(q.shape, dtype=exact, device=q.device)
    lse = torch.empty(q.shape[:2], dtype=exact, device=q.device)
    for part in packed.selves:
        if isinstance(part, slice):
            qs, ks, vs = (x[part].transpose(0, 1)[None] for x in (q, k, v))
            o, s = attend(qs, ks, vs, scale, causal=True)
            out[part], lse[part] = o[0].transpose(0, 1), s[0].transpose(0, 1)
            continue
        count, gather, rows, places = part
        qs, ks, vs = (
            x.index_select(0, gather).view(count, -1, *x.shape[1:]).transpose(1, 2)
            for x in (q, k, v)
        )
        o, s = attend(qs, ks, vs, scale, causal=True)
        out.index_copy_(0, rows, o.transpose(1, 2).flatten(0, 1).index_select(0, places).to(exact))
        lse.index_copy_(0, rows, s.transpose(1, 2).flatten(0, 1).index_select(0, places).to(exact))
    return out, lse


def prefix_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    *,
    lineup_wave: PackedWave,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention function of transformers for one packed wave, registered as ``NAME``.

    Args: query [1, Hq, N, D]; key, value [1, Hkv, N, D], already rotated; no mask is read.
    Returns: [1, N, Hq, D] and no weights.
    """
    del attention_mask, dropout, kwargs
    packed = lineup_wave
    scale = scaling if scaling is not None else float(query.shape[-1]) ** -0.5
    layer = int(module.layer_idx)
    if packed.wave.keep:
        packed.kept.keep(layer, packed, key, value)
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    n_kv, group = k.shape[1], q.shape[1] // k.shape[1]
    out, lse = _attend_selves(packed, q, k, v, scale)
    for first, last, ancestor in packed.prefixes:
        keys, values = packed.kept.layers[layer][ancestor]
        # The rows of all descendants and all query heads of a KV head become one long query.
        rows = last - first
        folded = q[first:last].reshape(rows, n_kv, group, -1).permute(1, 2, 0, 3)
        o, s = attend(folded.flatten(1, 2)[None], keys, values, scale, causal=False)
        o = o.reshape(n_kv, group, rows, -1).permute(2, 0, 1, 3).flatten(1, 2)
        s = s.reshape(n_kv, group, rows).permute(2, 0, 1).flatten(1, 2)
        out[first:last], lse[first:last] = merge(out[first:last], lse[first:last], o, s)
    return out[None].to(query.dtype), None


def register() -> None:
    """Make ``NAME`` known to transformers; without a mask function of that name it builds none."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, prefix_attention)
