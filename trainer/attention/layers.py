"""Our attention functions, as transformers models call them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import flash_attention_mask, sdpa_mask

from trainer.attention import choice
from trainer.attention.choice import Heads
from trainer.attention.packing import GroupLayout, Spans
from trainer.attention.segments import SegmentAttention
from trainer.attention.shared_prefix import shared_prefix_attention
from trainer.attention.varlen import Varlen, window_attention
from trainer.choice import Choice

_TEXT = "lineup_text"
_VISION = "lineup_flash_windows"  # names with "flash" receive the window boundaries


@dataclass(frozen=True)
class PackedGroups:
    """Passed to the attention layers in training: who attends to whom in a packed sequence."""

    layout: GroupLayout

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """Shared-prefix attention; q [1, Hq, T, D], k and v [1, Hkv, T, D] -> [1, T, Hq, D]."""
        del layer
        q, k, v = (x[0].transpose(0, 1) for x in (q, k, v))
        op = choice.choose(Heads.of(q, k, v)).op
        return shared_prefix_attention(q, k, v, self.layout, scale, op)[None]


def use_our_attention(config: Any) -> None:
    """Sets the attention of a Qwen2.5-VL config (`from_pretrained` would ask the hub for it)."""
    AttentionInterface.register(_TEXT, _text_attention)
    AttentionMaskInterface.register(_TEXT, sdpa_mask)
    AttentionInterface.register(_VISION, _vision_attention)
    AttentionMaskInterface.register(_VISION, flash_attention_mask)
    config.text_config._attn_implementation = _TEXT
    config.vision_config._attn_implementation = _VISION


def chosen_attention(
    config: Any, device: torch.device | str, dtype: torch.dtype
) -> dict[str, Choice[SegmentAttention]]:
    """What attends in the "text" and the "vision" part of a model with this config."""
    text, vision = config.text_config, config.vision_config
    dim = text.hidden_size // text.num_attention_heads
    shapes = {
        "text": (text.num_attention_heads, text.num_key_value_heads, dim),
        "vision": (vision.num_heads, vision.num_heads, vision.hidden_size // vision.num_heads),
    }
    return {
        name: choice.choose(Heads(str(device), dtype, *shape)) for name, shape in shapes.items()
    }


def _text_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    lineup: Any = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Ours where an attention object is passed along, stock attention elsewhere (`generate`)."""
    if lineup is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **kwargs
        )
    return lineup.attend(module.layer_idx, query, key, value, scaling), None


def _vision_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    cu_seq_lens_q: Tensor,
    max_length_q: int | Tensor,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Window attention [1, H, S, D]: packed rows where an op takes them, else `_by_length`."""
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))  # [S, H, D]
    op = choice.choose(Heads.of(q, k, v)).op
    if isinstance(op, Varlen):
        spans = Spans(cu_seq_lens_q.to(torch.int32), int(max_length_q))
        return window_attention(q, k, v, spans, scaling, op)[None], None
    return _by_length(q, k, v, cu_seq_lens_q.tolist(), scaling)[None], None


def _by_length(q: Tensor, k: Tensor, v: Tensor, bounds: list[int], scale: float) -> Tensor:
    """Window attention [S, H, D]: windows of equal length in one call, not one by one."""
    by_length: dict[int, list[int]] = {}
    for start, end in itertools.pairwise(bounds):
        by_length.setdefault(end - start, []).append(start)
    parts, order = [], []
    for length, starts in by_length.items():
        rows = torch.tensor(starts, device=q.device)[:, None] + torch.arange(
            length, device=q.device
        )
        rows = rows.reshape(-1)
        q_, k_, v_ = (
            x.index_select(0, rows).view(len(starts), length, *x.shape[1:]).transpose(1, 2)
            for x in (q, k, v)
        )
        out = F.scaled_dot_product_attention(q_, k_, v_, scale=scale)
        parts.append(out.transpose(1, 2).flatten(0, 1))
        order.append(rows)
    if len(parts) == 1:
        return parts[0]  # one length: the windows already lie in order
    back = torch.argsort(torch.cat(order))
    return torch.cat(parts).index_select(0, back)
