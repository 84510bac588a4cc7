"""The answerability reward: a frozen reader answers questions about a series from its caption.

Reward = scale x share of the chart's questions that it answers rightly. The caption is the shared
prefix of a chart's questions, the questions are the leaves. Source: the paper's baseline in the
manner of CapRL, with the options in a new order at every draw (the reference never moves them).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lineup_fast import counters
from lineup_fast.prompts import LABELS, choices, clean_caption, parse_answer
from lineup_fast.rewards import TOKENS_PER_NEW_TOKEN, RewardBatch
from trainer.baselines.reading import QUOTE, Asked, Reader, ask, grouped

if TYPE_CHECKING:
    from lineup_fast.verifiers.base import TreeReplies, TreeScores, Verifier
    from trainer.baselines.questions import Bank, Question

VERSION = "1"
SYSTEM = (
    "You answer multiple-choice questions about a time series from a written description of it and "
    "answer with one letter."
)
_USER = (
    "A time series was described like this:\n"
    + QUOTE
    + "Use nothing but this description. Steps are counted from 0.\n\n"
    "{stem}\n{options}\nAnswer with one letter: {choices}."
)


@dataclass(frozen=True)
class Shuffled:
    """A question as it is asked: options in their order of this draw, answer among them."""

    stem: str
    options: tuple[str, ...]
    answer: int

    def user(self) -> str:
        """The user turn, with a place for the caption."""
        labels = LABELS[: len(self.options)]
        lines = "\n".join(f"{a}) {text}" for a, text in zip(labels, self.options, strict=True))
        text = _USER.replace("{choices}", choices(labels))
        # the bank's text last, so that braces in it stay what they are; it cannot hold a quote
        stem = self.stem.replace('"""', "'''")
        return text.replace("{options}", lines.replace('"""', "'''")).replace("{stem}", stem)


def shuffled(question: Question, seed: int, index: int | None, number: int) -> Shuffled:
    """A question with its options in the order of a draw, a pure function of the arguments.

    index None: the fixed order of validation. number: which of the chart's questions it is.
    """
    draw = "fixed" if index is None else index
    order = counters.order(len(question.options), "options", seed, draw, question.id, number)
    options = tuple(question.options[place] for place in order)
    return Shuffled(question.stem, options, order.tolist().index(question.answer))


class AnswerabilityReward:
    """Scores captions by how many questions about their series a reader answers from them alone.

    bank: verified questions; verifier: any `Verifier`; scoring: "label_logprobs" (the likeliest of
    a question's letters), "generate" (a parsed reply; unparsed = wrong, counted) or "soft" (the
    probability of the right letter). In its batches the K of shapes is the largest number of
    questions of a series, or of options of a question; what a series has not is unasked.
    """

    def __init__(
        self,
        bank: Bank,
        verifier: Verifier,
        *,
        scoring: str = "label_logprobs",
        seed: int = 0,
        scale: float = 2.0,
    ) -> None:
        self.bank, self.verifier, self.scoring = bank, verifier, scoring
        self.seed, self.scale = seed, scale
        self.recipe = recipe_name(scoring)
        self.fingerprints = {"bank": bank.fingerprint, "verifier": verifier.fingerprint()}
        every = bank.questions.values()
        self._n_questions = max(map(len, every))
        self._n_options = max(len(question.options) for group in every for question in group)
        self._reader = Reader(verifier.encoder, SYSTEM)
        sample = shuffled(next(iter(every))[0], seed, None, 0).user()
        names = LABELS[: self._n_options]
        self._labels = self._reader.labels(sample, names)
        if self._labels is None and scoring != "generate":
            raise ValueError(
                f"labels: expected each of {', '.join(names)} to be one token of the verifier's "
                "tokenizer after the prompt, got more; --scoring generate needs no labels"
            )

    def questions(self, item: str, index: int | None = None) -> list[Shuffled]:
        """What a caption of an item is asked at a draw; None: in validation."""
        return [
            shuffled(question, self.seed, index, number)
            for number, question in enumerate(self.bank.questions.get(item, ()))
        ]

    def score(
        self, captions: Sequence[str], ids: Sequence[str], *, index: int | None = None
    ) -> RewardBatch:
        """See `trainer.validate.Reward`. Series without questions have no reward, with a reason.

        Raises:
            ValueError: unequal lengths.
        """
        if len(captions) != len(ids):
            raise ValueError(f"ids: expected one per caption ({len(captions)}), got {len(ids)}")
        start = time.perf_counter()
        batch = self._empty(len(ids), index)
        groups = []
        tokens = self._reader.caption_ids(captions) if len(captions) else []
        for (item, _), rows in grouped(ids, batch.index).items():
            asked = self.questions(item, index)
            if not asked:
                for row in rows:
                    batch.reason[row] = f"{item}: no questions in the bank"
                continue
            users = [question.user() for question in asked]
            tree = self._reader.tree(users, [tokens[row] for row in rows])
            texts = tuple(clean_caption(captions[row]) for row in rows)
            groups.append(Asked(rows, texts, asked, tree))
        batch.timings["prompts_s"] = time.perf_counter() - start
        answers = ask(self.verifier, groups, None if self.scoring == "generate" else self._labels)
        for group, answer in zip(groups, answers, strict=True):
            if isinstance(answer, str):
                for row in group.rows:
                    batch.reason[row] = answer
            else:
                self._record(group, answer, batch)
        finish(batch, self.scale)
        batch.counts["groups"] = len(groups)
        batch.timings["total_s"] = time.perf_counter() - start
        return batch

    def check_context(self, max_new_tokens: int, policy_tokenizer: Any = None) -> int:
        """Tokens of the longest possible prompt.

        Raises:
            ValueError: it exceeds the verifier's context.
        """
        del policy_tokenizer
        longest = 0
        for group in self.bank.questions.values():
            for number, question in enumerate(group):
                parts = self._reader.around(shuffled(question, self.seed, None, number).user())
                longest = max(longest, sum(map(len, parts)))
        return fits(longest, max_new_tokens, self.verifier.max_prompt_tokens)

    def _empty(self, n: int, index: int | None) -> RewardBatch:
        return empty_batch(
            n, self._n_questions, self._n_options, index, self.recipe, self.fingerprints
        )

    def _record(self, group: Asked, answer: TreeScores | TreeReplies, batch: RewardBatch) -> None:
        """One group's answers into the batch."""
        batch.counts["prefilled_tokens"] += answer.prefilled_tokens
        batch.counts["prompt_tokens"] += answer.prompt_tokens
        assert batch.right is not None
        for at, (row, reason) in enumerate(zip(group.rows, answer.reason, strict=True)):
            batch.reason[row] = reason
            batch.valid[row] = reason is None
            if reason is not None:
                continue
            for number, question in enumerate(group.about):
                n_options = len(question.options)
                batch.asked[row, number] = True
                if hasattr(answer, "texts"):
                    pick = parse_answer(answer.texts[at][number] or "", LABELS[:n_options])
                    batch.counts["unparsed"] += pick is None
                    batch.picks[row, number] = -1 if pick is None else pick
                    batch.right[row, number] = pick == question.answer
                    continue
                logprobs = answer.label_logprobs[at, number, :n_options]
                batch.label_logprobs[row, number] = -np.inf
                batch.label_logprobs[row, number, :n_options] = logprobs
                batch.label_mass[row, number] = np.exp(logprobs).sum()
                pick = int(logprobs.argmax())  # the lowest of equal labels
                batch.counts["ties"] += int((logprobs == logprobs[pick]).sum() > 1)
                batch.picks[row, number] = pick
                chances = np.exp(logprobs - logprobs[pick])
                soft = float(chances[question.answer] / chances.sum())
                batch.right[row, number] = (
                    soft if self.scoring == "soft" else pick == question.answer
                )


