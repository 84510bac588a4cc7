"""The vLLM verifier against real vLLM servers on this machine's CPU (make test-vllm).

What it shows is that answers are exact and that prefixes are found; nothing about vLLM's speed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lineup_fast import kernels
from lineup_fast.encoders import ByteEncoder
from lineup_fast.prompt_tokens import PromptBuilder
from lineup_fast.prompts import Recipe
from lineup_fast.verifiers.base import BackendError, prompt_lengths
from lineup_fast.verifiers.engine_process import EngineProcess
from lineup_fast.verifiers.prefix_plan import build_forest
from lineup_fast.verifiers.transformers import TransformersVerifier
from lineup_fast.verifiers.vllm import VLLMVerifier
from tests.engine.conftest import CONTEXT, TINY
from tests.engine.sides import EXACT, LAYOUTS, ROUNDING, Side, cached_at_once, same
from tests.toy_models import model

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1200)]

BLOCK = 32  # tokens that vLLM caches or does not cache together; no fewer on a CPU
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_SERVER_DEV_MODE": "1",
}
ARGUMENTS = [
    "--dtype", "float32", "--max-model-len", str(CONTEXT), "--max-num-seqs", "32",
    "--enable-prefix-caching", "--block-size", str(BLOCK), "--enforce-eager",
    "--enable-prompt-tokens-details",
]  # fmt: skip


def _server(folder: Path, *arguments: str) -> EngineProcess:
    python = os.environ.get("LINEUP_VLLM_PYTHON", "")
    if not Path(python).is_file():
        pytest.fail(f"LINEUP_VLLM_PYTHON: expected make test-vllm to set it, got {python!r}")
    process = EngineProcess(folder, python=python, environment=ENVIRONMENT)
    process.command = [
        python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder),
        "--host", "127.0.0.1", "--port", str(process.port), *ARGUMENTS, *arguments,
    ]  # fmt: skip
    return process


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Side]:
    """A random model, which reads bytes; its heads are as wide as vLLM's least on a CPU."""
    folder, reader = tmp_path_factory.mktemp("llama"), ByteEncoder()
    model("llama", 300, head_dim=32).save_pretrained(folder)
    both = [TransformersVerifier(str(folder), reader, shared=x) for x in (True, False)]
    with (
        _server(folder, "--skip-tokenizer-init") as server,
        VLLMVerifier(server.url, tokenizer=reader, deadline_s=300) as engine,
    ):
        yield Side("random Llama", server, engine, *both, 12)


@pytest.fixture(scope="module")
def tiny() -> Iterator[Side]:
    """The tiny verifier, its tokenizer read from where the server says."""
    both = [TransformersVerifier(str(TINY), shared=x) for x in (True, False)]
    with _server(TINY) as server, VLLMVerifier(server.url, deadline_s=300) as engine:
        yield Side("tiny verifier", server, engine, *both, 24)


@pytest.fixture(params=["llama", "tiny"])
def side(request: pytest.FixtureRequest) -> Side:
    """Each model in turn."""
    found: Side = request.getfixturevalue(request.param)
    return found


def test_what_the_server_says_about_itself(side: Side) -> None:
    assert side.engine.max_prompt_tokens == CONTEXT - 1
    assert side.engine.n_vocabulary == side.oracle.n_vocabulary
    with VLLMVerifier(side.process.url, tokenizer=side.engine.encoder) as again:
        assert again.fingerprint() == side.engine.fingerprint()
        with pytest.raises(BackendError, match="release_memory_occupation"):
            again.sleep()


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
        f"cached in blocks of {BLOCK}, leaders first {cached / naive:.1%}, all at once "
        f"{at_once / naive:.1%}; largest gap of log-probabilities to transformers {gap:.1e}, to "
        f"its shared path {shared:.1e} (CPU: hits and exactness, not speed)"
    )
    assert gap <= EXACT
    assert shared <= ROUNDING
    # A prefix that ends inside a block is computed again from the beginning of that block.
    lost = BLOCK * sum((tree.questions >= 0).sum() for tree in trees)
    assert cached >= max(ideal - lost, 0.5 * ideal) > 0
    again = side.engine.score(trees, labels)
    assert same(again, answers) <= EXACT
    computed = sum(answer.prefilled_tokens for answer in again)
    assert computed <= lost


def test_replies_equal_those_of_transformers(tiny: Side) -> None:
    (tree,), _ = tiny.questions("candidates_first", groups=1)
    (replies,) = tiny.engine.generate([tree])
    (oracle,) = tiny.oracle.generate([tree])
    assert replies.texts == oracle.texts
    assert replies.reason == [None] * 8


def test_ids_outside_the_vocabulary_are_refused_before_they_are_sent(side: Side) -> None:
    (tree,), labels = side.questions("caption_first", groups=1)
    size = side.engine.n_vocabulary
    strange = _lone([5, 6, size])
    with pytest.raises(ValueError, match=f"got 5 to {size}"):
        side.engine.score([strange, tree], labels)
    # vLLM's own table of embeddings is longer than the vocabulary: where it has no tokenizer to
    # compare with, it answers from the rows behind the end.
    with VLLMVerifier(
        side.process.url, tokenizer=side.engine.encoder, n_vocabulary=size + 1, retries=0
    ) as trusting:
        bad, good = trusting.score([strange, tree], labels)
    assert good.reason == [None] * 8
    assert (bad.reason == [None]) == (side.name == "random Llama")
    assert side.process.healthy()


def _lone(ids: list[int]) -> kernels.PromptTree:
    """One prompt."""
    return kernels.PromptTree(
        np.array(ids, dtype=np.int32), np.array([0, len(ids)]), np.array([-1]), np.array([[0]])
    )


def test_the_longest_prompt_is_read_and_a_longer_one_refused(llama: Side) -> None:
    limit = llama.engine.max_prompt_tokens
    assert limit is not None
    builder = PromptBuilder(ByteEncoder(), Recipe(k=2))
    fixed = builder.tree(np.ones((2, 1)), 0, builder.caption_ids(["x"]))
    room = limit - int(prompt_lengths(fixed).max()) + 1
    for more, engine_limit in ((0, None), (1, 10**6)):
        captions = builder.caption_ids(["x", "y" * (room + more)])
        tree = builder.tree(np.ones((2, 1)), 0, captions)
        assert prompt_lengths(tree).max() == limit + more
        with VLLMVerifier(
            llama.process.url, tokenizer=ByteEncoder(), max_prompt_tokens=engine_limit
        ) as engine:
            (answer,) = engine.score([tree], builder.labels)
        assert answer.reason[0] is None
        if more:
            assert "status 400" in str(answer.reason[1])
        else:
            assert answer.reason[1] is None
