"""Runs a forest of prompts through a model, each node once."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from lineup_fast.verifiers import prefix_attention
from lineup_fast.verifiers.prefix_plan import build_forest, grow, packed, waves

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt
    from torch import Tensor

    from lineup_fast.kernels import PromptTree
    from lineup_fast.verifiers.prefix_plan import Forest, Wave

HEAD_ROWS = 64  # answer positions that go through the LM head at once
FREED = (32 << 20) - (64 << 10)  # bytes; the largest freed block that glibc learns from


def keep_freed_memory() -> None:
    """Lets glibc keep up to 64 MB of freed memory for the next wave, in the whole process.

    Waves differ in size: by its defaults malloc gives their buffers back to the system after each
    and has them cleared again for the next, which took a seventh of the time. Freeing one large
    block, never touched, raises both of its thresholds. Other allocators are not affected.
    """
    torch.empty(FREED, dtype=torch.uint8)  # freed at once


class PrefixEngine:
    """Computes a frozen causal language model at the ends of prompts that share prefixes.

    model: of an architecture that ``prefix_attention`` reproduces; head: hidden states [n, H] →
    logits [n, vocabulary]; chunk_tokens: rows of one forward pass.
    """

    def __init__(
        self, model: Any, head: Callable[[Tensor], Tensor], device: torch.device, chunk_tokens: int
    ) -> None:
        prefix_attention.register()
        if device.type == "cpu":
            keep_freed_memory()
        self._decoder = model.get_decoder()
        self._config = model.config.get_text_config()
        self._head = head
        self._device = device
        self._chunk_tokens = chunk_tokens

    def at_ends(
        self, trees: Sequence[PromptTree], read: Callable[[Tensor], Tensor], width: int
    ) -> tuple[list[npt.NDArray[np.float32]], list[int]]:
        """``read`` of the logits behind every question.

        Args: read: logits [n, vocabulary] → [n, width]. Returns: per tree float32 [G, K, width],
        NaN where nothing is asked, and the tokens computed for it.
        """
        forest = build_forest(trees)
        answers = np.full((len(forest.ids) + 1, width), np.nan, dtype=np.float32)
        with self._prefix_attention():
            for nodes, logits in self._asked(forest, prefix_attention.KeptKeys()):
                answers[nodes] = read(logits).float().cpu().numpy()
        return [answers[questions] for questions in forest.questions], forest.prefilled(len(trees))

    def greedy(
        self, trees: Sequence[PromptTree], max_new_tokens: int, ends: set[int]
    ) -> tuple[list[list[list[list[int]]]], list[int]]:
        """Greedy continuations of every question, as ids [tree][G][K][n], and tokens computed.

        A reply stops after one of ``ends``, which is its last id; unasked questions have none.
        """
        forest = build_forest(trees)
        kept = prefix_attention.KeptKeys()
        replies: dict[int, list[int]] = {}
        tips: dict[int, int] = {}  # question → node that ends its reply so far
        with self._prefix_attention():
            for nodes, logits in self._asked(forest, kept, keep_leaves=True):
                for node, token in zip(nodes.tolist(), logits.argmax(1).tolist(), strict=True):
                    replies[node], tips[node] = [token], node
            for _ in range(max_new_tokens - 1):
                active = [node for node in tips if replies[node][-1] not in ends]
                grown = grow(
                    forest, [tips[node] for node in active], [replies[node][-1] for node in active]
                )
                tips = dict(zip(active, grown, strict=True))
                owner = dict(zip(grown, active, strict=True))
                for wave in packed(forest, grown, self._chunk_tokens, keep=True):
                    for nodes, logits in self._read(wave, self._forward(forest, wave, kept)):
                        for node, token in zip(
                            nodes.tolist(), logits.argmax(1).tolist(), strict=True
                        ):
                            replies[owner[node]].append(token)
        texts = [
            [[replies.get(node, []) for node in row] for row in questions.tolist()]
            for questions in forest.questions
        ]
        return texts, forest.prefilled(len(trees))

    @contextmanager
    def _prefix_attention(self) -> Iterator[None]:
        """Run the model with our attention for a while; set on its configuration directly."""
        stock = self._config._attn_implementation
        try:
            self._config._attn_implementation = prefix_attention.NAME
            yield
        finally:
            self._config._attn_implementation = stock

    def _asked(
        self, forest: Forest, kept: prefix_attention.KeptKeys, *, keep_leaves: bool = False
    ) -> Iterator[tuple[npt.NDArray[np.int64], Tensor]]:
        """(nodes, logits at their ends) of every node that ends a question."""
        asked = np.zeros(len(forest.ids), dtype=bool)
        for questions in forest.questions:
            asked[questions[questions >= 0]] = True
        for wave in waves(forest, self._chunk_tokens, keep_leaves=keep_leaves):
            hidden = self._forward(forest, wave, kept)
            yield from self._read(wave, hidden, asked[wave.nodes])

    def _forward(self, forest: Forest, wave: Wave, kept: prefix_attention.KeptKeys) -> Tensor:
        """Hidden states [N, H] of a wave."""
        inputs = prefix_attention.pack_wave(forest, wave, kept, self._device)
        hidden: Tensor = self._decoder(
            input_ids=inputs.ids,
            position_ids=inputs.positions,
            use_cache=False,
            lineup_wave=inputs,
        ).last_hidden_state[0]
        return hidden

    def _read(
        self, wave: Wave, hidden: Tensor, wanted: npt.NDArray[np.bool_] | None = None
    ) -> Iterator[tuple[npt.NDArray[np.int64], Tensor]]:
        """(nodes, logits at their ends) of the wanted nodes of a wave, a few at a time."""
        nodes, ends = np.array(wave.nodes), wave.offsets[1:] - 1
        if wanted is not None:
            nodes, ends = nodes[wanted], ends[wanted]
        for start in range(0, len(nodes), HEAD_ROWS):
            part = slice(start, start + HEAD_ROWS)
            rows = torch.from_numpy(ends[part]).to(self._device)
            yield nodes[part], self._head(hidden[rows])
