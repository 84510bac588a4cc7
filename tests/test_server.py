"""The reward over HTTP: what is answered, what is refused, and that nothing becomes a 0."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from lineup_fast import server
from lineup_fast.draw_counter import DrawCounter
from lineup_fast.openrlhf_contract import label_of
from tests.scripted_server import GATE, corpus, reward, serving, truth

IDS = corpus().ids()[:6]
HTTP = httpx.Client(verify=False, trust_env=False, timeout=60)


@pytest.fixture(scope="module", autouse=True)
def _closed_in_the_end() -> Iterator[None]:
    yield
    HTTP.close()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(counter=DrawCounter(2), group_size=2) as (url, _):
        yield url


def post(url: str, path: str = "/score", **body: Any) -> httpx.Response:
    return HTTP.post(url + path, json=body)


def metric(url: str, name: str) -> float:
    found = re.search(rf"^{re.escape(name)} (\S+)$", HTTP.get(url + "/metrics").text, re.MULTILINE)
    assert found, name
    return float(found[1])


def test_answers_are_those_of_the_reward(url: str) -> None:
    captions = [truth(item) for item in IDS] + ["nothing"]
    ids = [*IDS, IDS[0]]
    for words in ({"index": 3}, {"index": [3, 1, 4, 1, 5, 9, 2]}, {"fixed": True}):
        answer = post(url, captions=captions, ids=ids, **words)
        assert answer.status_code == 200
        got = answer.json()
        index: Any = words.get("index")
        want = reward().score(captions, ids, index=index)
        assert got["reward"] == want.reward.tolist()
        assert got["accuracy"] == want.accuracy.tolist()
        assert got["picks"] == want.picks.tolist()
        np.testing.assert_array_equal(np.float32(got["label_logprobs"]), want.label_logprobs)
        np.testing.assert_array_equal(np.float32(got["label_mass"]), want.label_mass)
        assert got["valid"] == [True] * 7
        assert got["reason"] == [None] * 7
        assert got["index"] == want.index
        assert got["recipe"] == want.recipe
        assert got["fingerprints"] == want.fingerprints
        for name in ("captions", "questions", "invalid", "ties"):
            assert got["counts"][name] == want.counts[name]


def test_draws_are_counted_per_item_and_retries_are_not(url: str) -> None:
    def ask(request: str | None = None) -> int:
        ids = {"request_ids": [request]} if request else {}
        index: int = post(url, captions=["x"], ids=[IDS[0]], **ids).json()["index"][0]
        return index

    assert [ask(), ask("r1"), ask("r1"), ask(), ask("r1"), ask(), ask()] == [0, 0, 0, 1, 0, 1, 2]
    many = post(url, captions=["a", "b", "c"], ids=[IDS[1]] * 3).json()
    assert many["index"] == [0, 0, 1]
    want = reward().score(["a", "b", "c"], [IDS[1]] * 3, index=[0, 0, 1])
    assert many["reward"] == want.reward.tolist()


def test_a_failure_is_null_with_its_reason_and_harms_no_other(url: str) -> None:
    captions = [truth(IDS[0]), "crash", "bug", truth(IDS[3])]
    got = post(url, captions=captions, ids=IDS[:4], index=0).json()
    assert got["valid"] == [True, False, False, True]
    assert got["reward"][1:3] == got["accuracy"][1:3] == [None, None]
    assert got["reward"][0] == got["reward"][3] == 2.0
    assert got["reason"][1] == "RuntimeError: engine: connection lost"
    assert got["reason"][2].startswith("ValueError: script: expected 4 logits")
    assert got["label_mass"][1] == [None] * 4
    assert got["counts"]["invalid"] == 2


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"", "body: expected a JSON object"),
        (b"\xff\xfe", "body: expected a JSON object"),
        (b"[1]", "body: expected a JSON object, got a list"),
        (b"[" * 200_000, "body: expected a JSON object, got maximum recursion"),
        (b'{"captions": ["a"], "ids": ["b"], "index": NaN}', "got NaN, which JSON does not have"),
        (b'{"captions": ["a"], "ids": ["b"], "index": true}', "index: expected an integer, got t"),
        (b'{"captions": ["a"], "ids": ["b"], "index": 1.0}', "index: expected an integer, got a n"),
        (b'{"captions": ["a"], "ids": ["b"], "index": -1}', "index: expected 0 to"),
        (b'{"captions": ["a"], "ids": ["b"], "index": 9223372036854775808}', "index: expected 0"),
        (b'{"captions": ["a"], "ids": ["b"], "index": [1, 2]}', "index: expected one per caption"),
        (b'{"captions": ["a"], "ids": ["b"], "fixed": 1}', "fixed: expected true or false, got an"),
        (b'{"captions": ["a"], "ids": ["b"], "fixed": true, "index": 1}', "index: expected null"),
        (b'{"captions": "a", "ids": ["b"]}', "captions: expected a list of strings, got a string"),
        (b'{"captions": [5], "ids": ["b"]}', "captions: expected strings, got an integer at 0"),
        (b'{"captions": [], "ids": []}', "captions: expected at least one, got none"),
        (b'{"captions": ["a"]}', "ids: expected a list of strings, got null"),
        (b'{"captions": ["a"], "ids": ["b", "c"]}', "ids: expected one per caption (1), got 2"),
        (b'{"captions": ["a"], "ids": ["b"]}', "ids: expected items of the corpus, got 1 unknown"),
        (b'{"captions": ["a"], "ids": ["b"], "request_ids": [""]}', "request_ids: expected 1 to"),
        (b'{"captions": ["a"], "ids": ["b"], "indx": 3}', "indx: expected one of captions, ids"),
    ],
)
def test_bad_input_is_400_and_says_what_was_expected(url: str, body: bytes, error: str) -> None:
    answer = HTTP.post(f"{url}/score", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert answer.json().keys() == {"error"}
    assert error in answer.json()["error"]


def test_other_paths_methods_and_types_are_refused(url: str) -> None:
    assert HTTP.get(f"{url}/nothing").status_code == 404
    assert HTTP.get(f"{url}/score").status_code == 405
    assert HTTP.get(f"{url}/score").headers["allow"] == "POST"
    form = HTTP.post(f"{url}/score", data={"captions": "a"})
    assert (form.status_code, form.json()["error"]) == (
        400,
        "content-type: expected application/json",
    )
    with socket.create_connection((httpx.URL(url).host, httpx.URL(url).port or 80)) as raw:
        raw.sendall(b"\0\1 nonsense\r\n\r\n")
        assert raw.recv(100).startswith(b"HTTP/1.1 400")
    assert HTTP.get(f"{url}/health").status_code == 200


def test_any_text_is_a_caption(url: str) -> None:
    captions = ["", " ", '"""\nAnswer: B', "\0", "\ud800", "<|im_end|>", "🙂" * 50, "a" * 3000]
    body = json.dumps({"captions": captions, "ids": [IDS[0]] * 8, "index": 1})
    got = HTTP.post(f"{url}/score", content=body, headers={"content-type": "application/json"})
    assert got.json()["valid"] == [True] * 8


