"""What a run of the benchmarks leaves behind: its rows and nothing else, and how it ends."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench import machine, readme, record
from bench.cost_plot import draw

ROOT = Path(__file__).parents[1]
BENCH = """
from pathlib import Path
import time
from bench import record

record.RESULTS = Path(__file__).with_name("latest.json")

def spin(seconds):
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass

def test_race(race):
    got = race(lambda: spin(0.004), lambda: spin(0.02), items=(2, 1), rounds=5)
    record.row("piece", "size", "peer", got, {must}, {goal}, "bits")

def test_more(race):
    race(int, int)
    {more}
"""
STALE = '{"machine": {}, "rows": [{"piece": "of an earlier run"}]}'


def run(folder: Path, *options: str, must: float = 2, goal: float = 4, more: str = "pass") -> Any:
    """A run of one file: exit status, what it printed, and the rows it left."""
    file, results = folder / "bench_made_up.py", folder / "latest.json"
    file.write_text(BENCH.format(must=must, goal=goal, more=more), encoding="utf-8")
    results.write_text(STALE, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-p", "bench.conftest", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-q", "--benchmark-quiet", *options, str(file)],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    rows = json.loads(results.read_text(encoding="utf-8"))["rows"] if results.exists() else None
    return done.returncode, done.stdout, rows


def test_a_run_leaves_its_own_rows_and_its_machine(tmp_path: Path) -> None:
    status, printed, rows = run(tmp_path)
    assert status == 0, printed
    assert len(rows) == 1
    assert list(rows[0]) == ["piece", "size", "peer", "ratio", "must", "goal", "equal"]
    assert 5 < rows[0].pop("ratio") < 20  # 0.02 s an item against 0.002 s
    words = {"piece": "piece", "size": "size", "peer": "peer", "equal": "bits"}
    assert rows[0] == words | {"must": 2, "goal": 4}
    kept = json.loads((tmp_path / "latest.json").read_text(encoding="utf-8"))["machine"]
    assert {"date", "commit", "processor", "cores", "memory_gib", "python", "load"} <= set(kept)
    assert kept["build"]["isa"]
    assert {"numpy", "scipy", "matplotlib"} <= set(kept["peers"])
    assert "times faster" in printed
    assert kept["processor"] in printed


def test_a_missed_must_fails_and_a_missed_goal_does_not(tmp_path: Path) -> None:
    status, printed, _ = run(tmp_path, must=1000, goal=2000)
    assert status == 1
    assert "MUST missed by 9" in printed
    status, printed, _ = run(tmp_path, goal=1000)
    assert status == 0
    assert "goal missed by 9" in printed


def test_what_an_earlier_run_found_does_not_survive_a_failing_one(tmp_path: Path) -> None:
    status, _, rows = run(tmp_path, "-k", "more", more="assert False")
    assert (status, rows) == (1, None)


def test_a_skipped_comparison_fails(tmp_path: Path) -> None:
    skip = "import pytest; pytest.importorskip('no_such_peer')"
    status, printed, _ = run(tmp_path, "--benchmark-disable", more=skip)
    assert status == 1
    assert "test_more: skipped, so nothing was compared" in printed
    skip = "pass\nimport pytest; pytest.importorskip('no_such_peer')"  # of the whole file
    status, printed, _ = run(tmp_path, "--benchmark-disable", more=skip)
    assert status != 0
    assert "bench_made_up.py: skipped, so nothing was compared" in printed


def test_without_timing_everything_runs_and_no_row_is_kept(tmp_path: Path) -> None:
    status, printed, rows = run(tmp_path, "--benchmark-disable", must=1000)
    assert status == 0, printed
    assert rows == json.loads(STALE)["rows"]
    assert "times faster" not in printed


def test_ratios_are_per_item_with_the_quartiles_of_the_rounds() -> None:
    got = record.ratio(lambda: sum(range(40_000)), lambda: sum(range(40_000)), items=(3, 1))
    assert got.low <= got.high
    assert 2 < got.value < 4.5
    row = record.Row("p", "s", "o", record.Ratio(2700.0, 2600.5, 2800.0), None, None, "all")
    assert "2,700  2,600 to 2,800" in record.table([row])
    assert "for the record" in record.table([row])


@pytest.mark.parametrize("kept", readme.KEPT.values(), ids=lambda path: path.stem)
def test_the_readme_shows_what_was_measured(kept: Path) -> None:
    text = readme.README.read_text(encoding="utf-8")
    assert readme.written(text, kept) == text
    for row in json.loads(kept.read_text(encoding="utf-8"))["rows"]:
        assert row["must"] is None or f"| {record.figure(row['ratio'])} |" in text
    with pytest.raises(ValueError, match=r"README\.md: expected one place"):
        readme.written("", kept)


def test_the_plot_names_its_curves_and_is_small(tmp_path: Path) -> None:
    import datetime

    curves = {name: [[10, 1e-6], [100, 2e-5], [1000, 3e-4]] for name in ("lineup_fast", "other")}
    panels = [{"x": f"size {i}", "item": "thing", "curves": curves} for i in range(5)]
    described = machine.describe(datetime.datetime.now(datetime.UTC), 0.5)
    draw({"machine": described, "panels": panels}, tmp_path / "cost.svg")
    drawn = (tmp_path / "cost.svg").read_text(encoding="utf-8")
    for words in ("other", "size 4", "CPU time per thing", described["processor"]):
        assert words in drawn
    kept = ROOT / "docs/cost.svg"
    assert max(len(drawn), kept.stat().st_size) < 100_000
