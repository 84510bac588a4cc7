"""The README's code runs as shown, its paths exist, its make targets too."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from lineup_fast import corpus, default_data

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_embedding_example_runs_and_tells_good_from_vague(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    shown = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(shown) == 1
    channels, _ = default_data.read_default()
    made = corpus.build(
        channels,
        lengths=(12, 24),
        sample=600,
        scale=(0, 100),
        test_sources=default_data.TEST_SOURCES,
    )
    made.save(tmp_path / "runs/demo/corpus")
    shutil.copytree(ROOT / "trainer/tiny/verifier", tmp_path / "trainer/tiny/verifier")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(shown[0], "README.md", "exec"), names)
    batch = names["batch"]
    assert batch.valid.all()  # type: ignore[attr-defined]
    assert np.isfinite(batch.reward).all()  # type: ignore[attr-defined]
    assert batch.reason == [None, None]  # type: ignore[attr-defined]


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
