from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

from lineup_fast import charts, cli, corpus, gallery
from lineup_fast.readers import Channel

IMAGE = pytest.importorskip("PIL.Image")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rows = [f"{i},{np.sin(i / 3):.4f},{'nan' if i == 5 else i * 2}" for i in range(40)]
    path = tmp_path / "readings.csv"
    path.write_text("\n".join(["step,sine wave,ramp", *rows]) + "\n")
    return path


def pixels(path: Path) -> np.ndarray:
    return np.asarray(IMAGE.open(io.BytesIO(path.read_bytes())))


def test_channels_of_a_file(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "charts"
    assert cli.main(["render", str(table), "-o", str(folder), "--style", "paper"]) == 0
    printed = capsys.readouterr()
    assert f"charts in {folder}" in printed.out
    series, refusals = gallery.select(table)
    assert len(list(folder.glob("*.png"))) == len(series)
    assert printed.err.count("left out:") == len(refusals) == 1
    sine = next(name for name in series if "sine" in name)
    assert series[sine] == pytest.approx(np.sin(np.arange(40) / 3), abs=1e-4)
    drawn = pixels(next(path for path in folder.iterdir() if "sine" in path.name))
    assert np.array_equal(drawn, charts.render([series[sine]], charts.PAPER_STYLE)[0])


def test_items_of_a_corpus(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    channels = [Channel(f"set {i}/x", rng.normal(size=300).cumsum()) for i in range(4)]
    made = corpus.build(channels, lengths=[24])
    made.save(tmp_path / "corpus")
    chosen = made.ids()[:2]
    folder = tmp_path / "charts"
    assert cli.main(["render", str(tmp_path / "corpus"), *chosen, "-o", str(folder)]) == 0
    assert sorted(path.stem for path in folder.iterdir()) == sorted(chosen)
    drawn = pixels(folder / f"{chosen[0]}.png")
    assert np.array_equal(drawn, charts.render([made.series(chosen[0])])[0])


def test_names_become_distinct_file_names(tmp_path: Path) -> None:
    series = {name: np.arange(3.0) for name in ("a/b", "a b", "../etc", "")}
    paths = gallery.write(series, tmp_path, charts.TINY_STYLE)
    assert [path.name for path in paths] == ["a_b.png", "a_b-2.png", "etc.png", "series.png"]
    assert all(path.parent == tmp_path for path in paths)


def test_unknown_names(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["render", str(table), "nobody", "-o", str(tmp_path / "x")]) == 2
    assert "names: expected names in" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()
