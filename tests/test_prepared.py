"""Candidate blocks made ahead of the captions: the same rewards, bounded, from any thread."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from lineup_fast import rewards
from lineup_fast.candidates import CandidateError, CandidateSet
from lineup_fast.prepared import Prepared
from lineup_fast.rewards import IdentificationReward, RewardBatch
from tests.scripted_server import corpus, reward, truth

IDS = corpus().ids("train")[:6]


class Recorded:
    """A reward's trees and draws."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, scored: IdentificationReward) -> None:
        self.draws: list[tuple[str, int]] = []
        self.trees: list[Any] = []
        draw, tree = rewards.draw, scored.builder.tree

        def drawing(corpus: Any, item: str, *, index: int, **words: Any) -> CandidateSet:
            self.draws.append((item, index))
            if item == IDS[5]:
                raise CandidateError(f"{item}: expected at least 3 neighbours, got 1")
            return draw(corpus, item, index=index, **words)

        def growing(*words: Any, **more: Any) -> Any:
            self.trees.append(tree(*words, **more))
            return self.trees[-1]

        monkeypatch.setattr(rewards, "draw", drawing)
        monkeypatch.setattr(scored.builder, "tree", growing)


def equal(one: RewardBatch, other: RewardBatch) -> None:
    for name in ("reward", "picks", "label_logprobs", "valid", "asked"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    assert one.reason == other.reason


def test_what_was_prepared_is_asked_and_not_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    captions, ids = [truth(item) for item in IDS] * 2, list(IDS) * 2
    plain, ready = reward(), reward()
    without = Recorded(monkeypatch, plain)
    expected = plain.score(captions, ids, index=3)
    monkeypatch.undo()
    ahead = Recorded(monkeypatch, ready)
    ready.prepare(IDS, 3)
    ready.prepare(IDS, 3)
    bad = (IDS[5], 3)  # cannot be asked about: drawn each time, refused each time
    assert ahead.draws == [(item, 3) for item in IDS] + [bad]
    equal(ready.score(captions, ids, index=3), expected)
    assert ahead.draws[7:] == [bad]
    why = f"{IDS[5]}: expected at least 3 neighbours, got 1"
    assert expected.reason[5] == expected.reason[11] == why
    for one, other in zip(ahead.trees, without.trees, strict=True):
        for name in ("ids", "offsets", "parent", "questions"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    equal(ready.score(captions, ids, index=4), plain.score(captions, ids, index=4))
    assert (IDS[0], 4) in ahead.draws  # another draw is another set


def test_fixed_sets_and_other_seeds_are_not_taken_from_it() -> None:
    captions = [truth(item) for item in IDS]
    scored, other = reward(), reward()
    scored.prepare(IDS, 0)
    equal(scored.score(captions, IDS), other.score(captions, IDS))
    scored.seed = other.seed = 5
    equal(scored.score(captions, IDS, index=0), other.score(captions, IDS, index=0))


def test_the_table_is_bounded_and_keeps_the_newest() -> None:
    table: Prepared[int] = Prepared(3)
    for number in range(10):
        table.put(number, number)
    assert len(table) == 3
    assert [table.get(number) for number in range(6, 10)] == [None, 7, 8, 9]
    assert 9 in table
    assert 6 not in table


def test_threads_prepare_and_score_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewards, "MOST_PREPARED", 4)  # evicted all the time
    scored, plain = reward(), reward()
    captions = [truth(item) for item in IDS]
    expected = [plain.score(captions, IDS, index=index) for index in range(6)]
    found: dict[int, RewardBatch] = {}

    def run(indices: Sequence[int]) -> None:
        for index in indices:
            scored.prepare(IDS, index + 1)
            found[index] = scored.score(captions, IDS, index=index)

    threads = [threading.Thread(target=run, args=(range(n, 6, 3),)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index, batch in enumerate(expected):
        equal(found[index], batch)
