"""What every verifier backend takes and returns: prompt trees in, label log-probabilities out."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from lineup_fast.kernels import PromptTree

    Floats = npt.NDArray[np.float32]
    Ints = npt.NDArray[np.int32]

log = logging.getLogger(__name__)

MAX_REPLY_TOKENS = 8  # of the recipe "generate": one letter and what surrounds it


class BackendError(RuntimeError):
    """A verifier could not answer: the captions concerned become invalid, never reward 0."""


@dataclass(frozen=True)
class LabelTokens:
    """The answer letters and the single tokens that spell them.

    names: "A", "B", …; ids int32 [K, V], the variants of each label (" A", "A"), -1 padded.
    """

    names: tuple[str, ...]
    ids: Ints


@dataclass(frozen=True)
class QuestionGroup:
    """What a tree asks, as text and values: for verifiers that do not read token ids.

    candidates: a ``CandidateSet``; other rewards say here what they ask about.
    """

    captions: tuple[str, ...]
    candidates: Any


@dataclass(frozen=True)
class TreeScores:
    """Answers to the questions of one tree.

    label_logprobs float32 [G, K, K]: of caption g with the target at position p, log-probability of
    each label over the whole vocabulary, variants summed; NaN where nothing was asked. label_mass
    float32 [G, K]: their summed probability. reason [G]: why a caption has no answer, or None.
    prefilled_tokens: tokens the backend computed for this tree (a prefix that an earlier tree of
    the call already paid for counts there); prompt_tokens: the same prompts without any sharing.
    """

    label_logprobs: Floats
    label_mass: Floats
    reason: list[str | None]
    prefilled_tokens: int
    prompt_tokens: int


@dataclass(frozen=True)
class TreeReplies:
    """Greedy replies to the questions of one tree: texts [G][K], None where nothing was asked."""

    texts: list[list[str | None]]
    reason: list[str | None]
    prefilled_tokens: int
    prompt_tokens: int


class Verifier(Protocol):
    """A frozen reader behind one call.

    ``encoder`` is the tokenizer as :func:`lineup_fast.prompt_tokens.as_encoder` takes it and
    ``max_prompt_tokens`` the context length (None: no limit). A question of a tree is asked where
    ``tree.questions`` is not -1. Backends report what they cannot answer in ``reason`` or raise
    :class:`BackendError`.
    """

    name: str
    encoder: Any
    max_prompt_tokens: int | None

    def fingerprint(self) -> str:
        """Short hash of the model behind the answers."""
        ...

    def score(
        self,
        trees: Sequence[PromptTree],
        labels: LabelTokens,
        *,
        groups: Sequence[QuestionGroup] | None = None,
    ) -> list[TreeScores]:
        """Log-probabilities of the labels at the answer position of every question."""
        ...

    def generate(
        self,
        trees: Sequence[PromptTree],
        *,
        max_new_tokens: int = MAX_REPLY_TOKENS,
        groups: Sequence[QuestionGroup] | None = None,
    ) -> list[TreeReplies]:
        """Greedy replies to every question."""
        ...


def ask(
    verifier: Verifier,
    trees: Sequence[PromptTree],
    groups: Sequence[QuestionGroup],
    labels: LabelTokens | None,
) -> list[TreeScores | TreeReplies | str]:
    """Answers per tree, label log-probabilities or (labels None) replies.

    Where the verifier fails, the reason in words: one tree may be at fault, so that after a failed
    call each is asked alone, and the others still count.
    """
    if not trees:
        return []
    try:
        if labels is None:
            return list(verifier.generate(trees, groups=groups))
        return list(verifier.score(trees, labels, groups=groups))
    except (RuntimeError, OSError, MemoryError) as error:
        if len(trees) == 1:
            log.warning("verifier failed on %d captions: %s", len(groups[0].captions), error)
            return [f"{type(error).__name__}: {error}"]
    pairs = zip(trees, groups, strict=True)
    return [answer for tree, group in pairs for answer in ask(verifier, [tree], [group], labels)]


def node_ends(tree: PromptTree) -> npt.NDArray[np.int64]:
    """Length in tokens of the prompt that ends at each node, int64 [m]."""
    ends = np.diff(tree.offsets)
    for node, parent in enumerate(tree.parent.tolist()):
        if parent >= 0:
            ends[node] += ends[parent]
    return ends


def prompt_lengths(tree: PromptTree) -> npt.NDArray[np.int64]:
    """Tokens of the prompt of each question, int64 [G, K]; 0 where nothing is asked."""
    return np.where(tree.questions >= 0, node_ends(tree)[tree.questions], 0)


def withhold_too_long(tree: PromptTree, limit: int | None) -> tuple[PromptTree, list[str | None]]:
    """The tree without the captions whose prompts exceed ``limit`` tokens, and why, [G]."""
    reasons: list[str | None] = [None] * len(tree.questions)
    if limit is None:
        return tree, reasons
    longest = prompt_lengths(tree).max(axis=1)
    for caption in np.flatnonzero(longest > limit).tolist():
        reasons[caption] = (
            f"caption too long: prompt of {int(longest[caption])} tokens, "
            f"the verifier reads {limit}"
        )
    if any(reasons):
        questions = tree.questions.copy()
        questions[longest > limit] = -1
        tree = replace(tree, questions=questions)
    return tree, reasons


def admit(
    trees: Sequence[PromptTree],
    limit: int | None,
    *,
    n_vocabulary: int | None = None,
    new_tokens: int = 0,
) -> tuple[list[PromptTree], list[list[str | None]]]:
    """Trees without the captions whose prompts exceed ``limit`` tokens, and the reasons.

    n_vocabulary: None where any id will do; new_tokens: what a reply takes of the limit.
    Raises: ValueError on ids outside the vocabulary.
    """
    if n_vocabulary is not None:
        for tree in trees:
            check_ids("ids", tree.ids, n_vocabulary)
    limit = None if limit is None else limit - new_tokens
    pairs = [withhold_too_long(tree, limit) for tree in trees]
    return [tree for tree, _ in pairs], [reason for _, reason in pairs]


def check_ids(name: str, ids: Ints, n_vocabulary: int) -> None:
    """Raises ValueError unless every id is one of the verifier's vocabulary."""
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= n_vocabulary:
        raise ValueError(
            f"{name}: expected 0 to {n_vocabulary - 1}, the verifier's vocabulary, "
            f"got {low} to {high}"
        )


