"""The SGLang verifier against a stand-in server: waves, failures, memory, weights.

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
from lineup_fast.prompt_tokens import PromptBuilder
from lineup_fast.prompts import Recipe
from lineup_fast.verifiers import fleet
from lineup_fast.verifiers.base import BackendError, LabelTokens, TreeScores, prompt_lengths
from lineup_fast.verifiers.prefix_plan import build_forest
from lineup_fast.verifiers.sglang import SGLangVerifier
from tests.sglang_schema import schema
from tests.standin_sglang import (
    LONGEST,
    VOCABULARY,
    StandIn,
    broken,
    log_probs,
    slow,
    status,
)

LAYOUTS = ("caption_first", "candidates_first")
CAPTIONS = ["It rises.", "", "It falls from 9 to 1, then rests. " * 4, "x"]


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "FIRST_PAUSE_S", 0.01)


@pytest.fixture
def server() -> Iterator[StandIn]:
    with StandIn() as standin:
        yield standin


def _verifier(server: StandIn | list[StandIn], **words: Any) -> SGLangVerifier:
    urls = [one.url for one in server] if isinstance(server, list) else server.url
    return SGLangVerifier(urls, **{"tokenizer": ByteEncoder(), "deadline_s": 20.0, **words})


def _trees(
    layout: Any = "candidates_first", n: int = 2, captions: list[str] = CAPTIONS, k: int = 3
) -> tuple[list[Any], LabelTokens]:
    builder = PromptBuilder(ByteEncoder(), Recipe(k=k, layout=layout))
    rng = np.random.default_rng(0)
    ids = builder.caption_ids(captions)
    made = [builder.tree(rng.standard_normal((k, 5)) * 9, 1, ids) for _ in range(n)]
    return made, builder.labels


def _check(trees: list[Any], labels: LabelTokens, answers: list[TreeScores], w: str = "a") -> None:
    """Every answer is what the stand-in's function says about the whole prompt."""
    for tree, answer in zip(trees, answers, strict=True):
        for caption, position in np.argwhere(tree.questions >= 0).tolist():
            expected = log_probs(tree.prompt(caption, position), w)[labels.ids[:, 0]]
            np.testing.assert_allclose(
                answer.label_logprobs[caption, position], expected, atol=1e-6
            )
        np.testing.assert_allclose(answer.label_mass, np.exp(answer.label_logprobs).sum(2))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_standin_answers_come_back_in_place_and_prefixes_are_cached(
    server: StandIn, layout: Any
) -> None:
    trees, labels = _trees(layout, k=4)
    with _verifier(server) as verifier:
        assert verifier.n_vocabulary == VOCABULARY
        assert verifier.max_prompt_tokens == LONGEST - 1
        answers = verifier.score(trees, labels)
        again = verifier.score(trees, labels)
    _check(trees, labels, answers)
    assert all(answer.reason == [None] * len(CAPTIONS) for answer in answers)
    naive = sum(int(prompt_lengths(tree).sum()) for tree in trees)
    assert sum(answer.prompt_tokens for answer in answers) == naive
    forest = build_forest(trees)
    computed = sum(answer.prefilled_tokens for answer in answers)
    assert computed <= sum(map(len, forest.ids)) + 8 * len(forest.ids[0])
    questions = sum(answer.label_mass.size for answer in again)
    assert sum(answer.prefilled_tokens for answer in again) == questions  # the last token of each
    for body in server.bodies:
        assert set(body) <= set(schema().GenerateRequest.__struct_fields__)


def test_standin_variants_are_summed_and_padding_ignored(server: StandIn) -> None:
    (tree,), labels = _trees(n=1)
    ids = np.stack([labels.ids[:, 0], [1, 2, -1]], axis=1).astype(np.int32)
    with _verifier(server) as verifier:
        (answer,) = verifier.score([tree], LabelTokens(labels.names, ids))
    row = log_probs(tree.prompt(0, 1), "a")
    expected = [np.logaddexp(row[65], row[1]), np.logaddexp(row[66], row[2]), row[67]]
    np.testing.assert_allclose(answer.label_logprobs[0, 1], expected, rtol=1e-5)


def test_standin_replies_are_greedy(server: StandIn) -> None:
    (tree,), _ = _trees(n=1)
    with _verifier(server, tokenizer=_Letters()) as verifier:
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


def test_standin_ids_outside_the_vocabulary_never_leave(server: StandIn) -> None:
    (tree,), labels = _trees(n=1)
    with _verifier(server) as verifier:
        sent = len(server.bodies)
        tree.ids[5] = VOCABULARY
        with pytest.raises(ValueError, match=f"ids: expected 0 to {VOCABULARY - 1}"):
            verifier.score([tree], labels)
        with pytest.raises(ValueError, match="ids: expected 0 to"):
            verifier.generate([tree])
        tree.ids[5] = 5
        with pytest.raises(ValueError, match=r"labels: expected 0 to .* got 65 to 300"):
            verifier.score([tree], LabelTokens(("A", "B"), np.array([[65], [300]], np.int32)))
        assert len(server.bodies) == sent
        assert not server.dead


