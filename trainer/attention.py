"""Our attention functions, as transformers models call them."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import flash_attention_mask, sdpa_mask

_TEXT = "lineup_text"
_VISION = "lineup_flash_windows"  # names with "flash" receive the window boundaries


def use_our_attention(config: Any) -> None:
    """Sets the attention of a Qwen2.5-VL config (`from_pretrained` would ask the hub for it)."""
    AttentionInterface.register(_TEXT, _text_attention)
    AttentionMaskInterface.register(_TEXT, sdpa_mask)
    AttentionInterface.register(_VISION, _vision_attention)
    AttentionMaskInterface.register(_VISION, flash_attention_mask)
    config.text_config._attn_implementation = _TEXT
    config.vision_config._attn_implementation = _VISION


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
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Window attention [1, H, S, D]: windows of equal length in one call, not one by one."""
    bounds = cu_seq_lens_q.tolist()
    by_length: dict[int, list[int]] = {}
    for start, end in itertools.pairwise(bounds):
        by_length.setdefault(end - start, []).append(start)
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))  # [S, H, D]
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
        out = F.scaled_dot_product_attention(q_, k_, v_, scale=scaling)
        parts.append(out.transpose(1, 2).flatten(0, 1))
        order.append(rows)
    if len(parts) == 1:
        return parts[0][None], None  # one length: the windows already lie in order
    back = torch.argsort(torch.cat(order))
    return torch.cat(parts).index_select(0, back)[None], None
