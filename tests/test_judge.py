"""The judge reward: grades against plain arithmetic, and the test a judge has to pass."""

from __future__ import annotations

import json
import re
import zlib
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lineup_fast.verifiers.scripted import ScriptedVerifier
from lineup_fast.verifiers.transformers import TransformersVerifier
from tests.random_vlm import byte_tokenizer, random_model
from tests.reader_pair import reader_pair
from tests.scripted_run import FewSeries, settings
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
from trainer.baselines.reading import Reader
from trainer.record.console import Console
from trainer.rloo import train

CORPUS = FewSeries()


@pytest.fixture(scope="module", params=["qwen2", "llama3"])
def verifiers(request: pytest.FixtureRequest) -> tuple[TransformersVerifier, TransformersVerifier]:
    """A random model with shared prefixes, and the same one prompt at a time."""
    return reader_pair(request.param)


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


def by_chance(seed: int, caption: str, x: np.ndarray) -> int:
    """Any grade, the same for the same text and series."""
    return 1 + zlib.crc32(f"{seed} {caption} {x.tolist()}".encode()) % 10


def test_a_judge_that_grades_by_chance_is_refused() -> None:
    """Its means are in the right order a third of the time; the self-test sees through that."""
    items, ordered, passed = self_test_items(CORPUS), 0, 0
    for seed in range(100):
        rule = partial(by_chance, seed)
        reward = JudgeReward(CORPUS, ScriptedVerifier(grades(rule)))
        try:
            self_test(reward, items)
            passed += 1
            ordered += 1
        except ValueError as error:
            means = [float(n) for n in re.findall(r"([\d.]+) (?:true|generic|false)", str(error))]
            ordered += means[0] > max(means[1:])
    assert ordered > 15
    assert passed <= 4  # each of the two comparisons passes 1 time in 24


def test_equal_gaps_pass_however_few() -> None:
    """Without a spread the standard error is 0, and any gap counts."""
    found = self_test(JudgeReward(CORPUS, ScriptedVerifier(grades(honest))), ["0001"])
    assert found.accurate > found.generic > found.false


class Mumbling(ScriptedVerifier):
    """Puts little of its probability on any grade."""

    def score(self, trees: Any, labels: Any, *, groups: Any = None) -> Any:
        answers = super().score(trees, labels, groups=groups)
        for answer in answers:
            answer.label_logprobs[:, 0] -= 9
        return answers


def test_a_judge_that_would_not_grade_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    items = self_test_items(CORPUS)
    self_test(JudgeReward(CORPUS, ScriptedVerifier(grades(honest))), items)
    assert not caplog.records
    found = self_test(JudgeReward(CORPUS, Mumbling(grades(honest))), items)
    assert found.label_mass < 1e-3
    assert "it would say something else" in caplog.text


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


def test_captions_that_could_not_fit_are_refused_at_the_start() -> None:
    judge = JudgeReward(CORPUS, ScriptedVerifier(grades(lambda *_: 5), max_prompt_tokens=1500))
    assert judge.check_context(10) < 1500
    with pytest.raises(ValueError, match="max_new_tokens"):
        judge.check_context(400)
