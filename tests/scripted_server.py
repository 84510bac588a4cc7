"""A reward server whose verifier is a rule, in a thread or as a program.

``python -m tests.scripted_server COUNTER`` serves with group size 2 until SIGTERM.
"""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from lineup_fast import server
from lineup_fast.candidates import CandidateSet
from lineup_fast.coalesce import Coalescer
from lineup_fast.corpus import Corpus, build
from lineup_fast.draw_counter import DrawCounter
from lineup_fast.prompts import Recipe
from lineup_fast.readers import Channel
from lineup_fast.rewards import IdentificationReward
from lineup_fast.verifiers.scripted import ScriptedVerifier

ROOT = Path(__file__).parents[1]
GATE = threading.Event()


@lru_cache(maxsize=1)
def corpus() -> Corpus:
    """A few dozen random walks of 8 steps."""
    rng = np.random.default_rng(0)
    channels = [
        Channel(source=f"source{n}", values=np.cumsum(rng.standard_normal(300))) for n in range(3)
    ]
    return build(channels, lengths=[8], seed=0)


def rule(caption: str, candidates: CandidateSet, position: int) -> np.ndarray:
    """Believes the first number in a caption to be the first value.

    "wait" waits for GATE to open, "sleep N" takes N seconds, "crash" fails as an engine does, "bug"
    as code does.
    """
    if caption.startswith("wait"):
        assert GATE.wait(60)
    if caption.startswith("sleep") and position == 0:
        time.sleep(float(caption.split()[1]))
    if "crash" in caption:
        raise RuntimeError("engine: connection lost")
    if "bug" in caption:
        return np.zeros(99)  # ValueError of the verifier, for the whole call
    order = np.insert(candidates.series[1:], position, candidates.series[0], axis=0)
    said = re.search(r"-?\d+\.\d+(e-?\d+)?", caption)
    return -np.abs(order[:, 0] - (float(said[0]) if said else 1e9))


def truth(item: str) -> str:
    """A caption that the rule understands."""
    return f"starts at {corpus().series(item)[0]:.17f}"


def reward(**recipe: Any) -> IdentificationReward:
    return IdentificationReward(corpus(), ScriptedVerifier(rule), Recipe(**recipe))


@contextmanager
def serving(
    scored: IdentificationReward | None = None,
    counter: DrawCounter | None = None,
    *,
    token: str | None = None,
    limits: server.Limits | None = None,
    port: int = 0,
    **coalescing: Any,
) -> Iterator[tuple[str, server.RewardApp]]:
    """A server on a thread: its URL and application."""
    scored = scored or reward()
    app = server.RewardApp(
        scored, Coalescer(scored, **coalescing), counter, token=token, limits=limits
    )
    ready = threading.Event()
    bound = server.listener("127.0.0.1", port)
    url = f"http://127.0.0.1:{bound.getsockname()[1]}"
    thread = threading.Thread(target=server.run, args=(app, bound, ready.set))
    thread.start()
    try:
        assert ready.wait(30)
        yield url, app
    finally:
        app.traffic.draining = True
        thread.join(30)
        app.close()
        assert not thread.is_alive()


@contextmanager
def started(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """This file as a program: the process, killed at the end if it still runs, and its URL."""
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.scripted_server", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert child.stdout is not None
    try:
        url = child.stdout.readline().strip()
        assert url.startswith("http://")
        yield child, url
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


def main(counter_path: str, port: str = "0") -> None:
    counter = DrawCounter(2, counter_path)
    scored = reward()
    app = server.RewardApp(scored, Coalescer(scored, group_size=2), counter)
    bound = server.listener("127.0.0.1", int(port))

    def tell() -> None:
        sys.stdout.write(f"http://127.0.0.1:{bound.getsockname()[1]}\n")
        sys.stdout.flush()

    server.run(app, bound, tell)
    app.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
