"""The client: the same words in process and over HTTP, and what it makes of failures."""

from __future__ import annotations

import asyncio
import multiprocessing
import pickle
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lineup_fast import reward_calls
from lineup_fast.client import RewardClient
from lineup_fast.draw_counter import DrawCounter
from lineup_fast.rewards import RewardBatch
from lineup_fast.verifiers.base import BackendError
from tests.scripted_server import corpus, reward, serving, started, truth
from tests.stub_server import Reply, answering, bad, good

IDS = corpus().ids()[:6]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(counter=DrawCounter(2), group_size=2, gather_s=0.001) as (url, _):
        yield url


@pytest.fixture(autouse=True)
def _no_long_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reward_calls, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(reward_calls, "JITTER_S", 0.01)
    monkeypatch.delenv("LINEUP_TOKEN", raising=False)


def equal(one: RewardBatch, other: RewardBatch) -> None:
    for name in ("reward", "accuracy", "picks", "label_logprobs", "label_mass", "valid", "asked"):
        mine, theirs = getattr(one, name), getattr(other, name)
        assert mine.dtype == theirs.dtype
        np.testing.assert_array_equal(mine, theirs, err_msg=name)
    assert (one.reason, one.index) == (other.reason, other.index)
    assert (one.recipe, one.fingerprints) == (other.recipe, other.fingerprints)


@pytest.mark.parametrize("recipe", [{}, {"k": 2}, {"scoring": "soft"}, {"positions": 1}])
def test_in_process_and_over_http_say_the_same(recipe: dict[str, Any]) -> None:
    captions = [*(truth(item) for item in IDS), "", "crash", "1e8"]
    ids = [*IDS, *IDS[:3]]
    scored = reward(**recipe)
    with serving(scored) as (url, _), RewardClient(url) as there:
        here = RewardClient(scored)
        for words in ({"index": 5}, {"index": np.arange(9)}, {"fixed": True}):
            equal(here.score(captions, ids, **words), there.score(captions, ids, **words))
            equal(
                asyncio.run(here.ascore(captions, ids, **words)),
                asyncio.run(there.ascore(captions, ids, **words)),
            )
        equal(here.score([], [], index=1), here.score([], [], fixed=True))
        assert there.score([], []).reward.shape == (0,)


def test_both_count_draws_where_none_are_given() -> None:
    with serving(counter=DrawCounter(2), group_size=2) as (url, _), RewardClient(url) as there:
        for client in (there, RewardClient(reward(), group_size=2)):
            got = client.score(["a", "b", "c"], [IDS[0]] * 3)
            assert got.index == [0, 0, 1]
            assert client.score(["d"], [IDS[0]], request_ids=["r"]).index == [1]
            assert client.score(["d"], [IDS[0]], request_ids=["r"]).index == [1]
            assert client.score(["d"], [IDS[0]]).index == [2]
    with pytest.raises(ValueError, match="index: expected the draw of each caption"):
        RewardClient(reward()).score(["a"], [IDS[0]])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"captions": "a"}, "expected sequences of strings, got a string"),
        ({"captions": [1]}, "captions: expected strings"),
        ({"captions": ["a", "b"]}, r"ids: expected one per caption \(2\), got 1"),
        ({"ids": ["nobody"]}, "ids: expected items of the corpus, got 1 unknown"),
        ({"index": True}, "index: expected integers, got True"),
        ({"index": 1.5}, "index: expected integers, got 1.5"),
        ({"index": [1, 2]}, "index: expected one per caption"),
        ({"index": 1, "fixed": True}, "index: expected None with fixed"),
        ({"request_ids": []}, "request_ids: expected one per caption"),
    ],
)
def test_bad_input_raises_at_once(url: str, words: dict[str, Any], message: str) -> None:
    call = {"captions": ["a"], "ids": [IDS[0]], **words}
    if "fixed" not in words and "index" not in words:
        call["index"] = 0
    with RewardClient(url) as there:
        for client in (there, RewardClient(reward())):
            with pytest.raises(ValueError, match=message):
                client.score(**call)


def test_bad_settings_are_refused() -> None:
    for words, message in (
        ({"reward": []}, "at least one URL"),
        ({"reward": "localhost:8900"}, "http:// URLs, got 'localhost:8900'"),
        ({"reward": [5]}, "http:// URLs, got 5"),
        ({"reward": "http://x", "on_failure": "zero"}, "on_failure: expected invalid or raise"),
        ({"reward": "http://x", "deadline_s": 0}, "deadline_s: expected more than 0"),
        ({"reward": "http://x", "retries": -1}, "retries: expected 0 or more"),
        ({"reward": "http://x", "group_size": 2}, "group_size: expected None with a server"),
    ):
        with pytest.raises(ValueError, match=message):
            RewardClient(**words)  # type: ignore[arg-type]