def tree_scores(
    tree: PromptTree, answer: Floats, reasons: Sequence[str | None], computed: int
) -> TreeScores:
    """One tree's answers, label log-probabilities float32 [G, K, K] and tokens computed for them.

    A caption with a non-finite answer and no reason yet gets one.
    """
    reasons = list(reasons)
    broken = (tree.questions >= 0) & ~np.isfinite(answer).all(axis=2)
    for caption in np.flatnonzero(broken.any(axis=1)).tolist():
        reasons[caption] = reasons[caption] or "non-finite logits"
    mass = np.exp(answer).sum(axis=2)
    return TreeScores(answer, mass, reasons, computed, int(prompt_lengths(tree).sum()))


def tree_replies(
    tree: PromptTree, texts: list[list[str | None]], reasons: Sequence[str | None], computed: int
) -> TreeReplies:
    """One tree's replies, [G][K], and the tokens computed for them."""
    return TreeReplies(texts, list(reasons), computed, int(prompt_lengths(tree).sum()))


def keep_positions(tree: PromptTree, positions: Sequence[int]) -> PromptTree:
    """The tree with only the given target positions asked."""
    questions = np.full_like(tree.questions, -1)
    columns = list(positions)
    questions[:, columns] = tree.questions[:, columns]
    return replace(tree, questions=questions)
