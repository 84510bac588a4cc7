"""The reward server in front of a real SGLang server: single captions cost what a batch costs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lineup_fast.draw_counter import DrawCounter
from lineup_fast.prompts import Recipe
from lineup_fast.rewards import IdentificationReward
from lineup_fast.verifiers.engine_process import EngineProcess
from lineup_fast.verifiers.sglang import SGLangVerifier
from tests.reward_callers import Call, ask_at_once
from tests.scripted_server import corpus, serving

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]

G = 8


def test_single_captions_of_8_processes_prefill_what_one_batch_does(
    tiny_server: EngineProcess, tmp_path: Path
) -> None:
    ids = corpus().ids()[:32]
    captions = {item: [f"{n} first, then it rises" for n in range(G)] for item in ids}
    flat = [(caption, item) for item in ids for caption in captions[item]]
    plan = [
        [Call(caption, item) for item in ids[4 * p : 4 * p + 4] for caption in captions[item]]
        for p in range(8)
    ]
    with SGLangVerifier(tiny_server.url) as verifier:
        recipe = Recipe(layout="candidates_first", decimals=0)
        scored = IdentificationReward(corpus(), verifier, recipe)
        verifier._command("flush_cache")
        batched = scored.score([text for text, _ in flat], [item for _, item in flat], index=0)
        verifier._command("flush_cache")
        with serving(scored, DrawCounter(G), group_size=G) as (url, app):
            outputs, _ = ask_at_once([url], plan, tmp_path)
            tally = app.coalescer.tally
    answers = [answer for output in outputs for answer in output["answers"]]
    assert [answer["reason"] for answer in answers] == [None] * 256
    np.testing.assert_allclose([answer["reward"] for answer in answers], batched.reward)
    more = tally.prefilled_tokens / batched.counts["prefilled_tokens"]
    print(
        f"256 single captions of 8 processes: {more:.2f} x the tokens that one batched call "
        f"computes, in {tally.batches} calls of the verifier"
    )
    assert tally.prompt_tokens == batched.counts["prompt_tokens"]
    assert more <= 1.1
