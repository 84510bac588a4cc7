"""The reward server in front of a real SGLang: single captions of many processes, and the child.

What is counted are tokens that SGLang computed; its speed on a CPU says nothing.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from lineup_fast.client import RewardClient
from lineup_fast.corpus import Corpus, build
from lineup_fast.draw_counter import DrawCounter
from lineup_fast.prompts import Recipe
from lineup_fast.readers import Channel
from lineup_fast.rewards import IdentificationReward
from lineup_fast.verifiers.engine_process import EngineProcess
from lineup_fast.verifiers.sglang import SGLangVerifier
from tests.engine.conftest import ARGUMENTS, SHIM, TINY, engine_python
from tests.reward_callers import Call, ask_at_once
from tests.scripted_server import serving
from trainer.tiny import captions, series

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]
T, G, PROCESSES = 12, 8, 8


def made_corpus() -> Corpus:
    """Made-up series of whole numbers 0 to 100, as the tiny verifier reads them."""
    values = series.generate(800, T, np.random.default_rng(0))
    channels = [Channel(source=f"s{n}", values=values[n::4].ravel()) for n in range(4)]
    return build(channels, lengths=[T], stride=T, seed=0, test_sources=["s0"])


def test_single_captions_of_8_processes_are_computed_as_one_batch_is(
    tiny_server: EngineProcess, tmp_path: Path
) -> None:
    corpus = made_corpus()
    rng = np.random.default_rng(1)
    asks = [
        (captions.full(corpus.series(item), rng, noise=2.0), item)
        for item in corpus.ids("train")[:32]
        for _ in range(G)
    ]
    calls = [Call(caption, item) for caption, item in asks]
    share = len(calls) // PROCESSES
    plan = [calls[at : at + share] for at in range(0, len(calls), share)]
    with SGLangVerifier(tiny_server.url, deadline_s=600) as verifier:
        scored = IdentificationReward(
            corpus, verifier, Recipe(layout="candidates_first", decimals=0)
        )
        _forget_prefixes(tiny_server)
        batched = scored.score(*zip(*asks, strict=True), index=0)
        _forget_prefixes(tiny_server)
        with serving(scored, DrawCounter(G), group_size=G) as (url, app):
            outputs, _ = ask_at_once([url], plan, tmp_path)
            tally = app.coalescer.tally
    answers = [answer for output in outputs for answer in output["answers"]]
    assert [answer["reason"] for answer in answers] == [None] * 256
    assert [answer["index"] for answer in answers] == [0] * 256
    rewards = np.array([answer["reward"] for answer in answers])
    assert (rewards == batched.reward).mean() > 0.99  # sums of other batches round differently
    more = tally.prefilled_tokens / batched.counts["prefilled_tokens"]
    print(
        f"256 single captions: {tally.batches} batches, {more:.3f} times the tokens of one call, "
        f"{tally.prefilled_tokens} of {tally.prompt_tokens} computed"
    )
    assert more <= 1.1


def _forget_prefixes(server: EngineProcess) -> None:
    request = urllib.request.Request(f"{server.url}/flush_cache", data=b"", method="POST")
    with urllib.request.urlopen(request, timeout=60) as response:
        assert response.status == 200


def test_serve_starts_the_engine_and_stops_it(tmp_path: Path) -> None:
    corpus = made_corpus()
    corpus.save(tmp_path / "corpus")
    python = tmp_path / "python"
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in SHIM.items())
    python.write_text(
        f'#!/bin/sh\n{exports}echo $$ > {tmp_path}/pid\nexec {engine_python()} "$@"\n'
    )
    python.chmod(0o755)
    command = [sys.executable, "-m", "lineup_fast.cli", "serve", "--port", "0"]
    command += ["--corpus", str(tmp_path / "corpus"), "--engine", "sglang", "--model", str(TINY)]
    command += ["--engine-python", str(python), "--engine-args", shlex.join(ARGUMENTS)]
    command += ["--layout", "candidates_first", "--decimals", "0"]
    environment = {name: value for name, value in os.environ.items() if name != "LINEUP_TOKEN"}
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert child.stdout is not None
    try:
        line = child.stdout.readline()
        found = re.search(r"http://\S+:\d+", line)
        assert found, line
        engine = int((tmp_path / "pid").read_text())
        os.kill(engine, 0)
        item = corpus.ids("train")[0]
        text = captions.full(corpus.series(item), np.random.default_rng(0))
        with RewardClient(found[0]) as client:
            batch = client.score([text], [item], index=0)
            assert batch.reason == [None]
            assert batch.reward[0] >= 1.5
        child.send_signal(signal.SIGTERM)
        assert child.wait(120) == 0
        with pytest.raises(ProcessLookupError):
            os.kill(engine, 0)
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
