"""Single captions scored together: whole groups first, equal ones once, in one call."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from lineup_fast import coalesce
from lineup_fast.coalesce import Coalescer, QueueFullError
from lineup_fast.reward_rows import join, split
from lineup_fast.rewards import IdentificationReward, RewardBatch
from lineup_fast.verifiers.scripted import ScriptedVerifier
from tests.scripted_server import corpus, reward, rule, truth

IDS = corpus().ids()[:8]


class Watched(IdentificationReward):
    """A reward that notes its calls; the first one waits until it may go on."""

    def __init__(self) -> None:
        super().__init__(corpus(), ScriptedVerifier(rule))
        self.calls: list[list[tuple[str, int | None, str]]] = []
        self.go = threading.Event()

    def score(self, captions: Any, ids: Any, *, index: Any = None) -> RewardBatch:
        self.calls.append(list(zip(ids, index, captions, strict=True)))
        assert self.go.wait(30)
        return super().score(captions, ids, index=index)


@contextmanager
def busy(**words: Any) -> Iterator[tuple[Coalescer, Watched]]:
    """A coalescer whose worker is held up by a first caption."""
    watched = Watched()
    made = Coalescer(watched, **words)
    first = made.submit(["first"], [IDS[7]], [0])
    while not watched.calls:
        time.sleep(0.001)
    try:
        yield made, watched
    finally:
        watched.go.set()
        first.future.result(30)
        assert made.close(30)


def submit(made: Coalescer, *asks: tuple[str, int | None, str]) -> list[coalesce.Ticket]:
    return [made.submit([caption], [item], [index]) for item, index, caption in asks]


def results(tickets: Sequence[coalesce.Ticket]) -> RewardBatch:
    return join([ticket.future.result(30) for ticket in tickets])


def test_while_the_worker_is_busy_everything_gathers_into_one_call() -> None:
    asks = [(item, n % 2, f"{truth(item)} {n}") for n in range(4) for item in IDS[:5]]
    with busy() as (made, watched):
        tickets = submit(made, *asks)
        watched.go.set()
        got = results(tickets)
    assert [len(call) for call in watched.calls] == [1, 20]
    items = [item for item, _, _ in watched.calls[1]]
    assert items == sorted(items)  # draws of a series side by side
    ids, indices, captions = (list(column) for column in zip(*asks, strict=True))
    want = reward().score(captions, ids, index=indices)
    np.testing.assert_array_equal(got.reward, want.reward)
    np.testing.assert_array_equal(got.label_logprobs, want.label_logprobs)
    assert got.index == want.index
    assert got.counts == want.counts


def test_equal_captions_are_scored_once_and_charged_once() -> None:
    same = (IDS[0], 3, "the same")
    with busy() as (made, watched):
        tickets = submit(made, same, same, (IDS[0], 4, "the same"), (IDS[0], None, "the same"))
        twice = made.submit(["the same", "the same"], [IDS[0]] * 2, [3, 3])
        watched.go.set()
        batches = [ticket.future.result(30) for ticket in tickets]
        both = twice.future.result(30)
        later = results(submit(made, same))
    assert len(watched.calls[1]) == 3
    assert set(watched.calls[1]) == {(IDS[0], index, "the same") for index in (3, 4, None)}
    assert len(watched.calls) == 2  # the later one was remembered
    assert [batch.counts["prompt_tokens"] > 0 for batch in batches] == [True, False, True, True]
    assert both.counts["prompt_tokens"] == later.counts["prompt_tokens"] == 0
    assert both.reward.tolist() == [batches[0].reward[0]] * 2
    assert later.reward[0] == batches[0].reward[0]


def test_complete_groups_overtake_incomplete_ones() -> None:
    with busy(group_size=3) as (made, watched):
        tickets = submit(made, (IDS[0], 5, "a"), (IDS[0], 5, "b"), (IDS[1], 5, "a"))
        tickets += submit(made, (IDS[1], 5, "b"), (IDS[1], 5, "a"))  # an equal caption is one of G
        watched.go.set()
        results(tickets[2:])
        results(tickets)
    calls = [{(item, index) for item, index, _ in call} for call in watched.calls[1:]]
    assert calls == [{(IDS[1], 5)}, {(IDS[0], 5)}]


def test_an_incomplete_group_waits_its_turn_but_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(coalesce, "PATIENCE_S", 0.0)
    with busy(group_size=2) as (made, watched):
        tickets = submit(made, (IDS[0], 0, "a"), (IDS[1], 0, "a"), (IDS[1], 0, "b"))
        time.sleep(0.01)
        watched.go.set()
        results(tickets)
    assert len(watched.calls[1]) == 3


def test_the_rest_of_a_group_is_complete_when_all_have_come() -> None:
    with busy(group_size=3) as (made, watched):
        one = submit(made, (IDS[0], 1, "a"))
        watched.go.set()
        results(one)
        watched.go.clear()
        hold = submit(made, (IDS[6], 0, "hold"))
        while len(watched.calls) < 3:
            time.sleep(0.001)
        rest = submit(made, (IDS[2], 1, "x"), (IDS[0], 1, "b"), (IDS[0], 1, "c"))
        watched.go.set()
        results(hold + rest)
    assert [len(call) for call in watched.calls[3:]] == [2, 1]


def test_batches_are_bounded_but_groups_stay_whole() -> None:
    with busy(max_batch=5) as (made, watched):
        tickets = submit(made, *((item, 0, f"{n}") for item in IDS[:4] for n in range(3)))
        watched.go.set()
        results(tickets)
    assert [len(call) for call in watched.calls[1:]] == [3, 3, 3, 3]


def test_the_queue_is_bounded_and_says_when_to_come_back() -> None:
    with busy(max_waiting=2) as (made, watched):
        tickets = submit(made, (IDS[0], 0, "a"), (IDS[0], 0, "b"))
        with pytest.raises(QueueFullError, match="2 captions are waiting") as full:
            made.submit(["c"], [IDS[0]], [0])
        assert 1.0 <= full.value.retry_after_s <= 60.0
        watched.go.set()
        results(tickets)
        results([made.submit(["c"], [IDS[0]], [0])])


def test_dropped_captions_are_not_scored_unless_another_wants_them() -> None:
    with busy() as (made, watched):
        alone, shared, other = submit(
            made, (IDS[0], 0, "alone"), (IDS[0], 0, "shared"), (IDS[0], 0, "shared")
        )
        made.drop(alone)
        made.drop(shared)
        assert made.waiting == 1
        watched.go.set()
        assert results([other]).valid.all()
        made.drop(other)  # too late, and harmless
    assert watched.calls[1] == [(IDS[0], 0, "shared")]
    assert made.tally.dropped == 1
    assert not alone.future.done()


def test_a_group_that_breaks_the_verifier_breaks_alone() -> None:
    with busy() as (made, watched):
        tickets = submit(made, (IDS[0], 0, truth(IDS[0])), (IDS[1], 0, "bug"), (IDS[2], 0, "crash"),
                         (IDS[3], 0, truth(IDS[3])))  # fmt: skip
        watched.go.set()
        got = results(tickets)
        again = results(submit(made, (IDS[1], 0, "bug")))
    assert got.valid.tolist() == [True, False, False, True]
    assert got.reward[[0, 3]].tolist() == [2.0, 2.0]
    assert np.isnan(got.reward[1:3]).all()
    assert got.reason[1] is not None
    assert got.reason[1].startswith("ValueError: script: expected 4 logits")
    assert got.recipe == reward().recipe.name
    assert got.picks.shape == (4, 4)
    assert watched.calls[-1] == [(IDS[1], 0, "bug")]  # a failure is not remembered
    assert not again.valid[0]


def test_an_idle_worker_waits_for_company_but_not_longer_than_told() -> None:
    watched = Watched()
    watched.go.set()
    made = Coalescer(watched, gather_s=5.0)
    tickets = []
    for n in range(6):  # each within a quarter of the gathering time of the last
        tickets += submit(made, (IDS[0], 0, f"{n}"))
        time.sleep(0.02)
    results(tickets)
    assert [len(call) for call in watched.calls] == [6]
    made.close()
    quick = Coalescer(watched, gather_s=0.0)
    assert results(submit(quick, (IDS[0], 0, "alone"))).valid.all()
    quick.close()


def test_a_complete_group_does_not_wait_at_all() -> None:
    watched = Watched()
    watched.go.set()
    made = Coalescer(watched, group_size=2, gather_s=60.0)
    ticket = made.submit(["a", "b"], [IDS[0]] * 2, [0, 0])
    assert ticket.future.result(10).valid.all()
    made.close()


def test_closing_scores_what_waits() -> None:
    watched = Watched()
    made = Coalescer(watched, group_size=4, gather_s=0.0)
    tickets = submit(made, (IDS[0], 0, "a"))
    while not watched.calls:
        time.sleep(0.001)
    tickets += submit(made, (IDS[1], 0, "a"), (IDS[2], None, "b"))
    threading.Timer(0.05, watched.go.set).start()
    assert made.close(30)
    assert results(tickets).valid.all()


def test_rows_add_up_to_their_batch() -> None:
    captions = [truth(item) for item in IDS[:3]] + ["crash", "x", "x"]
    ids = [*IDS[:3], IDS[0], IDS[0], IDS[4]]
    for recipe in ({}, {"k": 3, "layout": "candidates_first"}, {"positions": 1}):
        batch = reward(**recipe).score(captions, ids, index=[0, 1, 2, None, 4, 5])
        rows = split(batch)
        assert [row.index for row in rows] == [[i] for i in batch.index]
        joined = join(rows)
        for name in ("reward", "accuracy", "picks", "label_logprobs", "label_mass", "valid"):
            np.testing.assert_array_equal(getattr(joined, name), getattr(batch, name))
        np.testing.assert_array_equal(joined.asked, batch.asked)
        assert (joined.reason, joined.index) == (batch.reason, batch.index)
        assert joined.counts == batch.counts
        assert joined.fingerprints == batch.fingerprints