def test_failures_are_tried_again_with_the_same_request_ids() -> None:
    def answer(number: int, body: dict[str, Any]) -> Reply:
        replies = [bad(500), bad(503), bad(504), (200, {}, b"<html>"), (200, {}, b'{"valid": []}')]
        return replies[number] if number < len(replies) else good(body)

    with answering(answer) as (url, seen), RewardClient(url) as client:
        batch = client.score([truth(IDS[0]), "x"], IDS[:2])
    assert batch.reward[0] == 2.0
    assert len(seen) == 6
    requests = [body["request_ids"] for _, body, _ in seen]
    assert requests == [requests[0]] * 6
    assert len(set(requests[0])) == 2


def test_after_the_retries_there_is_a_reason_and_never_a_number() -> None:
    with answering(lambda *_: bad(500, "out of order")) as (url, seen):
        with RewardClient(url, retries=2) as client:
            batch = client.score(["a", "b"], IDS[:2], index=[3, 4])
        assert batch.valid.tolist() == [False, False]
        assert np.isnan(batch.reward).all()
        assert np.isnan(batch.accuracy).all()
        assert batch.reason == [f"{url}: 500: out of order (3 tries)"] * 2
        assert batch.index == [3, 4]
        assert batch.counts["invalid"] == 2
        assert len(seen) == 3
        with RewardClient(url, retries=0, on_failure="raise") as client:
            with pytest.raises(BackendError, match=r"500: out of order \(1 tries\)"):
                client.score(["a"], IDS[:1], index=0)
            with pytest.raises(BackendError, match="out of order"):
                asyncio.run(client.ascore(["a"], IDS[:1], index=0))


def test_no_server_at_all() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    with RewardClient(url, retries=1) as client:
        batch = client.score(["a"], IDS[:1], index=0)
        assert batch.reason[0] is not None
        assert batch.reason[0].startswith(f"{url}: ConnectError: ")
        with pytest.raises(BackendError, match="ConnectError"):
            client.health()


def test_a_busy_server_is_asked_again_when_it_says_and_costs_no_retry() -> None:
    def answer(number: int, body: dict[str, Any]) -> Reply:
        return bad(429, "full", retry_after="0.3") if number < 4 else good(body)

    with answering(answer) as (url, seen), RewardClient(url, retries=0) as client:
        assert client.score(["a"], IDS[:1], index=0).valid.all()
    pauses = np.diff([at for at, _, _ in seen])
    assert len(pauses) == 4
    assert (pauses >= 0.29).all()


def test_the_deadline_ends_it() -> None:
    released = threading.Event()

    def answer(number: int, body: dict[str, Any]) -> Reply:
        released.wait(20)
        return good(body)

    for reply in (answer, lambda *_: bad(429, retry_after="1")):
        with answering(reply) as (url, _), RewardClient(url, deadline_s=0.4) as client:
            start = time.monotonic()
            batch = client.score(["a"], IDS[:1], index=0)
            assert time.monotonic() - start < 5.0
            assert not batch.valid[0]
            assert batch.reason[0] is not None
            assert "deadline of 0.4 s" in batch.reason[0]
            released.set()


def test_what_the_server_refuses_is_an_error_of_the_caller() -> None:
    for status, match in (
        (400, "captions: expected fewer"),
        (413, "captions: expected fewer"),
        (404, "captions: expected fewer"),
        (401, "token: http://.* refuses it"),
    ):
        reply = bad(status, "captions: expected fewer")
        with answering(lambda *_, reply=reply: reply) as (url, seen):  # type: ignore[misc]
            with RewardClient(url) as client, pytest.raises(ValueError, match=match):
                client.score(["a"], IDS[:1], index=0)
            assert len(seen) == 1


def test_the_token_comes_from_the_argument_or_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with serving(token="secret") as (url, _):
        with RewardClient(url, token="secret\n") as client:
            assert client.score(["a"], IDS[:1], index=0).valid.all()
        with RewardClient(url) as client, pytest.raises(ValueError, match="token"):
            client.score(["a"], IDS[:1], index=0)
        monkeypatch.setenv("LINEUP_TOKEN", "secret")
        with RewardClient(url) as client:
            assert client.score(["a"], IDS[:1], index=0).valid.all()


def test_another_server_takes_over() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        dead = f"http://127.0.0.1:{free.getsockname()[1]}"
    with (
        answering(lambda *_: bad(500)) as (ill, refused),
        answering(lambda _, body: good(body)) as (well, answered),
        RewardClient([dead, ill, well], retries=2) as client,
    ):
        for _ in range(3):
            assert client.score(["a"], IDS[:1], index=0).valid.all()
        with pytest.raises(ValueError, match="with several servers, which would each count"):
            client.score(["a"], IDS[:1])
        assert client.score(["a"], IDS[:1], fixed=True).valid.all()
    assert len(answered) == 4
    assert len(refused) <= 2


