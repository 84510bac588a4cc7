"""Attention over packed groups: how they are laid out, and which kernels read them."""

from __future__ import annotations

from trainer.attention.choice import Heads
from trainer.attention.layers import PackedGroups, chosen_attention, use_our_attention
from trainer.attention.packing import Spans, group_layout
from trainer.attention.segments import Between
from trainer.attention.varlen import Varlen

__all__ = [
    "Between",
    "Heads",
    "PackedGroups",
    "Spans",
    "Varlen",
    "chosen_attention",
    "group_layout",
    "use_our_attention",
]
