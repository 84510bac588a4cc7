"""Validation: fixed sets, means over valid captions only, rows as they are recorded."""

from __future__ import annotations

import numpy as np
import pytest

from tests.scripted_run import FewSeries, K, ScriptedReward
from trainer.validate import fixed_ids, score


def test_fixed_sets_are_the_same_every_time_and_stay_in_their_split() -> None:
    corpus = FewSeries(90)
    chosen = fixed_ids(corpus, "val", 10)
    assert chosen == fixed_ids(FewSeries(90), "val", 10) == fixed_ids(corpus, "val", 20)[:10]
    assert len(set(chosen)) == 10
    assert set(chosen) <= set(corpus.ids("val"))
    assert chosen != sorted(chosen)  # a sample, not the first ones of one source
    assert sorted(fixed_ids(corpus, "test", 500)) == corpus.ids("test")


def test_scores_are_means_over_valid_captions() -> None:
    corpus = FewSeries()
    ids = corpus.ids("val")[:4]
    reward = ScriptedReward(lambda caption: float(caption == "right"), lambda c: c == "broken")
    scores = score(["right", "wrong", "broken", "right"], ids, corpus, reward)
    assert scores.acc == pytest.approx(2 / 3)
    assert scores.reward == pytest.approx(4 / 3)
    assert scores.invalid_frac == pytest.approx(1 / 4)
    assert len(scores.by_position) == K
    assert [row["valid"] for row in scores.rows] == [True, True, False, True]
    assert [row["id"] for row in scores.rows] == ids
    for row in scores.rows:
        np.testing.assert_allclose(row["probs"].sum(axis=-1), 1.0)
        assert row["distractors"] == corpus.pool(row["id"])[: K - 1]
    assert scores.rows[2]["reason"] == "scripted"


def test_validation_asks_the_fixed_sets() -> None:
    asked: list[int | None] = []
    reward = ScriptedReward(lambda caption: 1.0, before=asked.append)
    corpus = FewSeries()
    score(["x"], corpus.ids("val")[:1], corpus, reward)
    assert asked == [None]