def test_calls_go_to_the_least_busy_server() -> None:
    both = threading.Barrier(2, timeout=20)  # each answers only when the other one is asked too

    def answer(number: int, body: dict[str, Any]) -> Reply:
        both.wait()
        return good(body)

    with (
        answering(answer) as (one, asked_one),
        answering(answer) as (two, asked_two),
        RewardClient([one, two]) as client,
        ThreadPoolExecutor(2) as pool,
    ):
        calls = [pool.submit(client.score, ["a"], IDS[:1], index=0) for _ in range(2)]
        assert all(call.result().valid.all() for call in calls)
    assert len(asked_one) == len(asked_two) == 1


def test_rewards_of_different_recipes_are_never_mixed() -> None:
    def answer(number: int, body: dict[str, Any]) -> Reply:
        return good(body) if number == 0 else good(body, recipe="k9")

    with answering(answer) as (url, _), RewardClient(url) as client:
        client.score(["a"], IDS[:1], index=0)
        with pytest.raises(ValueError, match=r"from every server and at all times, got .*k9"):
            client.score(["a"], IDS[:1], index=0)


@pytest.mark.parametrize(
    "changes",
    [
        {"reward": [None]},
        {"reward": ["2.0"]},
        {"reward": [2.0, 2.0]},
        {"valid": [True, True]},
        {"picks": [0]},
        {"picks": None},
        {"reason": []},
        {"label_mass": [[0.5]]},
        {"counts": []},
        {"index": [True]},
    ],
)
def test_a_reply_of_another_form_is_a_failure(changes: dict[str, Any]) -> None:
    with (
        answering(lambda _, body: good(body, **changes)) as (url, _),
        RewardClient(url, retries=0) as client,
    ):
        batch = client.score([truth(IDS[0])], IDS[:1], index=0)
    assert not batch.valid[0]
    assert np.isnan(batch.reward[0])


def test_from_threads_and_from_inside_event_loops(url: str) -> None:
    def one(number: int) -> float:
        return float(client.score([truth(IDS[number % 6])], [IDS[number % 6]], index=1).reward[0])

    async def many() -> list[float]:
        # The blocking form inside a running loop, and many of the other form at once.
        inside = client.score([truth(IDS[0])], [IDS[0]], index=1)
        batches = await asyncio.gather(
            *(client.ascore([truth(item)], [item], index=1) for item in IDS)
        )
        return [float(batch.reward[0]) for batch in [inside, *batches]]

    with RewardClient(url) as client, ThreadPoolExecutor(8) as pool:
        assert list(pool.map(one, range(24))) == [2.0] * 24
        for _ in range(3):  # an event loop each, as some hosts make them
            assert asyncio.run(many()) == [2.0] * 7
        client.close()
        assert one(0) == 2.0  # opened anew


def test_a_call_that_is_given_up_is_given_up_at_the_server_too() -> None:
    async def give_up(client: RewardClient) -> None:
        call = asyncio.create_task(client.ascore(["sleep 0.5", "x"], IDS[:2], index=0))
        await asyncio.sleep(0.2)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    with serving(max_batch=1) as (url, app), RewardClient(url) as client:
        asyncio.run(give_up(client))
        end = time.monotonic() + 20
        while app.coalescer.tally.dropped == 0:
            assert time.monotonic() < end
            time.sleep(0.01)


def _ask(client: RewardClient) -> float:
    item = corpus().ids()[0]
    value = float(client.score([truth(item)], [item], index=1).reward[0])
    client.close()
    return value


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_after_a_fork_and_through_a_pickle(url: str) -> None:
    with RewardClient(url) as client:
        assert client.score([truth(IDS[0])], [IDS[0]], index=1).reward[0] == 2.0
        again = pickle.loads(pickle.dumps(client))
        assert _ask(again) == 2.0
        with multiprocessing.get_context("fork").Pool(2) as pool:
            assert pool.map(_ask, [client] * 4, chunksize=1) == [2.0] * 4
        child = multiprocessing.get_context("fork").Process(target=_ask, args=(client,))
        child.start()  # here the client is inherited, connections and all
        child.join(30)
        assert child.exitcode == 0
        assert client.score([truth(IDS[0])], [IDS[0]], index=1).reward[0] == 2.0


def test_a_restart_is_ridden_out_and_no_draw_is_counted_twice(tmp_path: Path) -> None:
    counter = tmp_path / "draws.jsonl"
    with ExitStack() as stack:
        child, url = stack.enter_context(started(str(counter)))
        client = stack.enter_context(RewardClient(url, retries=1000))
        pool = stack.enter_context(ThreadPoolExecutor(1))
        assert client.score(["a", "b", "c"], [IDS[0]] * 3).index == [0, 0, 1]
        # Counted, being scored, and then the server dies.
        call = pool.submit(client.score, ["sleep 2"], [IDS[0]], request_ids=["r1"])
        end = time.monotonic() + 30
        while '"r1"' not in counter.read_text():
            assert time.monotonic() < end
        child.kill()
        child.wait()
        assert not call.done()
        stack.enter_context(started(str(counter), url.rsplit(":", 1)[1]))
        batch = call.result(60)
        assert batch.valid.all()
        assert batch.index == [1]
        assert client.score(["d", "e"], [IDS[0]] * 2).index == [2, 2]
