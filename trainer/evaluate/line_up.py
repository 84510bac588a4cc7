"""Asking a verifier about captions: the arms of identification, one verifier at a time.

Arms: "caption" is the metric, the others its controls. "empty" replaces the captions by nothing,
"mismatch" the caption of the target by that of another series outside of the candidate set, and
"order" puts the candidates into one seeded order, so that every series is asked about once.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lineup_fast import counters
from lineup_fast.candidates import CandidateError, CandidateSet, fixed
from lineup_fast.kernels import PromptTree
from lineup_fast.prompts import Recipe, clean_caption, parse_answer
from lineup_fast.rewards import IdentificationReward
from lineup_fast.verifiers.base import (
    LabelTokens,
    QuestionGroup,
    TreeReplies,
    TreeScores,
    Verifier,
    keep_positions,
)
from trainer.evaluate.benchmark import Benchmark
from trainer.evaluate.caption_questions import CaptionQuestions, CaptionSet

log = logging.getLogger(__name__)

ARMS = ("caption", "empty", "mismatch", "order")
COUNTS = ("questions", "prefilled_tokens", "prompt_tokens", "ties", "unparsed")


@dataclass
class Answers:
    """What one verifier answered.

    picks: by arm and id, label picked with the target at each position, i32[K]; -1 where nothing
    was asked or the reply names none. asked: by arm and id, bool[K]. reasons: by arm and id, why
    there is no answer. counts: see COUNTS.
    """

    picks: dict[str, dict[str, NDArray[np.int32]]] = field(default_factory=dict)
    asked: dict[str, dict[str, NDArray[np.bool_]]] = field(default_factory=dict)
    reasons: dict[str, dict[str, str]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTS, 0))

    def __post_init__(self) -> None:
        for by_arm in (self.picks, self.asked, self.reasons):
            by_arm.update({arm: {} for arm in ARMS})  # type: ignore[attr-defined]

    def add(self, arm: str, id_: str, picks: NDArray[np.int32], asked: NDArray[np.bool_]) -> None:
        """An answer, i32[K] and bool[K]."""
        self.picks[arm][id_], self.asked[arm][id_] = picks, asked

    def accuracy(self, arm: str) -> dict[str, float]:
        """Share of the asked positions at which the target was picked, by id."""
        return {
            id_: float((picks == np.arange(len(picks)))[self.asked[arm][id_]].mean())
            for id_, picks in self.picks[arm].items()
        }

    def by_position(self, arm: str) -> list[float]:
        """Accuracy with the target at each position, [K]; every position was asked."""
        rows = np.array([*self.picks[arm].values()])
        shares: list[float] = (rows == np.arange(rows.shape[1])).mean(axis=0).tolist()
        return shares

    def picked(self, arm: str) -> list[float]:
        """Share of the questions of an arm that each label was the answer to, [K]; [] unasked."""
        rows = [*self.picks[arm].values()]
        labels = range(len(rows[0]) if rows else 0)
        return [float((np.array(rows) == label).mean()) for label in labels]


@dataclass(frozen=True)
class Question:
    """One tree on its way to the verifier."""

    arm: str
    id_: str
    tree: PromptTree
    group: QuestionGroup


@dataclass(frozen=True)
class Examiner:
    """Everything the questions depend on, whoever answers them."""

    captions: Mapping[str, str]
    benchmark: Benchmark
    recipe: Recipe
    seed: int

    def candidates(self, id_: str) -> CandidateSet:
        """The fixed set of a series: itself and its K - 1 nearest. Raises CandidateError."""
        recipe = self.recipe
        return fixed(self.benchmark.corpus, id_, k=recipe.k, decimals=recipe.decimals)

    def stranger(self, candidates: CandidateSet) -> str | None:
        """A series of the same length outside of the set, the same each time; None: no other."""
        inside = {candidates.target, *candidates.distractors}
        peers = self.benchmark.corpus.peers(candidates.target)
        for row in counters.order(len(peers), self.seed, "mismatch", candidates.target):
            if peers[row] not in inside:
                return peers[row]
        return None

    def in_order(self, candidates: CandidateSet) -> tuple[list[int], int]:
        """The one seeded order: rows of the set, target first, and the target's position."""
        order = counters.order(self.recipe.k, self.seed, "order", candidates.target).tolist()
        return [0, *(row for row in order if row)], order.index(0)


def ask(
    verifier: Verifier, questions: Sequence[Question], labels: LabelTokens, recipe: Recipe
) -> list[TreeScores | TreeReplies | str]:
    """Answers to each; where the verifier fails on a question alone, the reason in words."""
    if not questions:
        return []
    trees, groups = [one.tree for one in questions], [one.group for one in questions]
    try:
        if recipe.scoring == "generate":
            return list(verifier.generate(trees, groups=groups))
        return list(verifier.score(trees, labels, groups=groups))
    except (RuntimeError, OSError, MemoryError) as error:
        if len(questions) == 1:
            log.warning("verifier failed on %s: %s", questions[0].id_, error)
            return [f"{type(error).__name__}: {error}"]
    return [answer for one in questions for answer in ask(verifier, [one], labels, recipe)]