def test_standin_prompts_too_long_are_a_reason_and_not_sent(server: StandIn) -> None:
    trees, labels = _trees(captions=["x", "y" * LONGEST, "z"], n=1)
    with _verifier(server) as verifier:
        (answer,) = verifier.score(trees, labels)
        assert "the verifier reads 3999" in str(answer.reason[1])
        assert answer.reason[::2] == [None, None]
        assert max(len(ids) for body in server.bodies for ids in body["input_ids"]) < LONGEST
    with _verifier(server, max_prompt_tokens=10**6) as trusting:  # the server refuses it itself
        (answer,) = trusting.score(trees, labels)
        assert "status 400: too long" in str(answer.reason[1])
        assert answer.reason[::2] == [None, None]


@pytest.mark.parametrize("fault", [broken, status(503), status(429), status(500, "oops")])
def test_standin_failures_are_tried_again(server: StandIn, fault: Any) -> None:
    trees, labels = _trees()
    with _verifier(server) as verifier:
        server.faults = [fault] * 2
        answers = verifier.score(trees, labels)
    assert not server.faults
    _check(trees, labels, answers)


def test_standin_a_lasting_failure_is_a_reason_never_a_number(server: StandIn) -> None:
    trees, labels = _trees()
    with _verifier(server, retries=2) as verifier:
        server.faults = [broken] * 1000
        answers = verifier.score(trees, labels)
        spent = 1000 - len(server.faults)
        server.faults = []
        _check(trees, labels, verifier.score(trees, labels))  # and then it goes on
    for answer in answers:
        assert all("RemoteProtocolError" in str(reason) for reason in answer.reason)
        assert np.isnan(answer.label_logprobs).all()
        assert answer.prefilled_tokens == 0
    # What is lost is not asked any further: two waves of the two groups at most.
    assert spent <= 3 * 2 * 2 * len(CAPTIONS)


def test_standin_a_failure_costs_the_captions_concerned_alone(server: StandIn) -> None:
    trees, labels = _trees("caption_first", n=1)
    with _verifier(server, retries=0) as verifier:
        server.faults = [status(503)]
        (answer,) = verifier.score(trees, labels)
    assert sum(reason is not None for reason in answer.reason) == 1
    lost = next(n for n, reason in enumerate(answer.reason) if reason)
    assert "status 503: fault 503" in str(answer.reason[lost])
    kept = [n for n in range(len(CAPTIONS)) if n != lost]
    assert np.isfinite(answer.label_logprobs[kept]).all()


@pytest.mark.parametrize("code", [401, 404])
def test_standin_what_is_refused_as_a_whole_is_not_asked_again(server: StandIn, code: int) -> None:
    (tree,), labels = _trees("caption_first", n=1, captions=["x"])
    with _verifier(server) as verifier:
        server.faults = [status(code)] * 100
        (answer,) = verifier.score([tree], labels)
    assert f"status {code}" in str(answer.reason[0])
    assert 100 - len(server.faults) == 2  # the leaders of its two units


def test_standin_a_reply_of_something_else_is_a_reason(server: StandIn) -> None:
    (tree,), labels = _trees(n=1, captions=["x"])
    with _verifier(server) as verifier:
        for body in ({"choices": []}, "<html>", [{"meta_info": {}}]):
            server.faults = [status(200, body)] * 10
            (answer,) = verifier.score([tree], labels)
            assert "expected" in str(answer.reason[0])
            server.faults = []


def test_standin_a_log_probability_that_is_no_number_is_a_reason(server: StandIn) -> None:
    (tree,), labels = _trees(n=1)
    with _verifier(server) as verifier:
        server.null_ids = {65}
        (answer,) = verifier.score([tree], labels)
    assert answer.reason == ["non-finite logits"] * len(CAPTIONS)


def test_standin_the_deadline_holds(server: StandIn) -> None:
    trees, labels = _trees("caption_first", n=1)
    with _verifier(server, deadline_s=0.6) as verifier:
        server.faults = [slow(3.0)]
        start = time.monotonic()
        (answer,) = verifier.score(trees, labels)
        assert time.monotonic() - start < 2.0
        assert sum(reason == "no answer within 0.6 s" for reason in answer.reason) == 1
        server.faults = [broken] * 1000
        start = time.monotonic()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fleet, "FIRST_PAUSE_S", 5.0)
            (answer,) = verifier.score(trees, labels)
        assert time.monotonic() - start < 2.0
        assert all(reason == "no answer within 0.6 s" for reason in answer.reason)


def test_standin_replicas_share_the_work_and_stand_in_for_each_other() -> None:
    trees, labels = _trees("candidates_first", n=6)
    with StandIn() as first, StandIn() as second, _verifier([first, second]) as verifier:
        canaries = [len(first.bodies), len(second.bodies)]
        answers = verifier.score(trees, labels)
        _check(trees, labels, answers)
        shares = [len(first.bodies) - canaries[0], len(second.bodies) - canaries[1]]
        assert min(shares) > sum(shares) / 4
        # A group stays where its leader is: little is computed twice.
        forest = build_forest(trees)
        computed = sum(answer.prefilled_tokens for answer in answers)
        assert computed < sum(map(len, forest.ids)) + 13 * len(forest.ids[0])
        second.dead = True
        _check(trees, labels, verifier.score(trees, labels))


