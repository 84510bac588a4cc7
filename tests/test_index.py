"""The index command, and a corpus out of a real file."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from lineup_fast import cli, readers
from lineup_fast.corpus import Corpus, build

SHARED = Path(
    os.environ.get("LINEUP_SHARED_DATA", Path(__file__).resolve().parents[2] / "shared" / "data")
)


def test_index_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    walks = np.random.default_rng(0).normal(size=(400, 2)).cumsum(axis=0).round(3).tolist()
    rows = ["date,a,b"] + [
        f"2020-01-01T{h // 60:02}:{h % 60:02},{a},{b}" for h, (a, b) in enumerate(walks)
    ]
    rows[7] = rows[7].rsplit(",", 1)[0] + ",oops"
    (tmp_path / "f.csv").write_text("\n".join(rows))
    arguments = ["index", str(tmp_path / "f.csv"), "--lengths", "12,24", "--sample", "100"]
    assert cli.main([*arguments, "--dry-run"]) == 0
    shown = capsys.readouterr()
    assert "f.csv: row 7 column 'b': not a number: 'oops'" in shown.out
    assert shown.err == ""
    assert not (tmp_path / "c").exists()
    folder = tmp_path / "c"
    assert cli.main([*arguments, "--scale", "0,100", "--k", "3", "-o", str(folder)]) == 0
    made = Corpus.load(folder)
    assert made.settings["scale"] == [0.0, 100.0]
    assert made.settings["k"] == 3
    assert made.fingerprint[:16] in capsys.readouterr().out
    assert json.loads((folder / "corpus.json").read_text())["fingerprint"] == made.fingerprint
    assert cli.main(arguments) == 2
    assert "--output: expected a folder" in capsys.readouterr().err


def test_real_file_end_to_end() -> None:
    if not (SHARED / "etth1.csv.gz").is_file():
        pytest.skip("shared data not here")
    channels, _ = readers.read(SHARED / "etth1.csv.gz")
    made = build(channels, lengths=[24, 48], sample=400)
    assert len(made.ids()) > 380
    assert {made.meta(item).source for item in made.ids("test")} <= {c.source for c in channels}
