"""The captions of a group with their log-probabilities, each behind its own chart and prompt.

What a trainer does that does not pack: rows of prompt and caption, padded on the right, through the
stock model with its own positions and masks. The head is ours, over caption tokens only, so that
the packing alone is compared.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trainer.logprobs import chosen_logprobs
from trainer.policy import Prompts


def unpacked_logps(
    model: Any, prompt: Prompts, captions: list[Tensor], *, banned: Tensor, at_once: int
) -> Tensor:
    """Log-probability of every caption token, in order.

    Args:
        model: stock Qwen2.5-VL.
        prompt: one chart.
        captions: int64 [L] each.
        banned: ids without probability.
        at_once: captions in one forward pass, all of them with the chart anew.
    """
    found = []
    for start in range(0, len(captions), at_once):
        part = captions[start : start + at_once]
        n, length = len(part), prompt.input_ids.shape[1]
        ids = torch.zeros(n, length + max(map(len, part)), dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, caption in enumerate(part):
            ids[row, : length + len(caption)] = torch.cat([prompt.input_ids[0], caption])
            mask[row, : length + len(caption)] = 1
        hidden = model.model(
            input_ids=ids,
            attention_mask=mask,
            pixel_values=prompt.pixel_values.repeat(n, 1),
            image_grid_thw=prompt.grid.repeat(n, 1),
            mm_token_type_ids=((ids == model.config.image_token_id) & (mask == 1)).int(),
            use_cache=False,
        ).last_hidden_state
        rows = [hidden[i, length - 1 : length - 1 + len(c)] for i, c in enumerate(part)]
        head = model.get_output_embeddings().weight
        found.append(chosen_logprobs(torch.cat(rows), head, torch.cat(part), banned=banned)[0])
    return torch.cat(found)
