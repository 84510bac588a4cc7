"""The identification reward: captions in, one number per caption out."""

from __future__ import annotations

import time
import zlib
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from lineup_fast.candidates import CandidateError, draw, fixed
from lineup_fast.context import TOKENS_PER_NEW_TOKEN, fits, longest_prompt
from lineup_fast.prepared import Prepared
from lineup_fast.prompt_tokens import PromptBuilder
from lineup_fast.prompts import Recipe, clean_caption, parse_answer
from lineup_fast.verifiers.base import QuestionGroup, ask, keep_positions

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from lineup_fast.candidates import CandidateSet, Kind
    from lineup_fast.corpus import Corpus
    from lineup_fast.kernels import PromptTree
    from lineup_fast.verifiers.base import TreeReplies, TreeScores, Verifier

    Floats = npt.NDArray[np.float32]

MOST_PREPARED = 1024  # candidate sets kept between preparing and asking; a few steps' worth


@dataclass
class RewardBatch:
    """Rewards of n captions and how they came about.

    reward float32 [n]: scale × accuracy, or scale × mean p(target) under "soft"; accuracy float32
    [n]: share of asked positions at which the target was picked. picks int32 [n, K]: label picked
    with the target at each position, -1 where unasked or unparsed. label_logprobs float32
    [n, K, K] and label_mass float32 [n, K]: see ``TreeScores``, NaN where not asked or generated.
    valid bool [n]: an invalid caption has NaN reward and accuracy and its reason [n] in words; it
    must be left out of baselines, never read as 0. counts: captions, groups, questions, invalid,
    ties, unparsed, prefilled_tokens, prompt_tokens; timings in seconds. asked bool [n, K]: the
    positions that have an answer. index [n]: the draw, None for the fixed set. recipe and
    fingerprints (corpus, verifier) name the reward. right float32 [n, K] in [0, 1]: how right each
    answer is, for rewards whose questions are not about positions; None: the pick is the position.
    """

    reward: Floats
    accuracy: Floats
    picks: npt.NDArray[np.int32]
    label_logprobs: Floats
    label_mass: Floats
    valid: npt.NDArray[np.bool_]
    reason: list[str | None]
    timings: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    recipe: str = ""
    fingerprints: dict[str, str] = field(default_factory=dict)
    asked: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros((0, 0), dtype=bool))
    index: list[int | None] = field(default_factory=list)
    right: Floats | None = None

    def accuracy_by_position(self) -> npt.NDArray[np.float64]:
        """Accuracy at each target position over the valid captions, float64 [K]; NaN: never asked.

        Unparsed replies count as wrong. Positions that "positions=1" left out are not counted.
        """
        hits = (self.picks == np.arange(self.picks.shape[1])).astype(np.float64)
        if self.right is not None:
            hits = np.nan_to_num(self.right.astype(np.float64))
        counted = self.valid[:, None] & self.asked
        total = counted.sum(axis=0)
        return np.where(total > 0, (hits * counted).sum(axis=0) / np.maximum(total, 1), np.nan)


def without_answer(
    reason: str | None,
    index: Sequence[int | None],
    *,
    k: int = 0,
    n_labels: int | None = None,
    recipe: str = "",
    fingerprints: dict[str, str] | None = None,
) -> RewardBatch:
    """Captions, as many as there are draw indices, that nobody judged (yet).

    k: questions of a caption, 0: not known; n_labels: of a question, None: as many.
    """
    n = len(index)
    n_labels = k if n_labels is None else n_labels
    return RewardBatch(
        reward=np.full(n, np.nan, dtype=np.float32),
        accuracy=np.full(n, np.nan, dtype=np.float32),
        picks=np.full((n, k), -1, dtype=np.int32),
        label_logprobs=np.full((n, k, n_labels), np.nan, dtype=np.float32),
        label_mass=np.full((n, k), np.nan, dtype=np.float32),
        valid=np.zeros(n, dtype=bool),
        reason=[reason] * n,
        counts={"captions": n, "groups": 0, "questions": 0, "invalid": n, "ties": 0,
                "unparsed": 0, "prefilled_tokens": 0, "prompt_tokens": 0},
        recipe=recipe,
        fingerprints=dict(fingerprints or {}),
        asked=np.zeros((n, k), dtype=bool),
        index=list(index),
    )  # fmt: skip


@dataclass
class _Group:
    """Captions that share a target and a draw, on their way to the verifier."""

    rows: list[int]
    positions: list[int]
    candidates: CandidateSet
    captions: tuple[str, ...]
    tree: PromptTree


@dataclass(frozen=True)
class _Ready:
    """A candidate set and the ids of its numbers, None where the tokenizer reads prompts whole."""

    candidates: CandidateSet
    numbers: tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]] | None