def recipe_name(scoring: str) -> str:
    """Name of the reward in results."""
    return f"answerability.{scoring}.v{VERSION}"


def empty_batch(
    n: int,
    n_questions: int,
    n_labels: int,
    index: int | None,
    recipe: str,
    fingerprints: dict[str, str],
) -> RewardBatch:
    """n captions that nobody has judged yet; right is NaN where nothing was asked."""
    shape = (n, n_questions)
    return RewardBatch(
        reward=np.full(n, np.nan, np.float32),
        accuracy=np.full(n, np.nan, np.float32),
        picks=np.full(shape, -1, np.int32),
        label_logprobs=np.full((*shape, n_labels), np.nan, np.float32),
        label_mass=np.full(shape, np.nan, np.float32),
        valid=np.zeros(n, bool),
        reason=[None] * n,
        counts={"captions": n, "groups": 0, "questions": 0, "invalid": 0, "ties": 0,
                "unparsed": 0, "prefilled_tokens": 0, "prompt_tokens": 0},
        recipe=recipe,
        fingerprints=dict(fingerprints),
        asked=np.zeros(shape, bool),
        index=[index] * n,
        right=np.full(shape, np.nan, np.float32),
    )  # fmt: skip


def finish(batch: RewardBatch, scale: float) -> None:
    """Accuracy and reward of the valid captions: the mean over what each was asked."""
    assert batch.right is not None
    right = np.where(batch.asked, batch.right, 0.0).sum(axis=1)
    mean = right / np.maximum(batch.asked.sum(axis=1), 1)
    batch.accuracy[batch.valid] = mean[batch.valid]
    batch.reward[batch.valid] = scale * batch.accuracy[batch.valid]
    batch.counts["questions"] = int(batch.asked.sum())
    batch.counts["invalid"] = int((~batch.valid).sum())


def fits(longest: int, max_new_tokens: int, limit: int | None) -> int:
    """Tokens of the longest prompt with a caption of `max_new_tokens`.

    Raises:
        ValueError: it exceeds `limit`.
    """
    longest += int(np.ceil(TOKENS_PER_NEW_TOKEN * max_new_tokens))
    if limit is not None and longest > limit:
        raise ValueError(
            f"max_new_tokens: expected prompts of at most {limit} tokens, the verifier's context; "
            f"with {max_new_tokens} they can reach {longest}"
        )
    return longest