def test_without_a_counter_the_index_is_asked_for() -> None:
    with serving() as (url, _):
        answer = post(url, captions=["x"], ids=[IDS[0]])
        assert answer.status_code == 400
        assert "index: expected the draw of each caption" in answer.json()["error"]


def test_a_token_is_asked_for_everywhere_but_at_health() -> None:
    with serving(token="open sesame") as (url, _):
        ask = {"captions": ["x"], "ids": [IDS[0]], "index": 0}
        for given in (None, "open", "open sesamé", "Open sesame"):
            headers = {} if given is None else {"authorization": f"Bearer {given}".encode()}
            answer = HTTP.post(f"{url}/score", json=ask, headers=headers)
            assert answer.status_code == 401
            assert "sesame" not in answer.text
        assert HTTP.get(f"{url}/metrics").status_code == 401
        assert HTTP.get(f"{url}/health").status_code == 200
        good = {"authorization": "Bearer open sesame"}
        assert HTTP.post(f"{url}/score", json=ask, headers=good).status_code == 200
        assert HTTP.get(f"{url}/metrics", headers=good).status_code == 200


def test_nobody_else_gets_in_without_a_token() -> None:
    for host in ("0.0.0.0", "::", "10.1.2.3", "example.org"):
        with pytest.raises(ValueError, match="host: expected a loopback address where there is no"):
            server.check_exposure(host, None)
        server.check_exposure(host, "token")
    for host in ("127.0.0.1", "127.8.8.8", "::1", "localhost"):
        server.check_exposure(host, None)
    with pytest.raises(ValueError, match="token: expected some characters"), serving(token=" "):
        pass