def record(
    questions: Sequence[Question],
    found: Sequence[TreeScores | TreeReplies | str],
    labels: LabelTokens,
    answers: Answers,
) -> None:
    """Answers to trees of one row each into `answers`."""
    for one, answer in zip(questions, found, strict=True):
        if isinstance(answer, str):
            answers.reasons[one.arm][one.id_] = answer
            continue
        answers.counts["prefilled_tokens"] += answer.prefilled_tokens
        answers.counts["prompt_tokens"] += answer.prompt_tokens
        if answer.reason[0] is not None:
            answers.reasons[one.arm][one.id_] = answer.reason[0]
            continue
        asked = one.tree.questions[0] >= 0
        picks = np.full(len(asked), -1, dtype=np.int32)
        if isinstance(answer, TreeReplies):
            for at in np.flatnonzero(asked):
                pick = parse_answer(answer.texts[0][at] or "", labels.names)
                answers.counts["unparsed"] += pick is None
                picks[at] = -1 if pick is None else pick
        else:
            logprobs = answer.label_logprobs[0][asked]
            picks[asked] = logprobs.argmax(axis=1)  # the lowest of equal labels
            best = logprobs.max(axis=1, keepdims=True)
            answers.counts["ties"] += int(((logprobs == best).sum(axis=1) > 1).sum())
        answers.counts["questions"] += int(asked.sum())
        answers.add(one.arm, one.id_, picks, asked)


class SeriesLineUp:
    """c→s, the reward's own question on the fixed sets: which of K series does a caption describe.

    The captions of a series (its own, empty, mismatched) are one group and share what its layout
    lets them share.
    """

    def __init__(self, examiner: Examiner, verifier: Verifier) -> None:
        self._examiner = examiner
        self._verifier = verifier
        self._reward = IdentificationReward(
            examiner.benchmark.corpus, verifier, examiner.recipe, seed=examiner.seed
        )

    def run(self, ids: Sequence[str], answers: Answers) -> None:
        """Asks about every series, all arms."""
        examiner = self._examiner
        rows: list[tuple[str, str, str]] = []  # arm, id, caption
        ordered = []
        for id_ in ids:
            own = examiner.captions[id_]
            rows += [("caption", id_, own), ("empty", id_, "")]
            try:
                candidates = examiner.candidates(id_)
            except CandidateError:
                continue  # the reward says so itself, for every caption
            stranger = examiner.stranger(candidates)
            if stranger is not None:
                rows.append(("mismatch", id_, examiner.captions[stranger]))
            ordered.append(self._ordered(candidates, own))
        self._score(rows, answers)
        labels = self._reward.builder.labels
        found = ask(self._verifier, ordered, labels, examiner.recipe)
        record(ordered, found, labels, answers)

    def _score(self, rows: Sequence[tuple[str, str, str]], answers: Answers) -> None:
        batch = self._reward.score([row[2] for row in rows], [row[1] for row in rows])
        for at, (arm, id_, _) in enumerate(rows):
            if batch.valid[at]:
                answers.add(arm, id_, batch.picks[at], batch.asked[at])
            else:
                answers.reasons[arm][id_] = batch.reason[at] or "no answer"
        for name in COUNTS:
            answers.counts[name] += batch.counts[name]

    def _ordered(self, candidates: CandidateSet, caption: str) -> Question:
        order, position = self._examiner.in_order(candidates)
        mixed = CandidateSet(
            candidates.target,
            tuple(candidates.distractors[row - 1] for row in order[1:]),
            candidates.series[order],
            candidates.decimals,
            candidates.kind,
            None,
        )
        builder = self._reward.builder
        tree = builder.tree(mixed.series, mixed.decimals, builder.caption_ids([caption]))
        group = QuestionGroup((clean_caption(caption),), mixed)
        return Question("order", mixed.target, keep_positions(tree, [position]), group)


class CaptionLineUp:
    """s→c: which of K captions, all by the same captioner, describes a series.

    All arms of a series go to the verifier together, so that its values are read once. An empty
    caption in a set stays in, as the placeholder that it is everywhere.
    """

    def __init__(self, examiner: Examiner, verifier: Verifier) -> None:
        self._examiner = examiner
        self._verifier = verifier
        self._questions = CaptionQuestions(verifier.encoder, examiner.recipe)

    def run(self, ids: Sequence[str], answers: Answers) -> None:
        """Asks about every series, all arms."""
        questions = []
        for id_ in ids:
            try:
                questions += self._arms(self._examiner.candidates(id_))
            except CandidateError as error:
                for arm in ARMS:
                    answers.reasons[arm][id_] = str(error)
        labels = self._questions.labels
        found = ask(self._verifier, questions, labels, self._examiner.recipe)
        record(questions, found, labels, answers)

    def _arms(self, candidates: CandidateSet) -> list[Question]:
        examiner = self._examiner
        own = [examiner.captions[id_] for id_ in (candidates.target, *candidates.distractors)]
        order, position = examiner.in_order(candidates)
        mixed = self._question("order", candidates, [own[row] for row in order])
        questions = [
            self._question("caption", candidates, own),
            Question("order", mixed.id_, keep_positions(mixed.tree, [position]), mixed.group),
            self._question("empty", candidates, [""] * len(own)),
        ]
        stranger = examiner.stranger(candidates)
        if stranger is not None:
            texts = [examiner.captions[stranger], *own[1:]]
            questions.append(self._question("mismatch", candidates, texts))
        return questions

    def _question(self, arm: str, candidates: CandidateSet, captions: Sequence[str]) -> Question:
        made = self._questions
        tree = made.tree(candidates.series[0], candidates.decimals, made.caption_ids(captions))
        texts = tuple(clean_caption(caption) for caption in captions)
        shown = CaptionSet(
            candidates.target,
            candidates.distractors,
            candidates.series,
            candidates.decimals,
            candidates.kind,
            None,
            texts,
        )
        return Question(arm, candidates.target, tree, QuestionGroup(texts[:1], shown))
