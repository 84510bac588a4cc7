"""The judge reward: a frozen language model grades a caption from 1 to 10, given the values.

Reward = scale x (score - 1) / 9. The values are the shared prefix of a chart's captions. Source:
the paper's LLM-as-judge baseline; the wording is ours, the order (values, description, task) and
the criteria (accuracy before specificity before completeness) are the reference's.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from lineup_fast import kernels
from lineup_fast.candidates import auto_decimals
from trainer.baselines.reader_reward import ReaderReward, likeliest
from trainer.baselines.reading import QUOTE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lineup_fast.kernels import PromptTree
    from lineup_fast.rewards import RewardBatch
    from lineup_fast.verifiers.base import TreeReplies, TreeScores, Verifier
    from trainer.validate import Series

    Floats = NDArray[np.float64]

log = logging.getLogger(__name__)

VERSION = "1"
LOWEST, HIGHEST = 1, 10
SCORES = tuple(str(score) for score in range(LOWEST, HIGHEST + 1))
DIGITS = tuple(str(digit) for digit in range(10))
SELF_TEST_ITEMS = 8
CLEARLY = 2.0  # standard errors by which the self-test's true descriptions must be ahead
TIED = 1e-6  # of a grade: what float32 leaves of equal ones
LITTLE_MASS = 0.5  # probability of all grades together below which the judge is told of
SYSTEM = (
    "You grade written descriptions of time series against their values and answer with one whole "
    "number."
)
_USER = (
    "The values of a time series, in time order:\n[{values}]\n\n"
    "A description of it:\n"
    + QUOTE
    + "\nGrade the description from 1 to 10. What counts, in this order: accuracy (nothing is "
    "worse than a claim that the values contradict), then specificity (statements that would not "
    "hold for other series), then completeness.\n"
    "9-10: everything is right, specific and complete. 7-8: right, with little missing. "
    "5-6: mostly right, but vague or with gaps. 3-4: a clear error, or nothing specific. "
    "1-2: wrong, empty, or not about these values.\n"
    "Length earns nothing. Reply with the number alone."
)


class JudgeReward(ReaderReward):
    """Scores captions by a language model's grade.

    corpus: where values come from. scoring: "label_logprobs" takes the likeliest of the ten scores,
    "soft" their expected value (finer, and a gradient of preference where all argmaxes are equal),
    "generate" the first whole number of a reply, clamped to 1..10; a reply without one is 1 and
    counted as unparsed. In its batches K is 1; picks hold score - 1.

    Where "10" is two tokens, its probability is that of "1" times that of "0" behind it, which is
    asked as a second question of the same tree.
    """

    _n_questions, _n_labels = 1, HIGHEST

    def __init__(
        self,
        corpus: Series,
        verifier: Verifier,
        *,
        scoring: str = "label_logprobs",
        scale: float = 2.0,
    ) -> None:
        recipe = f"judge.{scoring}.v{VERSION}"
        super().__init__(verifier, SYSTEM, scoring=scoring, scale=scale, recipe=recipe)
        self.corpus = corpus
        self.facts: dict[str, Any] = {}  # for the record of a run
        self.fingerprints["corpus"] = corpus.fingerprint
        self._one: NDArray[np.int32] | None = None  # the token "1", where "10" begins with it
        if scoring != "generate":
            self._find_labels()

    def _about(self, item: str, index: int | None) -> tuple[Floats, list[str]]:
        del index  # the draw changes nothing
        x = self.corpus.series(item)
        return x, [user_text(x)]

    def _tree(self, users: list[str], captions: list[NDArray[np.int32]]) -> PromptTree:
        tree = super()._tree(users, captions)
        return tree if self._one is None else with_second_token(tree, self._one)

    def check_context(self, max_new_tokens: int, policy_tokenizer: Any = None) -> int:
        """Tokens of the longest possible prompt.

        Raises:
            ValueError: it exceeds the verifier's context.
        """
        del policy_tokenizer
        texts = [printed(self.corpus.series(item)) for item in self.corpus.ids()]
        frame = sum(map(len, self._reader.around(_USER.replace("{values}", "1"))))
        values = max((len(ids) for ids in self._reader.encoder.encode_captions(texts)), default=0)
        return self._fits(frame + values + 2, max_new_tokens)

    def metrics(self, batch: RewardBatch, lengths: NDArray[np.int64]) -> dict[str, Any]:
        """For the record: histogram of the ten scores, and rank correlation of length and reward.

        lengths: tokens of each caption, int64 [n].
        """
        picks = batch.picks[batch.valid, 0]
        return {
            "judge/scores": np.bincount(picks[picks >= 0], minlength=HIGHEST).tolist(),
            "judge/unparsed": int(batch.counts.get("unparsed", 0)),
            "judge/length_spearman": spearman(
                lengths[batch.valid].astype(np.float64),
                batch.reward[batch.valid].astype(np.float64),
            ),
        }

    def _find_labels(self) -> None:
        """Tokens of the scores, or of the digits where ten is two tokens."""
        user = user_text(np.arange(3.0))
        self._labels = self._reader.labels(user, SCORES)
        if self._labels is not None:
            return
        self._labels = self._reader.labels(user, DIGITS)
        encoder = self._reader.encoder
        prompt = self._reader.text(user, "x")
        one, ten = (encoder.encode(prompt + text)[0] for text in ("1", "10"))
        if self._labels is None or not np.array_equal(ten[:-1], one):
            raise ValueError(
                "labels: expected scores of one token each, or of one token a digit, got a "
                "tokenizer with neither; --scoring generate needs no labels"
            )
        self._one = one[-1:]

    def _read(
        self, batch: RewardBatch, row: int, about: Floats, answer: TreeScores | TreeReplies, at: int
    ) -> None:
        del about
        batch.asked[row, 0] = True
        if hasattr(answer, "texts"):
            score = parse_score(answer.texts[at][0] or "")
            batch.counts["unparsed"] += score is None
            place: float = (score or LOWEST) - LOWEST
            batch.picks[row, 0] = place
        else:
            logprobs = answer.label_logprobs[at, 0]
            if self._one is not None:
                logprobs = of_scores(logprobs, answer.label_logprobs[at, 1])
            pick, chances = likeliest(batch, row, 0, logprobs)
            place = float(chances @ np.arange(HIGHEST)) if self.scoring == "soft" else pick
        assert batch.right is not None
        batch.right[row, 0] = place / (HIGHEST - LOWEST)


def printed(x: Floats) -> str:
    """Values as the judge reads them, with the decimals of the identification reward."""
    return kernels.format_numbers(x, auto_decimals(x), ", ")


def user_text(x: Floats) -> str:
    """The user turn for a series float64 [T], with a place for the caption."""
    return _USER.replace("{values}", printed(x))


def with_second_token(tree: PromptTree, token: NDArray[np.int32]) -> PromptTree:
    """The tree with a second question behind each first one: after the answer began with token."""
    firsts = tree.questions[:, 0]
    n = len(tree.parent)
    more = len(firsts)
    ends = tree.offsets[-1] + len(token) * np.arange(1, more + 1)
    return replace(
        tree,
        ids=np.concatenate([tree.ids, np.tile(token, more)]),
        offsets=np.concatenate([tree.offsets, ends]),
        parent=np.concatenate([tree.parent, firsts]).astype(np.int32),
        questions=np.stack([firsts, np.arange(n, n + more)], axis=1).astype(np.int32),
    )


def of_scores(first: NDArray[np.float32], second: NDArray[np.float32]) -> NDArray[np.float32]:
    """Log-probabilities of the scores 1 to 10, float32 [10], from those of the digits 0 to 9.

    first: at the answer; second: behind "1". "1" alone is what does not go on to "10".
    """
    ten = np.exp(min(float(second[0]), 0.0))
    with np.errstate(divide="ignore"):
        alone = np.log1p(-ten) if ten < 1 else -np.inf
    scores = np.concatenate([first[1:], first[1:2] + second[:1]])
    scores[0] = first[1] + alone
    return scores.astype(np.float32)


def parse_score(reply: str) -> int | None:
    """The first whole number of a reply, clamped to 1..10; None where there is none."""
    found = re.search(r"\d+", reply)
    return min(max(int(found.group()), LOWEST), HIGHEST) if found else None


def spearman(a: Floats, b: Floats) -> float:
    """Rank correlation with average ranks of ties; NaN where one of them is constant."""
    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return float("nan")
    return float(np.corrcoef(_ranks(a), _ranks(b))[0, 1])


def _ranks(values: Floats) -> Floats:
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks: Floats = (ends - (counts - 1) / 2)[place]
    return ranks


@dataclass(frozen=True)
class SelfTest:
    """Mean scores 1 to 10 of true, empty-worded and false descriptions of the same series.

    label_mass: probability of the ten scores among all answers, mean; NaN where replies are parsed.
    """

    accurate: float
    generic: float
    false: float
    label_mass: float = float("nan")


def self_test(reward: JudgeReward, items: Sequence[str]) -> SelfTest:
    """Whether the judge tells good from bad: true descriptions must be graded above generic and
    above false ones, on average over the items and by more than twice the standard error of that
    average, which a judge that grades by chance rarely reaches.

    Raises:
        ValueError: they are not, or a description has no grade; such a judge is of no use.
    """
    generic = "The chart shows a time series that changes over time, with some ups and downs."
    series = [reward.corpus.series(item) for item in items]
    scores, masses = [], []
    for texts in (
        [accurate_text(x) for x in series],
        [generic] * len(items),
        [accurate_text(x.max() + x.min() - x) for x in series],  # upside down
    ):
        batch = reward.score(texts, items)
        if not batch.valid.all():
            raise ValueError(f"judge: expected grades in the self-test, got {batch.reason}")
        scores.append(LOWEST + (HIGHEST - LOWEST) * batch.accuracy.astype(np.float64))
        masses.append(batch.label_mass[:, 0])
    means = [float(of.mean()) for of in scores]
    found = SelfTest(means[0], means[1], means[2], float(np.mean(masses)))
    true, *others = scores
    if not all(_clearly_above(true - other) for other in others):
        raise ValueError(
            f"judge: expected true descriptions above generic and false ones by more than "
            f"{CLEARLY:g} standard errors, got mean scores {found.accurate:.2f} true, "
            f"{found.generic:.2f} generic, {found.false:.2f} false"
        )
    if found.label_mass < LITTLE_MASS:
        log.warning(
            "judge: grades have %.2g of the probability of an answer; it would say something else",
            found.label_mass,
        )
    return found


def _clearly_above(gaps: Floats) -> bool:
    """Whether the mean of gaps float64 [n] is more than CLEARLY standard errors above 0."""
    error = gaps.std(ddof=1) / np.sqrt(len(gaps)) if len(gaps) > 1 else 0.0
    return bool(gaps.mean() > max(CLEARLY * error, TIED))


def self_test_items(corpus: Series) -> list[str]:
    """The first training series that are not constant, for the self-test."""
    changing = (item for item in corpus.ids("train") if np.ptp(corpus.series(item)) > 0)
    return list(islice(changing, SELF_TEST_ITEMS))


def accurate_text(x: Floats) -> str:
    """A true description of a series float64 [T], with its numbers."""
    n, digits = len(x), auto_decimals(x)
    high, low = int(x.argmax()), int(x.argmin())
    course = "rises" if x[-1] > x[0] else "falls" if x[-1] < x[0] else "comes back"

    def number(value: float) -> str:
        return kernels.format_numbers(np.array([value]), digits)

    middle = f", reaches {number(x[n // 2])} at step {n // 2}" if n > 2 else ""
    return (
        f"The series has {n} values. It starts at {number(x[0])}{middle} and ends at "
        f"{number(x[-1])}, so that it {course} overall. Its highest value is {number(x[high])} at "
        f"step {high}, its lowest {number(x[low])} at step {low}; the average is "
        f"{number(float(x.mean()))}."
    )
