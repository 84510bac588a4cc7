"""Answerability and judge: rewards against plain arithmetic, on scripted and random verifiers."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lineup_fast.reward_rows import join, split
from lineup_fast.verifiers.scripted import ScriptedVerifier
from lineup_fast.verifiers.transformers import TransformersVerifier
from tests.random_vlm import byte_tokenizer, random_model
from tests.scripted_run import FewSeries, settings
from tests.toy_models import model
from tests.toy_tokenizers import tokenizer
from trainer.baselines.answerability import AnswerabilityReward, Shuffled, shuffled
from trainer.baselines.judge import (
    DIGITS,
    JudgeReward,
    accurate_text,
    parse_score,
    self_test,
    self_test_items,
    spearman,
    user_text,
)
from trainer.baselines.questions import Bank, Questioned, Survival, made
from trainer.baselines.reading import MaskedReward, Reader, masked
from trainer.record.console import Console
from trainer.rloo import train

CORPUS = FewSeries()


@pytest.fixture(scope="module")
def bank() -> Bank:
    survival = Survival()
    return Bank.of([q for i in CORPUS.ids() for q in made(i, CORPUS.series(i), 4, 0, survival)])


@pytest.fixture(scope="module", params=["qwen2", "llama3"])
def verifiers(request: pytest.FixtureRequest) -> tuple[TransformersVerifier, TransformersVerifier]:
    """A random model with shared prefixes, and the same one prompt at a time."""
    words = tokenizer(request.param)
    made_model = model("qwen2" if request.param == "qwen2" else "llama", len(words))
    one = TransformersVerifier(made_model, words)
    return one, TransformersVerifier(made_model, words, shared=False)


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
        return "hm" if caption == "hm" else "ABCD"[asked[number].answer]

    reward = AnswerabilityReward(bank, ScriptedVerifier(script), scoring="generate")
    item = next(i for i, q in bank.questions.items() if len(q) == 4)
    batch = reward.score(["fine", "hm"], [item, item])
    assert batch.reward.tolist() == [2.0, 0.0]
    assert batch.counts["unparsed"] == 4


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
    judge = JudgeReward(CORPUS, ScriptedVerifier(grades(lambda *_: 5), max_prompt_tokens=1500))
    assert judge.check_context(10) < 1500
    with pytest.raises(ValueError, match="max_new_tokens"):
        judge.check_context(400)


def test_a_bank_decides_which_series_are_trained_on(bank: Bank) -> None:
    some = Bank({item: bank.questions[item] for item in list(bank.questions)[3:8]}, "x")
    view = Questioned(CORPUS, some)
    assert view.ids() == list(some.questions)
    assert set(view.ids("train")) == set(CORPUS.ids("train")) & set(some.questions)
    np.testing.assert_array_equal(view.series("0001"), CORPUS.series("0001"))
    assert view.fingerprint == CORPUS.fingerprint


# ------------------------------------------------------------------------------------- judge


def grades(rule: Any) -> Any:
    """A script that gives score rule(caption, x) the probability 0.9 and the rest to a 5."""

    def script(caption: str, x: np.ndarray, number: int) -> np.ndarray:
        chances = np.full(11, 1e-6)
        chances[5] += 0.1
        chances[rule(caption, x)] += 0.9
        if number == 0:  # the digits; "1" is a 1 and the beginning of a 10
            digits = np.array([1e-9, chances[1] + chances[10], *chances[2:10]])
            return np.log(digits)
        ten = chances[10] / (chances[1] + chances[10])
        return np.log(np.array([ten, *[(1 - ten) / 9 + 1e-9] * 9]))

    return script


def test_grades_become_rewards() -> None:
    reward = JudgeReward(CORPUS, ScriptedVerifier(grades(lambda caption, x: int(caption))))
    texts = [str(score) for score in range(1, 11)]
    batch = reward.score(texts, ["0003"] * 10, index=1)
    np.testing.assert_allclose(batch.reward, 2 * np.arange(10) / 9, atol=1e-6)
    assert batch.picks[:, 0].tolist() == list(range(10))
    np.testing.assert_allclose(batch.label_mass[:, 0], 1.0, atol=1e-3)
    np.testing.assert_allclose(batch.accuracy_by_position(), [0.5], atol=1e-6)
    soft = JudgeReward(CORPUS, ScriptedVerifier(grades(lambda c, x: int(c))), scoring="soft")
    expected = 2 * (0.9 * np.arange(10) + 0.1 * 4) / 9
    np.testing.assert_allclose(soft.score(texts, ["0003"] * 10).reward, expected, atol=1e-3)
    metrics = reward.metrics(batch, np.arange(10))
    assert metrics["judge/scores"] == [1] * 10
    assert metrics["judge/length_spearman"] == pytest.approx(1.0)


def test_replies_are_parsed_clamped_and_counted() -> None:
    replies = {"a": "7", "b": "Score: 12", "c": "no idea", "d": "0/10"}
    verifier = ScriptedVerifier(lambda caption, x, number: replies[caption])
    reward = JudgeReward(CORPUS, verifier, scoring="generate")
    batch = reward.score(list(replies), ["0001"] * 4)
    np.testing.assert_allclose(batch.reward, [2 * 6 / 9, 2.0, 0.0, 0.0], atol=1e-6)
    assert batch.counts["unparsed"] == 1
    assert [parse_score(text) for text in ("10.", "-3", "", "9 of 10")] == [10, 3, None, 9]


def honest(caption: str, x: np.ndarray) -> int:
    """9 for a description with this series' own start and end, 2 for wrong ones, else 5."""
    numbers = re.findall(r"(?:starts|ends) at ([\d.]+)", caption)
    if not numbers:
        return 5
    return 9 if [float(n) for n in numbers] == [x[0], x[-1]] else 2


