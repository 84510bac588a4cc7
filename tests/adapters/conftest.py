"""A real reward server for the hosts' own environments, which need neither torch nor a corpus.

``make test-adapters`` sets LINEUP_PYTHON (an environment that can serve), LINEUP_CORPUS and
LINEUP_SET (where the exported rows are).
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lineup_fast.client import RewardClient
from lineup_fast.corpus import Corpus
from lineup_fast.rewards import RewardBatch

ROOT = Path(__file__).parents[2]
GROUP = 2


def _place(name: str) -> Path:
    assert name in os.environ, f"{name}: expected a path, got nothing (run make test-adapters)"
    return Path(os.environ[name])


@pytest.fixture(scope="session")
def corpus_folder() -> Path:
    return _place("LINEUP_CORPUS")


@pytest.fixture(scope="session")
def rows() -> Path:
    """Where ``lineup-fast export`` wrote one folder per host."""
    return _place("LINEUP_SET")


@pytest.fixture(scope="session")
def server(corpus_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of ``lineup-fast serve`` with the tiny verifier, draws counted in groups of two."""
    command = [
        *(str(_place("LINEUP_PYTHON")), "-m", "lineup_fast.cli", "serve", "--port", "0"),
        *("--corpus", str(corpus_folder), "--verifier", str(ROOT / "trainer/tiny/verifier")),
        *("--layout", "candidates_first", "--decimals", "0", "--threads", "1"),
        *("--group-size", str(GROUP)),
        *("--counter", str(tmp_path_factory.mktemp("server") / "counter")),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        ready = re.search(r"ready at (\S+),", process.stdout.readline())
        assert ready is not None, "the server did not start"
        yield ready[1]
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


@pytest.fixture(scope="session")
def truths(corpus_folder: Path) -> dict[str, str]:
    """Items and captions that the tiny verifier identifies about always."""
    corpus = Corpus.load(corpus_folder)
    return {item: truth(corpus, item) for item in corpus.ids("train")[:8]}


def truth(corpus: Corpus, item: str) -> str:
    """First and last values of an item, and its extremes."""
    values = corpus.series(item)
    high, low = int(values.argmax()), int(values.argmin())
    return (
        f"starts at {values[0]:.0f}; peak {values[high]:.0f} at step {high}; "
        f"low {values[low]:.0f} at step {low}; ends at {values[-1]:.0f}."
    )


def direct(server: str, captions: list[str], items: list[str], index: int) -> RewardBatch:
    """What the server says when it is asked without a host in between."""
    with RewardClient(server) as client:
        return client.score(captions, items, index=index)
