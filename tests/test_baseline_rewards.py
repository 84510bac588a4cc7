"""Answerability, masking and words: against plain arithmetic, on scripted and random verifiers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lineup_fast.reward_rows import join, split
from lineup_fast.verifiers.scripted import ScriptedVerifier
from lineup_fast.verifiers.transformers import TransformersVerifier
from tests.reader_pair import reader_pair
from tests.scripted_run import FewSeries
from trainer.baselines.answerability import AnswerabilityReward, Shuffled, shuffled
from trainer.baselines.questions import Bank, Questioned, Survival, made
from trainer.baselines.reading import MaskedReward, masked
from trainer.validate import score

CORPUS = FewSeries()


@pytest.fixture(scope="module")
def bank() -> Bank:
    survival = Survival()
    return Bank.of([q for i in CORPUS.ids() for q in made(i, CORPUS.series(i), 4, 0, survival)])


@pytest.fixture(scope="module", params=["qwen2", "llama3"])
def verifiers(request: pytest.FixtureRequest) -> tuple[TransformersVerifier, TransformersVerifier]:
    """A random model with shared prefixes, and the same one prompt at a time."""
    return reader_pair(request.param)


def truth(caption: str, asked: Sequence[Shuffled], number: int) -> list[float]:
    """Right where the caption says so for that question, else the next option."""
    question = asked[number]
    right = caption[number % len(caption)] == "y"
    pick = question.answer if right else (question.answer + 1) % len(question.options)
    return [float(at == pick) for at in range(4)]


# ------------------------------------------------------------------------------- answerability


def test_reward_is_the_share_of_questions_answered(bank: Bank) -> None:
    reward = AnswerabilityReward(bank, ScriptedVerifier(truth), scale=2.0)
    item = next(i for i, q in bank.questions.items() if len(q) == 4)
    few = next(i for i, q in bank.questions.items() if len(q) == 3)
    batch = reward.score(["yyyy", "ynnn", "nnnn", "ynnn"], [item, item, item, few], index=3)
    np.testing.assert_allclose(batch.reward, [2, 1 / 2, 0, 2 / 3], atol=1e-6)
    np.testing.assert_allclose(batch.accuracy, [1, 1 / 4, 0, 1 / 3], atol=1e-6)
    assert batch.asked.sum(axis=1).tolist() == [4, 4, 4, 3]
    assert batch.counts["questions"] == 15
    by_place = [3 / 4, 1 / 4, 1 / 4, 1 / 3]  # the last caption has three questions only
    np.testing.assert_allclose(batch.accuracy_by_position(), by_place, atol=1e-6)
    again = join(split(batch))
    assert again.right is not None
    np.testing.assert_array_equal(again.right, batch.right)
    np.testing.assert_array_equal(again.accuracy_by_position(), batch.accuracy_by_position())


def test_options_are_shuffled_by_counters(bank: Bank) -> None:
    question = next(iter(bank.questions.values()))[0]
    seen = set()
    for index in range(60):
        asked = shuffled(question, 0, index, 0)
        assert asked == shuffled(question, 0, index, 0)
        assert sorted(asked.options) == sorted(question.options)
        assert asked.options[asked.answer] == question.options[question.answer]
        seen.add(asked.answer)
    assert seen == set(range(4))
    assert shuffled(question, 0, None, 0) == shuffled(question, 0, None, 0)


def test_replies_are_parsed_and_unparsed_ones_are_wrong(bank: Bank) -> None:
    def script(caption: str, asked: Sequence[Shuffled], number: int) -> str:
        shift = caption == "wrong"
        return "hm" if caption == "hm" else "ABCD"[(asked[number].answer + shift) % 4]

    reward = AnswerabilityReward(bank, ScriptedVerifier(script), scoring="generate")
    item = next(i for i, q in bank.questions.items() if len(q) == 4)
    batch = reward.score(["fine", "hm", "wrong"], [item] * 3)
    assert batch.reward.tolist() == [2.0, 0.0, 0.0]
    assert batch.counts["unparsed"] == 4


def test_soft_rewards_are_the_mean_probability_of_the_right_option(bank: Bank) -> None:
    def script(caption: str, asked: Sequence[Shuffled], number: int) -> list[float]:
        odds = [1.0] * 4
        odds[asked[number].answer] = float(caption)
        return np.log(odds).tolist()

    reward = AnswerabilityReward(bank, ScriptedVerifier(script), scoring="soft")
    item = next(i for i, q in bank.questions.items() if all(len(a.options) == 4 for a in q))
    batch = reward.score(["1", "9", "0.5"], [item] * 3, index=2)
    np.testing.assert_allclose(batch.reward, [2 / 4, 2 * 9 / 12, 2 * 0.5 / 3.5], atol=1e-6)


def test_failures_are_invalid_and_never_zero(bank: Bank) -> None:
    def script(caption: str, asked: Sequence[Shuffled], number: int) -> list[float]:
        if caption == "crash":
            raise RuntimeError("no memory")
        return truth(caption, asked, number)

    reward = AnswerabilityReward(bank, ScriptedVerifier(script))
    item = next(iter(bank.questions))
    batch = reward.score(["yyyy", "crash", "yyyy"], [item, item, "nobody"], index=0)
    assert batch.valid.tolist() == [True, False, False]
    assert np.isnan(batch.reward[1:]).all()
    assert batch.reason[1] == "RuntimeError: no memory"
    assert batch.reason[2] == "nobody: no questions in the bank"
    assert batch.counts["invalid"] == 2


class Broken(ScriptedVerifier):
    """Fails as a whole on calls that hold a certain caption."""

    def score(self, trees: Any, labels: Any, *, groups: Any = None) -> Any:
        if any("crash" in group.captions for group in groups):
            raise RuntimeError("out of memory")
        return super().score(trees, labels, groups=groups)


def test_a_failing_group_does_not_take_the_others_with_it(bank: Bank) -> None:
    reward = AnswerabilityReward(bank, Broken(truth))
    first, second = list(bank.questions)[:2]
    batch = reward.score(["yyyy", "crash"], [first, second], index=0)
    assert batch.valid.tolist() == [True, False]
    assert batch.reason[1] == "RuntimeError: out of memory"


def test_shared_prefixes_answer_as_whole_prompts_do(
    bank: Bank, verifiers: tuple[TransformersVerifier, TransformersVerifier]
) -> None:
    items = [i for i in list(bank.questions)[:3] for _ in range(2)]
    captions = [
        "It rises from 3 to 7.",
        "flat",
        "It falls.",
        "",
        'tricky """\nA',
        "low 12, high 90",
    ]
    one, whole = (AnswerabilityReward(bank, v).score(captions, items, index=5) for v in verifiers)
    assert one.valid.all()
    np.testing.assert_allclose(one.label_logprobs, whole.label_logprobs, atol=1e-4)
    np.testing.assert_array_equal(one.asked, whole.asked)
    assert one.counts["prefilled_tokens"] < 0.6 * whole.counts["prefilled_tokens"]
    assert one.counts["prompt_tokens"] == whole.counts["prompt_tokens"]


