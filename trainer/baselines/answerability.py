"""The answerability reward: a frozen reader answers questions about a series from its caption.

Reward = scale x share of the chart's questions that it answers rightly. The caption is the shared
prefix of a chart's questions, the questions are the leaves. Source: the paper's baseline in the
manner of CapRL, with the options in a new order at every draw (the reference never moves them).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lineup_fast import counters
from lineup_fast.prompts import LABELS, choices, parse_answer
from trainer.baselines.reader_reward import ReaderReward, likeliest
from trainer.baselines.reading import QUOTE

if TYPE_CHECKING:
    from lineup_fast.rewards import RewardBatch
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


class AnswerabilityReward(ReaderReward):
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
        recipe = f"answerability.{scoring}.v{VERSION}"
        super().__init__(verifier, SYSTEM, scoring=scoring, scale=scale, recipe=recipe)
        self.bank, self.seed = bank, seed
        self.fingerprints["bank"] = bank.fingerprint
        every = bank.questions.values()
        self._n_questions = max(map(len, every))
        self._n_labels = max(len(question.options) for group in every for question in group)
        if scoring == "generate":
            return
        sample = shuffled(next(iter(every))[0], seed, None, 0).user()
        names = LABELS[: self._n_labels]
        self._labels = self._reader.labels(sample, names)
        if self._labels is None:
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

    def _about(self, item: str, index: int | None) -> tuple[list[Shuffled], list[str]] | str:
        asked = self.questions(item, index)
        if not asked:
            return f"{item}: no questions in the bank"
        return asked, [question.user() for question in asked]

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
        return self._fits(longest, max_new_tokens)

    def _read(
        self,
        batch: RewardBatch,
        row: int,
        about: list[Shuffled],
        answer: TreeScores | TreeReplies,
        at: int,
    ) -> None:
        assert batch.right is not None
        for number, question in enumerate(about):
            n_options = len(question.options)
            batch.asked[row, number] = True
            if hasattr(answer, "texts"):
                said = parse_answer(answer.texts[at][number] or "", LABELS[:n_options])
                batch.counts["unparsed"] += said is None
                batch.picks[row, number] = -1 if said is None else said
                batch.right[row, number] = said == question.answer
                continue
            logprobs = answer.label_logprobs[at, number, :n_options]
            pick, chances = likeliest(batch, row, number, logprobs)
            soft = self.scoring == "soft"
            batch.right[row, number] = chances[question.answer] if soft else pick == question.answer