@pytest.mark.parametrize(
    ("rule", "passes"),
    [
        (honest, True),
        (lambda caption, x: 10, False),  # it likes everything
        (lambda caption, x: 9 if "at" in caption else 3, False),  # it likes numbers, true or not
        (lambda caption, x: 11 - honest(caption, x), False),
        (lambda caption, x: 9 if len(caption) < 90 else 5, False),  # it likes what is short
    ],
)
def test_a_judge_that_cannot_tell_true_from_false_is_refused(rule: Any, passes: bool) -> None:
    reward = JudgeReward(CORPUS, ScriptedVerifier(grades(rule)))
    items = self_test_items(CORPUS)
    assert len(items) == 8
    if passes:
        found = self_test(reward, items)
        assert (found.accurate, found.generic, found.false) == pytest.approx((9, 5, 2))
    else:
        with pytest.raises(ValueError, match="judge: expected true descriptions above"):
            self_test(reward, items)


def test_a_judge_that_fails_is_refused_too() -> None:
    def script(*_: Any) -> np.ndarray:
        raise RuntimeError("no memory")

    with pytest.raises(ValueError, match="no memory"):
        self_test(JudgeReward(CORPUS, ScriptedVerifier(script)), ["0001"])


def test_true_descriptions_are_true() -> None:
    text = accurate_text(np.array([3.0, 9.0, 1.0, 5.0]))
    assert "starts at 3.000" in text
    assert "highest value is 9.000 at step 1" in text
    assert "lowest 1.000 at step 2" in text
    assert "rises overall" in text


def test_scores_of_a_model_equal_whole_prompts(
    verifiers: tuple[TransformersVerifier, TransformersVerifier],
) -> None:
    items = ["0001", "0001", "0002"]
    captions = ["It rises from 3 to 7 and falls", "x", "flat"]
    one, whole = (JudgeReward(CORPUS, v) for v in verifiers)
    a, b = (reward.score(captions, items) for reward in (one, whole))
    np.testing.assert_allclose(a.label_logprobs, b.label_logprobs, atol=1e-4)
    assert a.counts["prefilled_tokens"] < b.counts["prefilled_tokens"]
    # by hand: the model's own next-token probabilities of "1", "10", …
    reader, verifier = one._reader, verifiers[1]
    for row, (item, caption) in enumerate(zip(items, captions, strict=True)):
        prompt = reader.text(user_text(CORPUS.series(item)), caption)
        ids = verifier.encoder.encode(prompt)[0]
        first = next_token(verifier, ids)
        tokens = [verifier.encoder.encode(prompt + digit)[0][len(ids) :] for digit in DIGITS]
        assert all(len(token) == 1 for token in tokens)
        ten = verifier.encoder.encode(prompt + "10")[0][len(ids) :]
        expected = [first[int(token[0])] for token in tokens[1:]]
        if len(ten) == 1:
            expected.append(first[int(ten[0])])
        else:
            after = next_token(verifier, np.append(ids, ten[0]))[int(ten[1])]
            expected.append(expected[0] * after)
            expected[0] *= 1 - after
        found = np.exp(a.label_logprobs[row, 0].astype(np.float64))
        extra = labels_with_a_space(reader, one)
        if not extra:
            np.testing.assert_allclose(found, expected, rtol=1e-3)


def labels_with_a_space(reader: Reader, reward: JudgeReward) -> bool:
    assert reward._labels is not None
    return reward._labels.ids.shape[1] > 1


def next_token(verifier: TransformersVerifier, ids: np.ndarray) -> np.ndarray:
    with torch.inference_mode():
        logits = verifier.model(input_ids=torch.from_numpy(ids.astype(np.int64))[None]).logits
    result: np.ndarray = torch.softmax(logits[0, -1].double(), -1).numpy()
    return result


def test_rank_correlation_equals_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(0)
    for _ in range(20):
        a, b = rng.integers(0, 5, 30).astype(float), rng.standard_normal(30)
        assert spearman(a, b) == pytest.approx(stats.spearmanr(a, b).statistic)
    assert np.isnan(spearman(np.ones(3), np.arange(3.0)))


def test_a_run_records_what_the_judge_did(tmp_path: Path) -> None:
    random_model().save_pretrained(tmp_path / "model")
    byte_tokenizer().save_pretrained(tmp_path / "model")
    config = settings(tmp_path / "model", tmp_path / "run", steps=2, reward="judge")
    reward = JudgeReward(CORPUS, ScriptedVerifier(grades(lambda text, x: 1 + len(text) % 10)))
    train(config, CORPUS, reward, console=Console("test", 2, enabled=False))
    text = (config.run / "metrics.jsonl").read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    for row in rows[1:]:
        assert sum(row["judge/scores"]) == 16
        mean = sum(place * n for place, n in enumerate(row["judge/scores"])) / 16
        assert row["reward"] == pytest.approx(2 * mean / 9)
        assert row["lineup/acc_by_position"] == [pytest.approx(mean / 9)]
        assert -1 <= (row["judge/length_spearman"] or 0) <= 1
    assert '"recipe": "judge.label_logprobs"' in (config.run / "config.json").read_text()
    lines = (config.run / "validation" / "step-000002.jsonl").read_text().splitlines()
    assert {tuple(json.loads(line)["distractors"]) for line in lines} == {()}


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