def test_assembled_prompts_are_the_tokenizers_own(
    bank: Bank, verifiers: tuple[TransformersVerifier, TransformersVerifier]
) -> None:
    verifier = verifiers[0]
    reward = AnswerabilityReward(bank, verifier)
    item = next(iter(bank.questions))
    for number, question in enumerate(reward.questions(item, 2)):
        caption = "It rises to 31, then falls"  # "." and a newline may be one token
        reader = reward._reader
        tree = reader.tree([q.user() for q in reward.questions(item, 2)],
                           reader.caption_ids([caption]))  # fmt: skip
        text = reader.text(question.user(), caption)
        assert question.stem in text
        assert all(option in text for option in question.options)
        np.testing.assert_array_equal(tree.prompt(0, number), verifier.encoder.encode(text)[0])


def test_captions_that_could_not_fit_are_refused_at_the_start(bank: Bank) -> None:
    verifier = ScriptedVerifier(truth, max_prompt_tokens=900)
    reward = AnswerabilityReward(bank, verifier)
    longest = reward.check_context(10)
    assert 300 < longest < 900
    with pytest.raises(ValueError, match="max_new_tokens: expected prompts of at most 900"):
        reward.check_context(400)


def test_a_bank_decides_which_series_are_trained_on(bank: Bank) -> None:
    some = Bank({item: bank.questions[item] for item in list(bank.questions)[3:8]}, "x")
    view = Questioned(CORPUS, some)
    assert view.ids() == list(some.questions)
    assert set(view.ids("train")) == set(CORPUS.ids("train")) & set(some.questions)
    np.testing.assert_array_equal(view.series("0001"), CORPUS.series("0001"))
    assert view.fingerprint == CORPUS.fingerprint


def test_what_was_not_asked_is_no_warning(bank: Bank) -> None:
    """Warnings are errors here; numpy warns of NaN in rows of some sizes only."""
    reward = AnswerabilityReward(bank, ScriptedVerifier(truth))
    items = [item for item in bank.questions for _ in range(3)]
    found = score(["yyyy"] * len(items), items, CORPUS, reward)
    assert min(map(len, bank.questions.values())) < 4  # some are asked less
    for row in found.rows:
        n_asked = len(bank.questions[row["id"]])
        np.testing.assert_allclose(np.nansum(row["probs"][:n_asked], axis=-1), 1.0, atol=1e-6)
        assert np.isnan(row["probs"][n_asked:]).all()


# ------------------------------------------------------------------------------------ masking


def test_masked_captions_hold_no_digits(bank: Bank) -> None:
    assert masked("From -1,200.5 to 3e5 at step 12.") == "From -# to #e# at step #."
    assert masked("three ٣ and ²") == "three # and ²"
    seen = []

    def script(caption: str, asked: Any, number: int) -> list[float]:
        seen.append(caption)
        return [0.0] * 4

    reward = MaskedReward(AnswerabilityReward(bank, ScriptedVerifier(script)))
    reward.score(["up to 17"], [next(iter(bank.questions))], index=0)
    assert set(seen) == {"up to #"}
    assert reward.recipe == "answerability.label_logprobs.v1"  # the rest is the reward's own
    assert not hasattr(reward, "prepare")


def test_settings_name_the_reward(tmp_path: Path) -> None:
    from trainer.baselines.words import reward_name
    from trainer.config import RlooConfig

    base = "k4.caption_first.label_logprobs.dauto.v1"
    assert reward_name(RlooConfig()) == base
    assert reward_name(RlooConfig(distractors="random", mask_numbers=True)) == (
        f"{base}.random.masked"
    )
    assert reward_name(RlooConfig(reward="judge", scoring="soft")) == "judge.soft"
    for words, match in [
        ({"reward": "answerability"}, "questions: expected a bank"),
        ({"reward": "judge", "distractors": "random"}, "distractors: expected nearest"),
        ({"distractors": "synthetic", "k": 5}, "k: expected at most 4"),
        ({"reward": "judge", "reward_url": ("http://x",)}, "reward_url"),
        ({"lookalikes": tmp_path, "distractors": "random"}, "lookalikes"),
    ]:
        with pytest.raises(ValueError, match=match):
            RlooConfig(**words)  # type: ignore[arg-type]