def test_standin_replicas_have_to_hold_one_model() -> None:
    with StandIn() as first, StandIn(weights="b") as second:
        with pytest.raises(ValueError, match="urls: expected servers of one model"):
            _verifier([first, second])
        with _verifier(first) as one, _verifier(second) as other, _verifier(first) as same:
            assert one.fingerprint() == same.fingerprint() != other.fingerprint()


def test_standin_no_server_is_said_at_once() -> None:
    with pytest.raises(BackendError, match="ConnectError"):
        SGLangVerifier("http://127.0.0.1:9", tokenizer=ByteEncoder(), retries=1)
    for urls in ([], "localhost:30000"):
        with pytest.raises(ValueError, match="urls: expected addresses"):
            SGLangVerifier(urls)
    with pytest.raises(ValueError, match="urls: expected addresses or an engine"):
        SGLangVerifier()
    for words in ({"deadline_s": 0.0}, {"retries": -1}):
        with pytest.raises(ValueError, match=f"{next(iter(words))}: expected"):
            SGLangVerifier("http://x", **words)  # type: ignore[arg-type]


def test_standin_gets_the_key(server: StandIn) -> None:
    with _verifier(server, api_key="secret"):
        assert {one["Authorization"] for one in server.headers} == {"Bearer secret"}


def test_standin_memory_is_given_back_and_the_canary_asked(server: StandIn) -> None:
    trees, labels = _trees()
    with _verifier(server) as verifier:
        before = verifier.fingerprint()
        verifier.sleep()
        with pytest.raises(BackendError, match="asleep"):
            verifier.score(trees, labels)
        verifier.wake()
        _check(trees, labels, verifier.score(trees, labels))
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
    trees, labels = _trees()
    with _verifier(server) as verifier:
        prints = [verifier.fingerprint()]
        verifier.update_weights("/models/step-2")
        prints.append(verifier.fingerprint())
        _check(trees, labels, verifier.score(trees, labels), "/models/step-2")
        verifier.update_weights("/models/step-2", version="other")
        prints.append(verifier.fingerprint())
        with pytest.raises(BackendError, match="no such folder"):
            verifier.update_weights("/models/missing")
        assert prints == [*dict.fromkeys(prints)]


def test_standin_commands_wait_for_questions_under_way(server: StandIn) -> None:
    trees, labels = _trees(n=1)
    with _verifier(server) as verifier:
        server.faults = [slow(0.4)]
        answers: list[Any] = []
        thread = threading.Thread(target=lambda: answers.extend(verifier.score(trees, labels)))
        thread.start()
        while server.faults:
            time.sleep(0.01)
        verifier.update_weights("/models/new")
        thread.join()
    _check(trees, labels, answers)  # all of them by the old weights


def test_standin_threads_share_a_verifier(server: StandIn) -> None:
    trees, labels = _trees(n=1)
    with _verifier(server, connections=3) as verifier:
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
        _check(trees, labels, answers)


def test_standin_a_small_pool_is_filled_unit_by_unit() -> None:
    trees, labels = _trees(n=4)
    with StandIn(pool=1000) as server, _verifier(server) as verifier:
        _check(trees, labels, verifier.score(trees, labels))
        answers = verifier.score([], labels)
        assert answers == []


def _score_in_child(verifier: SGLangVerifier, trees: list[Any], labels: Any, pipe: Any) -> None:
    pipe.send(verifier.score(trees, labels))
    verifier.close()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_standin_a_forked_child_connects_on_its_own(server: StandIn) -> None:
    trees, labels = _trees(n=1)
    with _verifier(server) as verifier:
        verifier.score(trees, labels)
        ours, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("fork")
        child = context.Process(target=_score_in_child, args=(verifier, trees, labels, theirs))
        child.start()
        assert ours.poll(30)
        _check(trees, labels, ours.recv())
        child.join()
        _check(trees, labels, verifier.score(trees, labels))
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

    def release_memory_occupation(self) -> None:
        self.calls.append(-1)


def test_standin_engine_of_this_process_gets_whole_waves() -> None:
    trees, labels = _trees(n=4)
    engine = _Engine()
    with SGLangVerifier(engine=engine, tokenizer=ByteEncoder()) as verifier:
        engine.calls.clear()
        _check(trees, labels, verifier.score(trees, labels))
        assert sum(engine.calls) == 4 * 3 * len(CAPTIONS)
        assert len(engine.calls) <= 8  # far fewer than parcels: what waits goes together
        engine.fail = RuntimeError("out of memory")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fleet, "LONGEST_PAUSE_S", 0.01)
            (answer,) = verifier.score(trees[:1], labels)
        assert answer.reason[0] == "engine: RuntimeError: out of memory"
        engine.fail = None
        _check(trees, labels, verifier.score(trees, labels))
        verifier.sleep()
        assert engine.calls[-1] == -1
