"""A group as one sequence: chart and prompt once, G captions behind them.

Layout of the flat sequence, group after group::

    prefix_0 | caption_00 | caption_01 | ... | prefix_1 | caption_10 | ...

Who attends to whom follows from explicit segment lengths, never from positions. The last token of
a caption is not fed (nothing is predicted from it), so a caption of L tokens takes L - 1 rows.
`trainer.attention.shared_prefix` computes the attention over this layout.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Spans:
    """Segments that lie one behind another, none of them empty.

    bounds: int32 [n + 1], where each begins, and the end of the last.
    longest: rows of the longest one.
    """

    bounds: Tensor
    longest: int


@dataclass(frozen=True)
class Block:
    """The n segments of one kind: packed one behind another, or as a padded rectangle.

    real: int64 [m], their rows in the flat sequence, in flat order.
    spans: where each segment lies among those m rows.
    rows: int64 [n, length], row of the flat sequence, padding points at row 0.
    slots: int64 [m], where the m real rows lie in the flattened rectangle.
    """

    real: Tensor
    spans: Spans
    rows: Tensor
    slots: Tensor

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
class CaptionBlocks:
    """The rows of all captions, in the two ways in which their attention sees them.

    together: all caption rows of a group as one segment, [groups with any, most rows in a group].
    prefixes: the prefixes of those groups, [groups with any, P].
    own: each caption by itself, [captions with at least one row, longest].
    """

    together: Block
    prefixes: Block
    own: Block


@dataclass(frozen=True)
class GroupLayout:
    """Where the tokens of several groups lie in one flat sequence.

    n_rows: length of the flat sequence.
    prefix: the prefixes, [groups, P].
    captions: None where no caption has a row.
    positions: int64 [T], index j within prefix or caption.
    scored_from: int64 [N], for every caption token in order, the row whose logits predict it.
    group_of_row: int64 [T].
    in_caption: bool [T].
    """

    n_rows: int
    prefix: Block
    captions: CaptionBlocks | None
    positions: Tensor
    scored_from: Tensor
    group_of_row: Tensor
    in_caption: Tensor


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
    together: list[np.ndarray] = []
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
        together.append(np.arange(start + prefix_length, row))
        groups.append(np.full(row - start, group))
        start = row
    in_caption = np.ones(start, bool)
    in_caption[np.concatenate(prefixes)] = False
    prefix_block = _block(prefixes, device)
    return GroupLayout(
        n_rows=start,
        prefix=prefix_block,
        captions=_caption_blocks(prefixes, prefix_block, together, captions, device),
        positions=torch.as_tensor(np.concatenate(positions), device=device),
        scored_from=torch.as_tensor(np.concatenate(scored), device=device),
        group_of_row=torch.as_tensor(np.concatenate(groups), device=device),
        in_caption=torch.as_tensor(in_caption, device=device),
    )


def _caption_blocks(
    prefixes: list[np.ndarray],
    prefix_block: Block,
    together: list[np.ndarray],
    captions: list[np.ndarray],
    device: torch.device | str,
) -> CaptionBlocks | None:
    groups = [group for group, rows in enumerate(together) if rows.size]
    if not groups:
        return None
    if len(groups) < len(prefixes):
        prefix_block = _block([prefixes[group] for group in groups], device)
    return CaptionBlocks(
        together=_block([together[group] for group in groups], device),
        prefixes=prefix_block,
        own=_block([rows for rows in captions if rows.size], device),
    )


def _block(segments: list[np.ndarray], device: torch.device | str) -> Block:
    sizes = [s.size for s in segments]
    longest = max(sizes)
    rows = np.zeros((len(segments), longest), np.int64)
    slots = [i * longest + np.arange(size) for i, size in enumerate(sizes)]
    for i, segment in enumerate(segments):
        rows[i, : segment.size] = segment
    bounds = np.cumsum([0, *sizes], dtype=np.int32)
    real, bounds_, rows_, slots_ = (
        torch.as_tensor(table, device=device)
        for table in (np.concatenate(segments), bounds, rows, np.concatenate(slots))
    )
    return Block(real, Spans(bounds_, longest), rows_, slots_)
