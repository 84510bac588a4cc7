"""The SGLang verifier against a stand-in server: waves, replicas, memory, weights.

What a real SGLang server does is tested in tests/engine (make test-engines).
"""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from lineup_fast.encoders import ByteEncoder
from lineup_fast.verifiers import fleet
from lineup_fast.verifiers.base import BackendError, LabelTokens, TreeScores, prompt_lengths
from lineup_fast.verifiers.prefix_plan import build_forest
from lineup_fast.verifiers.sglang import SGLangVerifier
from tests.sglang_questions import CAPTIONS, check_answers, connect, questions
from tests.sglang_schema import schema
from tests.standin_sglang import (
    LONGEST,
    VOCABULARY,
    StandIn,
    log_probs,
    slow,
)

LAYOUTS = ("caption_first", "candidates_first")


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "FIRST_PAUSE_S", 0.01)


@pytest.fixture
def server() -> Iterator[StandIn]:
    with StandIn() as standin:
        yield standin


@pytest.mark.parametrize("layout", LAYOUTS)
def test_standin_answers_come_back_in_place_and_prefixes_are_cached(
    server: StandIn, layout: Any
) -> None:
    trees, labels = questions(layout, k=4)
    with connect(server) as verifier:
        assert verifier.n_vocabulary == VOCABULARY
        assert verifier.max_prompt_tokens == LONGEST - 1
        answers = verifier.score(trees, labels)
        again = verifier.score(trees, labels)
    check_answers(trees, labels, answers)
    assert all(answer.reason == [None] * len(CAPTIONS) for answer in answers)
    naive = sum(int(prompt_lengths(tree).sum()) for tree in trees)
    assert sum(answer.prompt_tokens for answer in answers) == naive
    forest = build_forest(trees)
    computed = sum(answer.prefilled_tokens for answer in answers)
    assert computed <= sum(map(len, forest.ids)) + 8 * len(forest.ids[0])
    n_questions = sum(answer.label_mass.size for answer in again)
    assert sum(answer.prefilled_tokens for answer in again) == n_questions  # the last token of each
    for body in server.bodies:
        assert set(body) <= set(schema().GenerateRequest.__struct_fields__)


def test_standin_variants_are_summed_and_padding_ignored(server: StandIn) -> None:
    (tree,), labels = questions(n=1)
    ids = np.stack([labels.ids[:, 0], [1, 2, -1]], axis=1).astype(np.int32)
    with connect(server) as verifier:
        (answer,) = verifier.score([tree], LabelTokens(labels.names, ids))
    row = log_probs(tree.prompt(0, 1), "a")
    expected = [np.logaddexp(row[65], row[1]), np.logaddexp(row[66], row[2]), row[67]]
    np.testing.assert_allclose(answer.label_logprobs[0, 1], expected, rtol=1e-5)


def test_standin_replies_are_greedy(server: StandIn) -> None:
    (tree,), _ = questions(n=1)
    with connect(server, tokenizer=_Letters()) as verifier:
        (replies,) = verifier.generate([tree], max_new_tokens=3)
    ids = tree.prompt(1, 2).tolist()
    expected: list[int] = []
    for _ in range(3):
        expected.append(int(log_probs([*ids, *expected], "a").argmax()))
    assert replies.texts[1][2] == str(expected)
    assert replies.prefilled_tokens < replies.prompt_tokens


class _Letters(ByteEncoder):
    def decode(self, ids: Any) -> str:
        return str(list(ids))


def test_standin_replicas_share_the_work_and_stand_in_for_each_other() -> None:
    trees, labels = questions("candidates_first", n=6)
    with StandIn() as first, StandIn() as second, connect([first, second]) as verifier:
        canaries = [len(first.bodies), len(second.bodies)]
        answers = verifier.score(trees, labels)
        check_answers(trees, labels, answers)
        shares = [len(first.bodies) - canaries[0], len(second.bodies) - canaries[1]]
        assert min(shares) > sum(shares) / 4
        # A group stays where its leader is: little is computed twice.
        forest = build_forest(trees)
        computed = sum(answer.prefilled_tokens for answer in answers)
        assert computed < sum(map(len, forest.ids)) + 13 * len(forest.ids[0])
        second.dead = True
        check_answers(trees, labels, verifier.score(trees, labels))


def test_standin_replicas_have_to_hold_one_model() -> None:
    with StandIn() as first, StandIn(weights="b") as second:
        with pytest.raises(ValueError, match="urls: expected servers of one model"):
            connect([first, second])
        with connect(first) as one, connect(second) as other, connect(first) as same:
            assert one.fingerprint() == same.fingerprint() != other.fingerprint()


def test_standin_gets_the_key(server: StandIn) -> None:
    with connect(server, api_key="secret"):
        assert {one["Authorization"] for one in server.headers} == {"Bearer secret"}


def test_standin_memory_is_given_back_and_the_canary_asked(server: StandIn) -> None:
    trees, labels = questions()
    with connect(server) as verifier:
        before = verifier.fingerprint()
        verifier.sleep()
        with pytest.raises(BackendError, match="asleep"):
            verifier.score(trees, labels)
        verifier.wake()
        check_answers(trees, labels, verifier.score(trees, labels))
        assert verifier.fingerprint() == before
        assert [name for name, _ in server.commands] == [
            "/release_memory_occupation",
            "/resume_memory_occupation",
        ]
        verifier.sleep()
        server.weights = "garbage"
        with pytest.raises(BackendError, match="the weights are not what they were"):
            verifier.wake()
        assert verifier.asleep


