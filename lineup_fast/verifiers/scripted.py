"""A verifier whose answers are a Python function: for tests and for trying out a reward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from lineup_fast.encoders import ByteEncoder
from lineup_fast.verifiers.base import (
    MAX_REPLY_TOKENS,
    LabelTokens,
    QuestionGroup,
    TreeReplies,
    TreeScores,
    admit,
    prompt_lengths,
    tree_replies,
    tree_scores,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from lineup_fast.kernels import PromptTree


class ScriptedVerifier:
    """Answers with ``script(caption, candidates, position)``: K label logits, or an exception.

    caption is the text as a reader would see it (cleaned), candidates.series[0] the target, which
    stands at ``position``; other rewards pass what they ask and which question. The logits are
    taken over the labels alone (their mass is 1); a script for the recipe "generate" returns the
    reply as a string. An exception makes the caption invalid.
    """

    name = "scripted"

    def __init__(
        self,
        script: Callable[[str, Any, int], npt.ArrayLike | str],
        *,
        max_prompt_tokens: int | None = None,
    ) -> None:
        self.script = script
        self.encoder = ByteEncoder()
        self.max_prompt_tokens = max_prompt_tokens

    def fingerprint(self) -> str:
        """Name of the script."""
        return getattr(self.script, "__qualname__", type(self.script).__name__)

    def score(
        self,
        trees: Sequence[PromptTree],
        labels: LabelTokens,
        *,
        groups: Sequence[QuestionGroup] | None = None,
    ) -> list[TreeScores]:
        """The script's logits as log-probabilities."""
        k = len(labels.names)
        results = []
        for asked, reasons, replies in self._run(trees, groups):
            logprobs = np.full((*asked.questions.shape, k), np.nan, dtype=np.float32)
            for (caption, position), logits in replies.items():
                values = np.asarray(logits, dtype=np.float64)
                if values.shape != (k,):
                    raise ValueError(f"script: expected {k} logits, got shape {values.shape}")
                logprobs[caption, position] = values - np.logaddexp.reduce(values)
            results.append(tree_scores(asked, logprobs, reasons, int(prompt_lengths(asked).sum())))
        return results

    def generate(
        self,
        trees: Sequence[PromptTree],
        *,
        max_new_tokens: int = MAX_REPLY_TOKENS,
        groups: Sequence[QuestionGroup] | None = None,
    ) -> list[TreeReplies]:
        """The script's replies."""
        results = []
        for asked, reasons, replies in self._run(trees, groups, max_new_tokens):
            texts: list[list[str | None]] = [[None] * len(row) for row in asked.questions]
            for (caption, position), reply in replies.items():
                texts[caption][position] = str(reply)
            results.append(tree_replies(asked, texts, reasons, int(prompt_lengths(asked).sum())))
        return results

    def _run(
        self,
        trees: Sequence[PromptTree],
        groups: Sequence[QuestionGroup] | None,
        new_tokens: int = 0,
    ) -> list[tuple[PromptTree, list[str | None], dict[tuple[int, int], npt.ArrayLike | str]]]:
        if groups is None:
            raise ValueError("groups: expected the captions and candidates of every tree, got None")
        results = []
        kept, reasons_of = admit(trees, self.max_prompt_tokens, new_tokens=new_tokens)
        for asked, reasons, group in zip(kept, reasons_of, groups, strict=True):
            replies: dict[tuple[int, int], npt.ArrayLike | str] = {}
            for caption, position in np.argwhere(asked.questions >= 0).tolist():
                if reasons[caption] is not None:
                    continue
                try:
                    replies[caption, position] = self.script(
                        group.captions[caption], group.candidates, position
                    )
                except Exception as error:
                    reasons[caption] = f"{type(error).__name__}: {error}"
            results.append((asked, reasons, replies))
        return results
