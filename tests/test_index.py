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


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--lengths", "abc"], "expected whole numbers N,N, got 'abc'"),
        (["--split", "1,2"], "expected three numbers X,X,X, got '1,2'"),
        (["--scale", "1"], "expected two numbers LOW,HIGH, got '1'"),
        (["--split", "nan,1,1"], "split: expected three shares"),
        (["--scale", "0,inf"], "scale: expected low < high"),
        (["--scale", "1,0"], "scale: expected low < high"),
        (["--lengths", "0"], "lengths: expected positive numbers"),
        (["--lengths", "100000"], "lengths: expected some that the data can fill"),
        (["--lengths", "8", "--k", "13"], "k: expected 2 to 12"),
        (["--lengths", "200"], "items: expected some with 3 neighbours or more, got none"),
    ],
)
def test_flags_that_make_no_sense(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    file = tmp_path / "x.csv"
    file.write_text("v\n" + "\n".join(str(i * i % 31) for i in range(600)))
    try:
        status = cli.main(["index", str(file), "--dry-run", *flags])
    except SystemExit as error:
        status = error.code  # argparse
    assert status == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_outputs_and_names_are_checked_before_the_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.csv").write_text("v\n" + "1\n2\n" * 50)
    same = [str(tmp_path / folder / "x.csv") for folder in ("a", "b")]
    assert cli.main(["index", *same, "--dry-run"]) == 2
    assert "FILE: expected files of different names, got 'x/v'" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    for output in (".", "a", same[0]):
        assert cli.main(["index", same[0], "-o", output, "--lengths", "8"]) == 2
        printed = capsys.readouterr()
        assert "folder: expected" in printed.err
        assert not printed.out