def test_standin_weights_are_updated_and_the_fingerprint_follows(server: StandIn) -> None:
    trees, labels = questions()
    with connect(server) as verifier:
        prints = [verifier.fingerprint()]
        verifier.update_weights("/models/step-2")
        prints.append(verifier.fingerprint())
        check_answers(trees, labels, verifier.score(trees, labels), "/models/step-2")
        verifier.update_weights("/models/step-2", version="other")
        prints.append(verifier.fingerprint())
        with pytest.raises(BackendError, match="no such folder"):
            verifier.update_weights("/models/missing")
        assert prints == [*dict.fromkeys(prints)]


def test_standin_commands_wait_for_questions_under_way(server: StandIn) -> None:
    trees, labels = questions(n=1)
    with connect(server) as verifier:
        server.faults = [slow(0.4)]
        answers: list[Any] = []
        thread = threading.Thread(target=lambda: answers.extend(verifier.score(trees, labels)))
        thread.start()
        while server.faults:
            time.sleep(0.01)
        verifier.update_weights("/models/new")
        thread.join()
    check_answers(trees, labels, answers)  # all of them by the old weights


def test_standin_threads_share_a_verifier(server: StandIn) -> None:
    trees, labels = questions(n=1)
    with connect(server, connections=3) as verifier:
        found: dict[int, list[TreeScores]] = {}

        def ask(number: int) -> None:
            found[number] = verifier.score(trees, labels)

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(found) == 8
    for answers in found.values():
        check_answers(trees, labels, answers)


def test_standin_a_small_pool_is_filled_unit_by_unit() -> None:
    trees, labels = questions(n=4)
    with StandIn(pool=1000) as server, connect(server) as verifier:
        check_answers(trees, labels, verifier.score(trees, labels))
        answers = verifier.score([], labels)
        assert answers == []


def _score_in_child(verifier: SGLangVerifier, trees: list[Any], labels: Any, pipe: Any) -> None:
    pipe.send(verifier.score(trees, labels))
    verifier.close()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_standin_a_forked_child_connects_on_its_own(server: StandIn) -> None:
    trees, labels = questions(n=1)
    with connect(server) as verifier:
        verifier.score(trees, labels)
        ours, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("fork")
        child = context.Process(target=_score_in_child, args=(verifier, trees, labels, theirs))
        child.start()
        assert ours.poll(30)
        check_answers(trees, labels, ours.recv())
        child.join()
        check_answers(trees, labels, verifier.score(trees, labels))
        ours.close()
        theirs.close()


class _Engine:
    """A stand-in for ``sglang.Engine``: blocking, one call at a time, no batch of lists."""

    def __init__(self) -> None:
        self.server = StandIn.__new__(StandIn)
        self.calls: list[int] = []
        self.fail: Exception | None = None
        self._busy = threading.Lock()

    def get_model_info(self) -> dict[str, Any]:
        return {"model_path": "/models/a", "weight_version": "default"}

    def get_server_info(self) -> dict[str, Any]:
        return {"max_total_num_tokens": 100_000, "max_req_input_len": LONGEST}

    def generate(self, *, input_ids: list[list[int]], **options: Any) -> list[dict[str, Any]]:
        assert self._busy.acquire(blocking=False), "two calls at once"
        try:
            self.calls.append(len(input_ids))
            if self.fail is not None:
                raise self.fail
            wanted = options.get("token_ids_logprob", [])
            if any(token >= VOCABULARY for token in wanted):
                raise ValueError(f"valid range is [0, {VOCABULARY}).")
            steps = options["sampling_params"]["max_new_tokens"]
            self.server.weights, self.server.null_ids = "a", set()
            return [self.server._reply(ids, 0, wanted, steps) for ids in input_ids]
        finally:
            self._busy.release()

    def update_weights_from_disk(
        self, model_path: str, load_format: str | None = None
    ) -> tuple[bool, str, int]:
        return "missing" not in model_path, f"read {model_path}", 0

    def release_memory_occupation(self) -> None:
        self.calls.append(-1)


def test_standin_engine_of_this_process_gets_whole_waves() -> None:
    trees, labels = questions(n=4)
    engine = _Engine()
    with SGLangVerifier(engine=engine, tokenizer=ByteEncoder()) as verifier:
        engine.calls.clear()
        check_answers(trees, labels, verifier.score(trees, labels))
        assert sum(engine.calls) == 4 * 3 * len(CAPTIONS)
        assert len(engine.calls) <= 8  # far fewer than parcels: what waits goes together
        engine.fail = RuntimeError("out of memory")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fleet, "LONGEST_PAUSE_S", 0.01)
            (answer,) = verifier.score(trees[:1], labels)
        assert answer.reason[0] == "engine: RuntimeError: out of memory"
        engine.fail = None
        check_answers(trees, labels, verifier.score(trees, labels))
        before = verifier.fingerprint()
        verifier.update_weights("/models/a", version="2")
        assert verifier.fingerprint() != before
        with pytest.raises(BackendError, match="read /models/missing"):
            verifier.update_weights("/models/missing")
        verifier.sleep()
        assert engine.calls[-1] == -1
