"""The SGLang verifier against a stand-in server that fails in every way."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from lineup_fast.encoders import ByteEncoder
from lineup_fast.verifiers import fleet
from lineup_fast.verifiers.base import BackendError, LabelTokens
from lineup_fast.verifiers.sglang import SGLangVerifier
from tests.sglang_questions import CAPTIONS, check_answers, connect, questions
from tests.standin_sglang import (
    LONGEST,
    VOCABULARY,
    StandIn,
    broken,
    slow,
    status,
)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "FIRST_PAUSE_S", 0.01)


@pytest.fixture
def server() -> Iterator[StandIn]:
    with StandIn() as standin:
        yield standin


def test_standin_ids_outside_the_vocabulary_never_leave(server: StandIn) -> None:
    (tree,), labels = questions(n=1)
    with connect(server) as verifier:
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
    trees, labels = questions(captions=["x", "y" * LONGEST, "z"], n=1)
    with connect(server) as verifier:
        (answer,) = verifier.score(trees, labels)
        assert "the verifier reads 3999" in str(answer.reason[1])
        assert answer.reason[::2] == [None, None]
        assert max(len(ids) for body in server.bodies for ids in body["input_ids"]) < LONGEST
    with connect(server, max_prompt_tokens=10**6) as trusting:  # the server refuses it itself
        (answer,) = trusting.score(trees, labels)
        assert "status 400: too long" in str(answer.reason[1])
        assert answer.reason[::2] == [None, None]


@pytest.mark.parametrize("fault", [broken, status(503), status(429), status(500, "oops")])
def test_standin_failures_are_tried_again(server: StandIn, fault: Any) -> None:
    trees, labels = questions()
    with connect(server) as verifier:
        server.faults = [fault] * 2
        answers = verifier.score(trees, labels)
    assert not server.faults
    check_answers(trees, labels, answers)


def test_standin_a_lasting_failure_is_a_reason_never_a_number(server: StandIn) -> None:
    trees, labels = questions()
    with connect(server, retries=2) as verifier:
        server.faults = [broken] * 1000
        answers = verifier.score(trees, labels)
        spent = 1000 - len(server.faults)
        server.faults = []
        check_answers(trees, labels, verifier.score(trees, labels))  # and then it goes on
    for answer in answers:
        assert all("RemoteProtocolError" in str(reason) for reason in answer.reason)
        assert np.isnan(answer.label_logprobs).all()
        assert answer.prefilled_tokens == 0
    # What is lost is not asked any further: two waves of the two groups at most.
    assert spent <= 3 * 2 * 2 * len(CAPTIONS)


def test_standin_a_failure_costs_the_captions_concerned_alone(server: StandIn) -> None:
    trees, labels = questions("caption_first", n=1)
    with connect(server, retries=0) as verifier:
        server.faults = [status(503)]
        (answer,) = verifier.score(trees, labels)
    assert sum(reason is not None for reason in answer.reason) == 1
    lost = next(n for n, reason in enumerate(answer.reason) if reason)
    assert "status 503: fault 503" in str(answer.reason[lost])
    kept = [n for n in range(len(CAPTIONS)) if n != lost]
    assert np.isfinite(answer.label_logprobs[kept]).all()


@pytest.mark.parametrize("code", [401, 404])
def test_standin_what_is_refused_as_a_whole_is_not_asked_again(server: StandIn, code: int) -> None:
    (tree,), labels = questions("caption_first", n=1, captions=["x"])
    with connect(server) as verifier:
        server.faults = [status(code)] * 100
        (answer,) = verifier.score([tree], labels)
    assert f"status {code}" in str(answer.reason[0])
    assert 100 - len(server.faults) == 2  # the leaders of its two units


def test_standin_a_reply_of_something_else_is_a_reason(server: StandIn) -> None:
    (tree,), labels = questions(n=1, captions=["x"])
    with connect(server) as verifier:
        for body in ({"choices": []}, "<html>", [{"meta_info": {}}]):
            server.faults = [status(200, body)] * 10
            (answer,) = verifier.score([tree], labels)
            assert "expected" in str(answer.reason[0])
            server.faults = []


def test_standin_a_log_probability_that_is_no_number_is_a_reason(server: StandIn) -> None:
    (tree,), labels = questions(n=1)
    with connect(server) as verifier:
        server.null_ids = {65}
        (answer,) = verifier.score([tree], labels)
    assert answer.reason == ["non-finite logits"] * len(CAPTIONS)


def test_standin_the_deadline_holds(server: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    trees, labels = questions("caption_first", n=1)
    late = "no answer within 3 s"
    with connect(server) as verifier:
        verifier.deadline_s = 3.0
        server.faults = [slow(60.0)]
        start = time.monotonic()
        (answer,) = verifier.score(trees, labels)
        assert time.monotonic() - start < 20.0
        assert late in answer.reason
        assert set(answer.reason) <= {late, None}
        server.faults = [broken] * 1000
        monkeypatch.setattr(fleet, "FIRST_PAUSE_S", 60.0)
        monkeypatch.setattr(fleet, "LONGEST_PAUSE_S", 60.0)
        start = time.monotonic()
        (answer,) = verifier.score(trees, labels)
        assert time.monotonic() - start < 20.0
        assert answer.reason == [late] * len(CAPTIONS)


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