class IdentificationReward:
    """Scores captions by whether the verifier, reading only them, picks the right series.

    corpus: where ids, series and neighbours come from; verifier: any ``Verifier``; seed: of the
    draws; scale: reward of a caption that is always identified. The distractors of a caption are a
    pure function of (seed, index, id), so it does not matter who asks, when, or with whom.
    Source: paper, "identification reward": 2 × accuracy over the K positions of the target.
    """

    def __init__(
        self,
        corpus: Corpus,
        verifier: Verifier,
        recipe: Recipe | None = None,
        *,
        seed: int = 0,
        scale: float = 2.0,
        kind: Kind = "nearest",
    ) -> None:
        self.corpus = corpus
        self.verifier = verifier
        self.recipe = recipe or Recipe()
        self.seed = seed
        self.scale = scale
        self.kind: Kind = kind
        self.builder = PromptBuilder(verifier.encoder, self.recipe)
        self._prepared: Prepared[_Ready] = Prepared(MOST_PREPARED)
        self.fingerprints = {
            "corpus": corpus.fingerprint,
            "verifier": verifier.fingerprint(),
        }

    def candidates(self, item: str, index: int | None = None) -> CandidateSet:
        """The set that a caption of ``item`` is asked about; index None: the fixed one."""
        words: dict[str, Any] = {
            "k": self.recipe.k,
            "seed": self.seed,
            "kind": self.kind,
            "decimals": self.recipe.decimals,
        }
        if index is None:
            return fixed(self.corpus, item, **words)
        return draw(self.corpus, item, index=index, **words)

    def prepare(self, ids: Sequence[str], index: int) -> None:
        """Make the candidate blocks of items at a draw, ahead of the captions.

        From any thread, while others score; rewards do not depend on it.
        """
        for item in dict.fromkeys(ids):
            key = self._key(item, index)
            if key in self._prepared:
                continue
            try:
                candidates = self.candidates(item, index)
            except CandidateError:
                continue  # said by score, for every caption
            numbers = None
            if self.builder.reason is None:
                numbers = self.builder.number_ids(candidates.series, candidates.decimals)
            self._prepared.put(key, _Ready(candidates, numbers))

    def score(
        self,
        captions: Sequence[str],
        ids: Sequence[str],
        *,
        index: int | Sequence[int | None] | None = None,
    ) -> RewardBatch:
        """Rewards of captions, each of the item at the same place in ``ids``.

        index: draw index (the training step where there is one), one for all or one per caption;
        None asks the fixed validation sets, at all positions whatever the recipe.
        Raises: ValueError on unequal lengths and on ids that the corpus does not hold.
        """
        indices = self._indices(captions, ids, index)
        batch = without_answer(
            None, indices, k=self.recipe.k, recipe=self.recipe.name, fingerprints=self.fingerprints
        )
        start = time.perf_counter()
        with _clock(batch, "prompts_s"):
            groups = self._groups(captions, ids, indices, batch)
        with _clock(batch, "verifier_s"):
            labels = None if self.recipe.scoring == "generate" else self.builder.labels
            asked = [QuestionGroup(group.captions, group.candidates) for group in groups]
            answers = ask(self.verifier, [group.tree for group in groups], asked, labels)
        for group, answer in zip(groups, answers, strict=True):
            if isinstance(answer, str):
                for row in group.rows:
                    batch.reason[row] = answer
            else:
                self._record(group, answer, batch)
        self._finish(batch, groups)
        batch.timings["total_s"] = time.perf_counter() - start
        return batch

    def check_context(self, max_new_tokens: int, policy_tokenizer: Any = None) -> int:
        """Refuse, at start-up, captions that could outgrow the verifier's context.

        Args: max_new_tokens of the policy; its tokenizer, when given, bounds how many verifier
        tokens one of its tokens can become (else 3, a broken character). Returns: the longest
        possible prompt in tokens. Raises: ValueError when it exceeds ``max_prompt_tokens``.
        """
        ratio = TOKENS_PER_NEW_TOKEN
        if policy_tokenizer is not None:
            vocabulary = sorted(set(policy_tokenizer.get_vocab().values()))
            texts = policy_tokenizer.batch_decode(
                [[token] for token in vocabulary], skip_special_tokens=True
            )
            pieces = self.builder.encoder.encode_captions([text for text in texts if text])
            ratio = max(ratio, *map(len, pieces))
        longest = longest_prompt(self.corpus, self.builder, self.kind)
        return fits(longest, max_new_tokens, self.verifier.max_prompt_tokens, ratio=ratio)

    def _indices(
        self,
        captions: Sequence[str],
        ids: Sequence[str],
        index: int | Sequence[int | None] | None,
    ) -> list[int | None]:
        n = len(captions)
        if isinstance(captions, str) or isinstance(ids, str) or len(ids) != n:
            raise ValueError(f"ids: expected one per caption ({n}), got {len(ids)}")
        unknown = sorted({item for item in ids if item not in self.corpus})
        if unknown:
            raise ValueError(
                f"ids: expected items of the corpus, got {len(unknown)} unknown, "
                f"such as {unknown[0]!r}"
            )
        if index is None or isinstance(index, (int, np.integer)):
            return [None if index is None else int(index)] * n
        if len(index) != n:
            raise ValueError(f"index: expected one per caption ({n}), got {len(index)}")
        return [None if number is None else int(number) for number in index]

    def _key(self, item: str, index: int | None) -> tuple[int, str, str, int | None]:
        """All that a candidate set is a function of, within one recipe and corpus."""
        return self.seed, self.kind, item, index

    def _positions(self, item: str, index: int | None) -> list[int]:
        """Target positions asked about: all, or the one whose turn it is."""
        k = self.recipe.k
        if self.recipe.positions is None or index is None:
            return list(range(k))
        return [(index + zlib.crc32(item.encode())) % k]

    def _groups(
        self,
        captions: Sequence[str],
        ids: Sequence[str],
        indices: Sequence[int | None],
        batch: RewardBatch,
    ) -> list[_Group]:
        rows: dict[tuple[str, int | None], list[int]] = {}
        for row, key in enumerate(zip(ids, indices, strict=True)):
            rows.setdefault(key, []).append(row)
        texts = [clean_caption(caption) for caption in captions]
        tokens = self.builder.caption_ids(texts) if texts else []
        groups = []
        for (item, index), members in rows.items():
            try:
                ready = self._prepared.get(self._key(item, index))
                ready = ready or _Ready(self.candidates(item, index), None)
            except CandidateError as error:
                for row in members:
                    batch.reason[row] = str(error)
                continue
            candidates = ready.candidates
            positions = self._positions(item, index)
            tree = self.builder.tree(
                candidates.series,
                candidates.decimals,
                [tokens[row] for row in members],
                numbers=ready.numbers,
            )
            if len(positions) < self.recipe.k:
                tree = keep_positions(tree, positions)
            group = tuple(texts[row] for row in members)
            groups.append(_Group(members, positions, candidates, group, tree))
        return groups

    def _record(self, group: _Group, answer: TreeScores | TreeReplies, batch: RewardBatch) -> None:
        """One group's answers into the batch."""
        rows = np.array(group.rows)
        batch.counts["prefilled_tokens"] += answer.prefilled_tokens
        batch.counts["prompt_tokens"] += answer.prompt_tokens
        valid = np.array([reason is None for reason in answer.reason])
        for row, reason in zip(group.rows, answer.reason, strict=True):
            batch.reason[row] = reason
        batch.valid[rows] = valid
        batch.asked[np.ix_(rows[valid], group.positions)] = True
        if hasattr(answer, "texts"):
            for row, replies in zip(group.rows, answer.texts, strict=True):
                for position in group.positions if batch.valid[row] else []:
                    pick = parse_answer(replies[position] or "", self.builder.labels.names)
                    batch.counts["unparsed"] += pick is None
                    batch.picks[row, position] = -1 if pick is None else pick
            return
        logprobs = answer.label_logprobs[valid][:, group.positions]
        at = np.ix_(rows[valid], group.positions)
        batch.label_logprobs[at] = logprobs
        batch.label_mass[at] = answer.label_mass[valid][:, group.positions]
        batch.picks[at] = logprobs.argmax(axis=2)  # the lowest of equal labels
        best = logprobs.max(axis=2, keepdims=True)
        batch.counts["ties"] += int(((logprobs == best).sum(axis=2) > 1).sum())

    def _finish(self, batch: RewardBatch, groups: Sequence[_Group]) -> None:
        """Accuracy and reward of the valid captions."""
        valid = batch.valid
        asked = batch.asked[valid]
        hits = (batch.picks[valid] == np.arange(self.recipe.k)) & asked
        batch.accuracy[valid] = hits.sum(axis=1) / np.maximum(asked.sum(axis=1), 1)
        if self.recipe.scoring == "soft":
            logprobs = batch.label_logprobs[valid]
            shifted = np.exp(logprobs - np.nan_to_num(logprobs).max(axis=2, keepdims=True))
            chances = np.einsum("npp->np", shifted) / shifted.sum(axis=2)
            batch.reward[valid] = self.scale * np.where(asked, chances, 0.0).sum(axis=1)
            batch.reward[valid] /= np.maximum(asked.sum(axis=1), 1)
        else:
            batch.reward[valid] = self.scale * batch.accuracy[valid]
        batch.counts["groups"] = len(groups)
        batch.counts["questions"] = int(batch.asked.sum())
        batch.counts["invalid"] = int((~valid).sum())


@contextmanager
def _clock(batch: RewardBatch, name: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    batch.timings[name] = time.perf_counter() - start
