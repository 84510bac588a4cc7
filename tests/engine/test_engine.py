"""The SGLang verifier against real SGLang servers on this machine's CPU.

The HTTP server, the scheduler and the radix tree are the ones of production; attention is torch's
own. So this shows hits and exactness, and nothing about SGLang's speed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lineup_fast import kernels
from lineup_fast.encoders import ByteEncoder
from lineup_fast.prompt_tokens import PromptBuilder, ragged
from lineup_fast.prompts import Recipe
from lineup_fast.verifiers.base import LabelTokens, TreeScores, prompt_lengths
from lineup_fast.verifiers.engine_process import EngineProcess
from lineup_fast.verifiers.prefix_plan import build_forest
from lineup_fast.verifiers.replicas import HttpReplica
from lineup_fast.verifiers.sglang import SGLangVerifier
from lineup_fast.verifiers.sglang_wire import Reply
from lineup_fast.verifiers.transformers import TransformersVerifier
from lineup_fast.verifiers.waves import plan
from tests.engine.conftest import CONTEXT, HERE, POOL, SHIM, TINY, engine_python
from tests.engine.sides import EXACT, LAYOUTS, ROUNDING, Side, cached_at_once, replies_of, same

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def llama(llama_server: EngineProcess, llamas: list[Path]) -> Iterator[Side]:
    """The random model, which reads bytes."""
    folder, reader = str(llamas[0]), ByteEncoder()
    with SGLangVerifier(llama_server.url, tokenizer=reader, deadline_s=300) as engine:
        both = [TransformersVerifier(folder, reader, shared=x) for x in (True, False)]
        yield Side("random Llama", llama_server, engine, *both, 12)


@pytest.fixture(scope="module")
def tiny(tiny_server: EngineProcess) -> Iterator[Side]:
    """The tiny verifier, its tokenizer read from where the server says."""
    with SGLangVerifier(tiny_server.url, deadline_s=300) as engine:
        both = [TransformersVerifier(str(TINY), shared=x) for x in (True, False)]
        yield Side("tiny verifier", tiny_server, engine, *both, 24)


@pytest.fixture(params=["llama", "tiny"])
def side(request: pytest.FixtureRequest) -> Side:
    """Each model in turn."""
    found: Side = request.getfixturevalue(request.param)
    return found


def test_what_the_server_says_about_itself(side: Side) -> None:
    assert side.engine.max_prompt_tokens == CONTEXT - 7
    assert side.engine.n_vocabulary == side.oracle.n_vocabulary
    assert side.engine._fleet._replicas[0].pool_tokens == POOL
    with SGLangVerifier(side.process.url, tokenizer=side.engine.encoder) as again:
        assert again.fingerprint() == side.engine.fingerprint()


def test_two_models_differ(llama: Side, tiny: Side) -> None:
    assert llama.engine.fingerprint() != tiny.engine.fingerprint()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_answers_equal_those_of_transformers_and_prefixes_hit(side: Side, layout: Any) -> None:
    trees, labels = side.questions(layout)
    naive = sum(int(prompt_lengths(tree).sum()) for tree in trees)
    side.flush()
    answers = side.engine.score(trees, labels)
    gap = same(answers, side.oracle.score(trees, labels))
    shared = same(answers, side.shared.score(trees, labels))
    ideal = naive - sum(map(len, build_forest(trees).ids))
    cached = naive - sum(answer.prefilled_tokens for answer in answers)
    at_once = cached_at_once(side, trees, labels)
    print(
        f"{side.name}, {layout}, B 4 G 8 K 4: {naive} tokens, repeated {ideal / naive:.1%}; "
        f"cached with leaders first {cached / naive:.1%}, all at once {at_once / naive:.1%}; "
        f"largest gap of log-probabilities to transformers {gap:.1e}, to its shared path "
        f"{shared:.1e} (CPU: hits and exactness, not speed)"
    )
    assert gap <= EXACT
    assert shared <= ROUNDING
    assert cached >= 0.8 * ideal
    assert at_once < cached


@pytest.mark.parametrize("layout", LAYOUTS)
def test_after_its_leader_every_follower_finds_its_whole_prefix(llama: Side, layout: Any) -> None:
    # Pieces that begin with ids of their own, so that prompts share exactly what the tree shares.
    rng = np.random.default_rng(1)

    def pieces(n: int, first: int, size: int) -> Any:
        rows = [[first + row, *rng.integers(0, 200, size - 1)] for row in range(n)]
        return ragged([np.array(row, dtype=np.int32) for row in rows])

    blocks, captions = pieces(4, 200, 40), pieces(5, 210, 17)
    labels = np.zeros(0, dtype=np.int32), np.zeros(5, dtype=np.int64)
    tree = kernels.prompt_tree(
        layout, [250, 251, 252], [253], [254, 255], labels, blocks, [], captions
    )
    forest = build_forest([tree])
    llama.flush()
    order = plan(forest)
    replies = replies_of(llama, forest, order, LabelTokens(("A",), np.array([[1]], dtype=np.int32)))
    followers = 0
    for unit in order.units:
        for wave in unit.waves[1:]:
            for prompt in wave:
                assert prompt.cached > 0
                assert replies[prompt.node].cached == prompt.cached
                followers += 1
    assert followers >= 14
    assert sum(reply.tokens - reply.cached for reply in replies.values()) <= len(tree.ids) + 5 * 3


def test_replies_equal_those_of_transformers(tiny: Side) -> None:
    (tree,), _ = tiny.questions("candidates_first", groups=1)
    (replies,) = tiny.engine.generate([tree])
    (oracle,) = tiny.oracle.generate([tree])
    assert replies.texts == oracle.texts
    assert replies.reason == [None] * 8


def test_ids_outside_the_vocabulary_are_refused_before_they_are_sent(llama: Side) -> None:
    (tree,), labels = llama.questions("caption_first", groups=1)
    pid = llama.process.pid
    tree.ids[7] = llama.engine.n_vocabulary
    with pytest.raises(ValueError, match=f"got 10 to {llama.engine.n_vocabulary}"):
        llama.engine.score([tree], labels)
    assert llama.process.healthy()
    assert llama.process.pid == pid is not None


def test_the_longest_prompt_is_read_and_a_longer_one_refused(llama: Side) -> None:
    limit = llama.engine.max_prompt_tokens
    assert limit is not None
    builder = PromptBuilder(ByteEncoder(), Recipe(k=2))

    def score(engine: SGLangVerifier, size: int) -> TreeScores:
        fixed = builder.tree(np.ones((2, 1)), 0, builder.caption_ids(["x"]))
        more = "y" * (size - int(prompt_lengths(fixed).max()) + 1)
        tree = builder.tree(np.ones((2, 1)), 0, builder.caption_ids(["x", more]))
        assert prompt_lengths(tree).max() == size
        return engine.score([tree], builder.labels)[0]

    assert score(llama.engine, limit).reason == [None, None]
    with SGLangVerifier(
        llama.process.url, tokenizer=ByteEncoder(), max_prompt_tokens=10**6
    ) as trusting:
        answer = score(trusting, limit + 1)
    assert answer.reason[0] is None
    assert "status 400" in str(answer.reason[1])
    assert np.isfinite(answer.label_logprobs[0]).all()


def test_evicted_prefixes_change_the_speed_and_not_the_rewards(tiny: Side) -> None:
    trees, labels = tiny.questions("candidates_first")
    tiny.flush()
    cold = tiny.engine.score(trees, labels)
    warm = tiny.engine.score(trees, labels)
    other = np.random.default_rng(0).integers(100, 1000, (POOL // 1500 + 1, 1500))
    strange = [
        kernels.PromptTree(
            row.astype(np.int32), np.array([0, 1500]), np.array([-1]), np.array([[0]])
        )
        for row in other
    ]
    tiny.engine.score(strange, labels)
    evicted = tiny.engine.score(trees, labels)
    spent = [sum(answer.prefilled_tokens for answer in run) for run in (cold, warm, evicted)]
    print(f"tokens computed cold, warm, after eviction: {spent}")
    assert spent[1] < 0.1 * spent[0] < spent[2]
    for run in (warm, evicted):
        assert same(run, cold) <= EXACT


def test_weights_are_updated_from_disk(llama: Side, llamas: list[Path]) -> None:
    trees, labels = llama.questions("candidates_first", groups=1)
    before = llama.engine.fingerprint()
    try:
        llama.engine.update_weights(llamas[1])
        assert llama.engine.fingerprint() != before
        oracle = TransformersVerifier(str(llamas[1]), ByteEncoder(), shared=False)
        assert same(llama.engine.score(trees, labels), oracle.score(trees, labels)) <= EXACT
    finally:
        llama.engine.update_weights(llamas[0], version="default")
    assert llama.engine.fingerprint() == before
    assert same(llama.engine.score(trees, labels), llama.oracle.score(trees, labels)) <= EXACT


def test_an_engine_of_the_same_process_answers_alike(llama: Side, llamas: list[Path]) -> None:
    # SGLang cannot share an environment with a current transformers: a process of its own.
    root = HERE.parents[1]
    result = subprocess.run(
        [engine_python(), str(HERE / "in_process.py"), str(llamas[0])],
        env=os.environ | SHIM | {
            "PYTHONPATH": os.pathsep.join([SHIM["PYTHONPATH"], str(root)]),
            "LINEUP_IMPL": "reference",
        },
        capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-3000:]
    lines = [line for line in result.stdout.splitlines() if line.startswith("ANSWERS ")]
    found = np.array(lines[-1].split()[1:], dtype=float).reshape(-1, 8, 4, 4)
    trees, labels = llama.questions("candidates_first", groups=2)
    expected = np.stack([answer.label_logprobs for answer in llama.oracle.score(trees, labels)])
    assert np.abs(found - expected).max() <= EXACT
    share = float(next(x for x in result.stdout.splitlines() if x.startswith("CACHED")).split()[1])
    print(f"sglang.Engine in process: {share:.1%} of the tokens cached")
    naive = sum(int(prompt_lengths(tree).sum()) for tree in trees)
    ideal = naive - sum(map(len, build_forest(trees).ids))
    assert share >= 0.8 * ideal / naive


def test_a_server_killed_in_the_middle_is_survived(
    llama: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Last: it restarts the server."""
    trees, labels = llama.questions("caption_first", groups=12)
    replies = threading.Semaphore(0)
    generate = HttpReplica.generate

    async def counted(self: HttpReplica, *words: Any) -> list[Reply]:
        answer = await generate(self, *words)
        replies.release()
        return answer

    monkeypatch.setattr(HttpReplica, "generate", counted)
    llama.flush()
    deadline = 30.0
    with SGLangVerifier(
        llama.process.url, tokenizer=ByteEncoder(), deadline_s=deadline, retries=3, connections=4
    ) as engine:
        while replies.acquire(blocking=False):
            pass
        answers: list[TreeScores] = []
        thread = threading.Thread(target=lambda: answers.extend(engine.score(trees, labels)))
        start = time.monotonic()
        thread.start()
        for _ in range(8):
            assert replies.acquire(timeout=60)
        assert llama.process.pid is not None
        os.killpg(llama.process.pid, signal.SIGKILL)
        thread.join(deadline + 10)
        assert not thread.is_alive()
        reasons = [reason for answer in answers for reason in answer.reason]
        lost = [reason for reason in reasons if reason is not None]
        print(
            f"killed: {len(lost)} of {len(reasons)} captions invalid after "
            f"{time.monotonic() - start:.1f} s, such as {lost[0]!r}"
        )
        assert lost
        oracle = llama.oracle.score(trees, labels)
        for answer, right in zip(answers, oracle, strict=True):
            for caption, reason in enumerate(answer.reason):
                if reason is None:
                    gap = answer.label_logprobs[caption] - right.label_logprobs[caption]
                    assert np.abs(gap).max() <= EXACT
                else:
                    assert np.isnan(answer.label_logprobs[caption]).any()
        llama.process.stop()
        llama.process.start()
        # A new server, on a box that may be busy, within the same deadline: a few questions.
        assert same(engine.score(trees[:2], labels), oracle[:2]) <= EXACT
