"""Exported data sets, read back as their hosts read them."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lineup_fast import charts, cli
from lineup_fast.corpus import Corpus
from lineup_fast.export import HOSTS, IMAGE_TEXT, export
from lineup_fast.prompts import CAPTION_PROMPT
from tests.test_rewards import made_corpus

datasets = pytest.importorskip("datasets")
image_module = pytest.importorskip("PIL.Image")


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return made_corpus()


def _read(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".parquet":
        found = datasets.load_dataset(
            "parquet", data_files=str(path), split="train", cache_dir=str(path.parent / "cache")
        )
        return list(found)
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _pixels(row: dict[str, Any]) -> np.ndarray:
    """The chart of a row as its host would open it."""
    if "image" in row:
        return np.asarray(row["image"])
    if "images" in row:
        (image,) = row["images"]
        return _opened(image) if isinstance(image, str) else np.asarray(image)
    (message,) = row["prompt"]
    return _opened(message["content"][0]["image_url"]["url"])


def _opened(url: str) -> np.ndarray:
    data = base64.b64decode(url.removeprefix("data:image/png;base64,"))
    return np.asarray(image_module.open(io.BytesIO(data)))


def _uid(row: dict[str, Any]) -> str:
    if "label" in row:
        return str(json.loads(row["label"])["uid"])
    return str(row["uid"] if "uid" in row else row["reward_model"]["ground_truth"])


@pytest.mark.parametrize("host", HOSTS)
def test_rows_hold_chart_prompt_and_item(host: Any, corpus: Corpus, tmp_path: Path) -> None:
    files = export(corpus, host, tmp_path / "set", limit=70)
    assert [file.stem for file in files] == [s for s in ("train", "val", "test") if corpus.ids(s)]
    for file in files:
        rows = _read(file)
        items = corpus.ids(file.stem)[:70]
        assert [_uid(row) for row in rows] == items
        for row, item in list(zip(rows, items, strict=True))[::13]:
            expected = charts.render([corpus.series(item)])[0]
            assert np.array_equal(_pixels(row), expected)


def test_image_marks_are_the_hosts_own(corpus: Corpus, tmp_path: Path) -> None:
    rows = {host: _read(export(corpus, host, tmp_path / host, limit=1)[0])[0] for host in HOSTS}
    # TRL inserts the image itself, verl counts the marks, OpenRLHF replaces them.
    assert rows["trl"]["prompt"] == [{"role": "user", "content": CAPTION_PROMPT}]
    assert rows["verl"]["prompt"][0]["content"] == IMAGE_TEXT + CAPTION_PROMPT
    assert rows["verl"]["prompt"][0]["content"].count("<image>") == len(rows["verl"]["images"])
    assert rows["openrlhf"]["input"] == IMAGE_TEXT + CAPTION_PROMPT
    assert rows["verl"]["reward_model"]["style"] == "rule"
    assert rows["verl"]["data_source"] == "lineup_fast"
    text = rows["verifiers"]["prompt"][0]["content"][1]
    assert text == {"type": "text", "text": CAPTION_PROMPT}


def test_bad_input_is_refused(corpus: Corpus, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(ValueError, match="output: expected a new or empty folder"):
        export(corpus, "trl", tmp_path / "full")
    with pytest.raises(ValueError, match="host: expected trl, verl, openrlhf, verifiers"):
        export(corpus, "swift", tmp_path / "new")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="limit: expected at least 1"):
        export(corpus, "trl", tmp_path / "new", limit=0)
    assert not (tmp_path / "new").exists()


def test_command_writes_the_files(
    corpus: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus.save(tmp_path / "corpus")
    words = ["export", str(tmp_path / "corpus"), "--to", "openrlhf", "-o", str(tmp_path / "out")]
    assert cli.main([*words, "--limit", "2", "--prompt", "Describe it."]) == 0
    files = [Path(line) for line in capsys.readouterr().out.split()]
    assert all(file.is_file() for file in files)
    assert _read(files[0])[0]["input"] == "<image>\nDescribe it."
    assert cli.main(words) == 2
    assert "output: expected a new or empty folder" in capsys.readouterr().err
