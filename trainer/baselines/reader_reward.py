"""What the rewards of a reader share: asking about every caption, and a mean over the answers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from lineup_fast.context import fits
from lineup_fast.prompts import clean_caption
from lineup_fast.rewards import RewardBatch, without_answer
from lineup_fast.verifiers.base import QuestionGroup, ask
from trainer.baselines.reading import Asked, Reader, grouped

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lineup_fast.kernels import PromptTree
    from lineup_fast.verifiers.base import LabelTokens, TreeReplies, TreeScores, Verifier

    Ints = NDArray[np.int32]


class ReaderReward:
    """Scores captions by what a reader answers about each of them: reward = scale x mean right.

    A kind of reward says in `_about` what it asks and in `_read` how right an answer is. scoring:
    "label_logprobs", "generate" or "soft"; system: what the reader is told first; n_questions: most
    that a caption is asked; n_labels: most that a question has, which take `_labels`.
    """

    _labels: LabelTokens | None = None  # None: replies are generated
    _n_questions: int
    _n_labels: int

    def __init__(
        self, verifier: Verifier, system: str, *, scoring: str, scale: float, recipe: str
    ) -> None:
        self.verifier, self.scoring, self.scale, self.recipe = verifier, scoring, scale, recipe
        self.fingerprints = {"verifier": verifier.fingerprint()}
        self._reader = Reader(verifier.encoder, system)

    def _about(self, item: str, index: int | None) -> tuple[Any, list[str]] | str:
        """What is asked of an item at a draw, and as user turns; in words, why nothing is."""
        raise NotImplementedError

    def _read(
        self, batch: RewardBatch, row: int, about: Any, answer: TreeScores | TreeReplies, at: int
    ) -> None:
        """Writes what caption `at` of an answer got into a row: asked, picks, right, …"""
        raise NotImplementedError

    def _tree(self, users: list[str], captions: list[Ints]) -> PromptTree:
        """The prompts of one item's captions."""
        return self._reader.tree(users, captions)

    def score(
        self, captions: Sequence[str], ids: Sequence[str], *, index: int | None = None
    ) -> RewardBatch:
        """See `trainer.validate.Reward`. What cannot be asked has no reward, with a reason.

        Raises:
            ValueError: unequal lengths.
        """
        if len(captions) != len(ids):
            raise ValueError(f"ids: expected one per caption ({len(captions)}), got {len(ids)}")
        start = time.perf_counter()
        batch = self._unanswered([index] * len(ids))
        tokens = self._reader.caption_ids(captions) if len(captions) else []
        groups = []
        for (item, _), rows in grouped(ids, batch.index).items():
            asked = self._about(item, index)
            if isinstance(asked, str):
                for row in rows:
                    batch.reason[row] = asked
                continue
            about, users = asked
            tree = self._tree(users, [tokens[row] for row in rows])
            texts = tuple(clean_caption(captions[row]) for row in rows)
            groups.append(Asked(rows, texts, about, tree))
        batch.timings["prompts_s"] = time.perf_counter() - start
        questions = [QuestionGroup(group.captions, group.about) for group in groups]
        answers = ask(self.verifier, [group.tree for group in groups], questions, self._labels)
        for group, answer in zip(groups, answers, strict=True):
            self._record(group, answer, batch)
        self._finish(batch)
        batch.counts["groups"] = len(groups)
        batch.timings["total_s"] = time.perf_counter() - start
        return batch

    def _unanswered(self, index: list[int | None]) -> RewardBatch:
        """Nobody has judged yet; right is NaN where nothing was asked."""
        batch = without_answer(
            None,
            index,
            k=self._n_questions,
            n_labels=self._n_labels,
            recipe=self.recipe,
            fingerprints=self.fingerprints,
        )
        batch.right = np.full(batch.picks.shape, np.nan, np.float32)
        return batch

    def _record(
        self, group: Asked, answer: TreeScores | TreeReplies | str, batch: RewardBatch
    ) -> None:
        """One group's answers, or why it has none, into the batch."""
        if isinstance(answer, str):
            for row in group.rows:
                batch.reason[row] = answer
            return
        batch.counts["prefilled_tokens"] += answer.prefilled_tokens
        batch.counts["prompt_tokens"] += answer.prompt_tokens
        for at, (row, reason) in enumerate(zip(group.rows, answer.reason, strict=True)):
            batch.reason[row] = reason
            batch.valid[row] = reason is None
            if reason is None:
                self._read(batch, row, group.about, answer, at)

    def _finish(self, batch: RewardBatch) -> None:
        """Accuracy and reward of the valid captions: the mean over what each was asked."""
        assert batch.right is not None
        right = np.where(batch.asked, batch.right, 0.0).sum(axis=1)
        mean = right / np.maximum(batch.asked.sum(axis=1), 1)
        batch.accuracy[batch.valid] = mean[batch.valid]
        batch.reward[batch.valid] = self.scale * batch.accuracy[batch.valid]
        batch.counts["questions"] = int(batch.asked.sum())
        batch.counts["invalid"] = int((~batch.valid).sum())

    def _fits(self, longest: int, max_new_tokens: int) -> int:
        """Tokens of the longest prompt, of `longest` without its caption; raises ValueError."""
        return fits(longest, max_new_tokens, self.verifier.max_prompt_tokens)


def likeliest(
    batch: RewardBatch, row: int, number: int, logprobs: NDArray[np.float32]
) -> tuple[int, NDArray[np.float64]]:
    """Records what a question's labels [n] got; the pick, and the chance of each, float64 [n]."""
    batch.label_logprobs[row, number] = -np.inf
    batch.label_logprobs[row, number, : len(logprobs)] = logprobs
    batch.label_mass[row, number] = np.exp(logprobs).sum()
    pick = int(logprobs.argmax())  # the lowest of equal labels
    batch.counts["ties"] += int((logprobs == logprobs[pick]).sum() > 1)
    batch.picks[row, number] = pick
    chances = np.exp(logprobs.astype(np.float64) - logprobs[pick])
    return pick, chances / chances.sum()
