"""The best plain way to score the same questions with Hugging Face; only the benchmark imports it.

Whole prompts, sorted by length and batched, padded on the right so that attention stays causal
without a mask, decoder once, vocabulary head at the last token of each prompt only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    import numpy.typing as npt

    from lineup_fast.kernels import PromptTree
    from lineup_fast.verifiers.base import LabelTokens


def naive_logprobs(
    model: Any, trees: Sequence[PromptTree], labels: LabelTokens, *, batch_tokens: int = 4096
) -> list[npt.NDArray[np.float32]]:
    """Log-probabilities [G, K, K] of the labels for every question of every tree."""
    prompts: list[npt.NDArray[np.int32]] = []
    places: list[tuple[int, int, int]] = []
    for number, tree in enumerate(trees):
        for caption, position in np.argwhere(tree.questions >= 0).tolist():
            prompts.append(tree.prompt(caption, position))
            places.append((number, caption, position))
    table = torch.from_numpy(labels.ids.astype(np.int64))
    k = len(labels.names)
    answers = [np.full((*tree.questions.shape, k), np.nan, dtype=np.float32) for tree in trees]
    order = sorted(range(len(prompts)), key=lambda at: len(prompts[at]))
    with torch.inference_mode():
        for batch in _batches(order, prompts, batch_tokens):
            lengths = torch.tensor([len(prompts[at]) for at in batch])
            ids = torch.zeros(len(batch), int(lengths.max()), dtype=torch.long)
            for row, at in enumerate(batch):
                ids[row, : len(prompts[at])] = torch.from_numpy(prompts[at])
            hidden = model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state
            ends = hidden[torch.arange(len(batch)), lengths - 1]
            logits = model.get_output_embeddings()(ends).float()
            variants = logits[:, table.clamp(min=0)].masked_fill(table < 0, float("-inf"))
            found = torch.logsumexp(variants, -1) - torch.logsumexp(logits, -1, keepdim=True)
            for row, at in enumerate(batch):
                number, caption, position = places[at]
                answers[number][caption, position] = found[row].numpy()
    return answers


def _batches(
    order: Sequence[int], prompts: Sequence[npt.NDArray[np.int32]], batch_tokens: int
) -> list[list[int]]:
    """Runs of prompts of rising length whose padded size stays within the budget."""
    runs: list[list[int]] = [[]]
    for at in order:
        if runs[-1] and (len(runs[-1]) + 1) * len(prompts[at]) > batch_tokens:
            runs.append([])
        runs[-1].append(at)
    return runs
