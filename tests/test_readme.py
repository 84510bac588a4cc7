"""The README's code runs as shown, its paths exist, its make targets too."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lineup_fast import corpus, default_data

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


PYTHON = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the examples name: the corpus of make demo, smaller, and the verifier."""
    folder = tmp_path_factory.mktemp("readme")
    channels, _ = default_data.read_default()
    made = corpus.build(
        channels,
        lengths=(12, 24),
        sample=600,
        scale=(0, 100),
        test_sources=default_data.TEST_SOURCES,
    )
    made.save(folder / "runs/demo/corpus")
    shutil.copytree(ROOT / "trainer/tiny/verifier", folder / "trainer/tiny/verifier")
    return folder


def test_the_examples_run_and_the_server_says_what_the_reward_says(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    assert len(PYTHON) == 3
    monkeypatch.chdir(checkout)
    monkeypatch.delenv("LINEUP_TOKEN", raising=False)
    names: dict[str, Any] = {}
    exec(compile(PYTHON[0], "README.md", "exec"), names)
    embedded = names["batch"]
    assert embedded.valid.all()
    assert np.isfinite(embedded.reward).all()
    assert embedded.reason == [None, None]

    shown = re.search(r"^lineup-fast (serve [^`]*?)\n```", README, re.MULTILINE)
    assert shown
    words = shlex.split(shown[1].replace("\\\n", " "))
    command = [sys.executable, "-m", "lineup_fast.cli", *words, "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        url = re.search(r"http://[\d.:]+", server.stdout.readline())
        assert url
        assert "http://127.0.0.1:8900" in PYTHON[1]
        code = PYTHON[1].replace("http://127.0.0.1:8900", url[0])
        exec(compile(code, "README.md", "exec"), names)
    finally:
        server.terminate()
        assert server.wait(60) == 0
        server.stdout.close()
    served = names["batch"]
    assert served is not embedded
    np.testing.assert_allclose(served.reward, embedded.reward, atol=1e-6)
    assert served.index == [7, 7]
    assert served.fingerprints == embedded.fingerprints


def test_the_example_of_neighbours_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(PYTHON[2], "README.md", "exec"), names)
    assert names["pools"].shape == (14_715, 8)
    assert (names["pools"] >= 0).all()
    assert (names["found"] >= 0).all()
    again = names["NeighbourIndex"].load("windows.index", names["windows"])
    np.testing.assert_array_equal(again.search(8), names["pools"])


def test_named_paths_exist() -> None:
    named = set(re.findall(r"`((?:csrc|lineup_fast|trainer|tests|docs)/[\w/.-]+)`", README))
    assert len(named) > 15
    missing = sorted(path for path in named if not (ROOT / path).exists())
    assert not missing


def test_named_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = set(re.findall(r"\bmake ([a-z]+)\b", README)) - {"it"}
    assert {"demo", "test"} <= named
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in named)
