"""256 captions sent one at a time by 8 processes, against the same captions in one call.

Both ask the same reward server with the tiny verifier; CPU time of the server and of everybody who
asks, in turns; every round has draws of its own, so that nothing is remembered.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch

from bench.record import row
from lineup_fast.client import RewardClient
from lineup_fast.corpus import Corpus, build
from lineup_fast.prompts import Recipe
from lineup_fast.readers import Channel
from lineup_fast.rewards import IdentificationReward
from lineup_fast.verifiers.transformers import TransformersVerifier
from tests.reward_callers import Call, ask_at_once
from trainer.tiny import captions, series

ROOT = Path(__file__).parents[1]
T, B, G, PROCESSES, ROUNDS = 24, 32, 8, 8, 3


def made_corpus() -> Corpus:
    """Made-up series of whole numbers 0 to 100, as the tiny verifier reads them."""
    values = series.generate(800, T, np.random.default_rng(0))
    channels = [Channel(source=f"s{n}", values=values[n::4].ravel()) for n in range(4)]
    return build(channels, lengths=[T], stride=T, seed=0, test_sources=["s0"])


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """The server as its users start it; its URL."""
    command = [sys.executable, "-m", "lineup_fast.cli", "serve", "--port", "0", "--threads", "1"]
    command += ["--corpus", str(folder / "corpus"), "--layout", "candidates_first"]
    command += ["--verifier", str(ROOT / "trainer/tiny/verifier"), "--decimals", "0"]
    command += ["--group-size", str(G), "--counter", str(folder / "draws.jsonl")]
    environment = {name: value for name, value in os.environ.items() if name != "LINEUP_TOKEN"}
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment)
    assert child.stdout is not None
    try:
        found = re.search(r"http://\S+:\d+", child.stdout.readline())
        assert found
        yield found[0]
    finally:
        child.terminate()
        assert child.wait(30) == 0
        child.stdout.close()


def spent(url: str) -> tuple[float, float]:
    """CPU seconds and prefilled tokens of the server so far."""
    text = httpx.get(f"{url}/metrics").text
    names = ("process_cpu_seconds_total", "lineup_prefilled_tokens_total")
    found = [re.search(rf"^{name} (\S+)$", text, re.MULTILINE) for name in names]
    cpu_s, tokens = (float(match[1]) for match in found if match)
    return cpu_s, tokens


class Meter:
    """Asks a server both ways and notes what each time cost everybody together."""

    def __init__(self, url: str, asks: list[tuple[str, str]], folder: Path) -> None:
        self.url, self.asks, self.folder = url, asks, folder
        self.cpu_s: dict[str, list[float]] = {"one call": [], "single": []}
        self.tokens: dict[str, list[float]] = {"one call": [], "single": []}

    def in_one_call(self, client: RewardClient, index: int) -> None:
        before, began = spent(self.url), time.process_time()
        texts, ids = (list(column) for column in zip(*self.asks, strict=True))
        assert client.score(texts, ids, index=index).valid.all()
        self._note("one call", before, time.process_time() - began)

    def one_at_a_time(self, index: int) -> list[float]:
        before = spent(self.url)
        calls = [Call(caption, item, index) for caption, item in self.asks]
        share = len(calls) // PROCESSES
        plan = [calls[at : at + share] for at in range(0, len(calls), share)]
        outputs, _ = ask_at_once([self.url], plan, self.folder)
        self._note("single", before, sum(output["cpu_s"] for output in outputs))
        return [answer["reward"] for output in outputs for answer in output["answers"]]

    def _note(self, kind: str, before: tuple[float, float], asking_s: float) -> None:
        after = spent(self.url)
        self.cpu_s[kind].append(after[0] - before[0] + asking_s)
        self.tokens[kind].append(after[1] - before[1])


@pytest.mark.timeout(1800)
def test_single_calls(timed: bool, tmp_path: Path) -> None:
    corpus = made_corpus()
    corpus.save(tmp_path / "corpus")
    rng = np.random.default_rng(1)
    asks = [
        (captions.full(corpus.series(item), rng, noise=2.0), item)
        for item in corpus.ids("train")[:B]
        for _ in range(G)
    ]
    torch.set_num_threads(1)
    verifier = TransformersVerifier(str(ROOT / "trainer/tiny/verifier"))
    recipe = Recipe(layout="candidates_first", decimals=0)
    here = IdentificationReward(corpus, verifier, recipe).score(*zip(*asks, strict=True), index=0)
    with serving(tmp_path) as url, RewardClient(url) as client:
        meter = Meter(url, asks, tmp_path)
        np.testing.assert_array_equal(meter.one_at_a_time(0), here.reward)
        for index in range(1, ROUNDS + 1 if timed else 2):
            meter.in_one_call(client, 2 * index)
            meter.one_at_a_time(2 * index + 1)
    median = {kind: statistics.median(values) for kind, values in meter.cpu_s.items()}
    more = statistics.median(meter.tokens["single"]) / meter.tokens["one call"][0]
    assert more <= 1.1
    if timed:
        row(
            "server, single calls",
            f"{B * G} captions, T = {T}",
            f"one call ({more:.2f}x tokens)",
            median["one call"] / median["single"],
            0.77,
            0.9,
            "rewards",
        )