def test_large_bodies_are_refused_declared_or_not() -> None:
    with serving(limits=server.Limits(body_bytes=1000)) as (url, _):
        headers = {"content-type": "application/json"}
        for size in (1001, 3000, 300_000):
            answer = HTTP.post(f"{url}/score", content=b" " * size, headers=headers)
            assert answer.status_code == 413
            assert answer.json()["error"] == f"body: expected at most 1000 bytes, got {size}"
        chunks = (b" " * 500 for _ in range(4))
        assert HTTP.post(f"{url}/score", content=chunks, headers=headers).status_code == 413
        exact = json.dumps({"captions": ["x"], "ids": [IDS[0]], "index": 0}).ljust(1000).encode()
        assert HTTP.post(f"{url}/score", content=exact, headers=headers).status_code == 200


def _in_background(call: Any, *arguments: Any, **words: Any) -> tuple[threading.Thread, list[Any]]:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(call(*arguments, **words)))
    thread.start()
    return thread, results


def _until(condition: Any, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def _busy(url: str, app: server.RewardApp) -> threading.Thread:
    """A server whose verifier works on a caption until GATE opens."""
    GATE.clear()
    thread, _ = _in_background(post, url, captions=["wait"], ids=[IDS[0]], index=0)
    _until(lambda: app.coalescer.tally.captions == 1 and app.coalescer.waiting == 0)
    return thread


def test_a_full_queue_is_429_and_its_draws_are_not_counted() -> None:
    with serving(counter=DrawCounter(1), group_size=1, max_waiting=3) as (url, app):
        slow = _busy(url, app)
        queued, _ = _in_background(post, url, captions=["a", "b"], ids=[IDS[0]] * 2, index=0)
        _until(lambda: app.coalescer.waiting == 2)
        refused = post(url, captions=["c", "d"], ids=[IDS[1]] * 2)
        assert refused.status_code == 429
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert refused.json()["error"].startswith("queue: 2 captions are waiting")
        too_many = post(url, captions=["x"] * 4, ids=[IDS[0]] * 4, index=0)
        assert too_many.status_code == 400  # would never fit
        GATE.set()
        slow.join()
        queued.join()
        assert post(url, captions=["c"], ids=[IDS[1]]).json()["index"] == [0]
        assert metric(url, 'lineup_requests_total{path="/score",status="429"}') == 1


def test_the_deadline_is_504_and_what_has_not_begun_is_dropped() -> None:
    limits = server.Limits(deadline_s=0.5)
    with serving(counter=DrawCounter(1), limits=limits, group_size=1) as (url, app):
        first = _busy(url, app)
        late = post(url, captions=["x", "y"], ids=[IDS[1]] * 2)
        assert late.status_code == 504
        assert late.json()["error"] == "deadline: no answer within 0.5 s"
        assert app.coalescer.waiting == 0
        assert metric(url, "lineup_captions_dropped_total") == 2
        first.join()
        assert metric(url, 'lineup_requests_total{path="/score",status="504"}') == 2
        GATE.set()
        _until(lambda: app.coalescer.tally.batches == 1)
        assert app.coalescer.tally.scored == 1  # x and y never reached the verifier
        # The retry costs nothing and the draws that came to nothing are given again.
        again = post(url, captions=["wait"], ids=[IDS[0]], index=0).json()
        assert again["counts"]["prefilled_tokens"] == 0
        assert post(url, captions=["y", "x"], ids=[IDS[1]] * 2).json()["index"] == [0, 1]


def test_a_client_that_leaves_leaves_no_work() -> None:
    with serving(counter=DrawCounter(1), group_size=1) as (url, app):
        slow = _busy(url, app)
        with pytest.raises(httpx.ReadTimeout):
            HTTP.post(f"{url}/score", json={"captions": ["x"], "ids": [IDS[1]]}, timeout=0.2)
        _until(lambda: app.coalescer.tally.dropped == 1)
        GATE.set()
        slow.join()
        assert app.coalescer.tally.scored == 1
        assert post(url, captions=["x"], ids=[IDS[1]]).json()["index"] == [0]


def test_health_answers_while_the_verifier_is_busy() -> None:
    with serving() as (url, app):
        slow = _busy(url, app)
        seconds = []
        for _ in range(20):
            start = time.perf_counter()
            assert HTTP.get(f"{url}/health").json()["status"] == "ok"
            seconds.append(time.perf_counter() - start)
        assert slow.is_alive()
        GATE.set()
        slow.join()
        assert float(np.median(seconds)) < 0.1


def test_draining_finishes_what_was_accepted_and_refuses_the_rest() -> None:
    with serving() as (url, app):
        GATE.clear()
        thread, answers = _in_background(post, url, captions=["wait"], ids=[IDS[0]], index=0)
        _until(lambda: app.traffic.active == 1)
        app.traffic.draining = True
        refused = post(url, captions=["x"], ids=[IDS[0]], index=0)
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "1"
        assert HTTP.get(f"{url}/health").status_code == 503
        GATE.set()
        thread.join()
        assert answers[0].json()["valid"] == [True]


def test_metrics_add_up(url: str) -> None:
    before = {
        name: metric(url, f"lineup_{name}_total")
        for name in ("captions", "captions_scored", "captions_remembered", "prompt_tokens")
    }
    ask = {"captions": ["one", "two", "one"], "ids": [IDS[5]] * 3, "index": 77}
    counts = [post(url, **ask).json()["counts"] for _ in range(2)]
    grown = {name: metric(url, f"lineup_{name}_total") - old for name, old in before.items()}
    assert grown["captions"] == 6
    assert grown["captions_scored"] == 2  # the second "one" is the first, the second call a retry
    assert grown["captions_remembered"] == 3
    assert grown["prompt_tokens"] == counts[0]["prompt_tokens"]
    assert counts[1]["prompt_tokens"] == counts[1]["prefilled_tokens"] == 0
    text = HTTP.get(f"{url}/metrics").text
    assert f'recipe="{reward().recipe.name}"' in text
    for line in text.splitlines():
        assert re.fullmatch(r"# (HELP|TYPE) \w+ .+|\w+(\{.*\})? -?\d+(\.\d+)?(e-?\d+)?", line), line


def test_the_openrlhf_contract(url: str) -> None:
    prompt = "<|im_start|>user\n<|image_pad|>Describe.<|im_end|>\n<|im_start|>assistant\n"
    expanded = prompt.replace("<|image_pad|>", "<|image_pad|>" * 231)

    def ask(*captions: str, index: int | None = None, item: str = IDS[2]) -> Any:
        return post(
            url,
            "/get_reward",
            query=[f"{expanded}{caption}<|im_end|>" for caption in captions],
            prompts=[prompt] * len(captions),
            labels=[label_of(item, index)] * len(captions),
        )

    one = ask(truth(IDS[2]), index=4).json()
    assert (one["rewards"], one["scores"]) == (2.0, 1.0)
    assert one["extra_logs"] == {"lineup_acc": 1.0, "lineup_failed": 0, "lineup_index": 4}
    two = ask(truth(IDS[2]), "vague", index=4).json()
    want = reward().score([truth(IDS[2]), "vague"], [IDS[2]] * 2, index=4)
    assert two["rewards"] == want.reward.tolist()
    assert two["extra_logs"]["lineup_index"] == [4, 4]
    failed = ask("crash", index=4).json()
    assert failed["rewards"] is failed["scores"] is None
    assert failed["extra_logs"] == {"lineup_failed": 1, "lineup_index": 4}
    assert failed["reason"] == ["RuntimeError: engine: connection lost"]
    assert ask().json() == {"rewards": [], "scores": [], "extra_logs": {}}
    assert [ask("x", item=IDS[4]).json()["extra_logs"]["lineup_index"] for _ in range(3)] == [
        0,
        0,
        1,
    ]
    assert ask("x", item="nobody").status_code == 400
