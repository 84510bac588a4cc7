"""The evaluation on the report page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainer.evaluate.table import Results, Table, write_results
from trainer.report.page import build
from trainer.report.run import read_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    rows = [{"step": step, "lineup/acc": 0.4, "reward": 0.8} for step in (1, 2)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def _table(metric: str, level: float, **words: object) -> Table:
    values = {f"{n}": level + 0.01 * n for n in range(4)}
    return Table(metric, values, **words)  # type: ignore[arg-type]


def test_the_page_shows_the_tables_of_an_evaluation(run: Path) -> None:
    assert 'id="evaluation"' not in build(read_run(run), None)
    results = Results(
        {
            ("start", "truce", "identify_series"): _table("identify_series", 0.5),
            ("rl", "truce", "identify_series"): _table(
                "identify_series", 0.8, controls={"empty": 0.25}
            ),
            ("start", "etth2", "identify_series"): _table("identify_series", 0.4),
            ("rl", "truce", "forecast"): _table("forecast", 0.3, meta={"better": "lower"}),
            ("start", "truce", "forecast"): _table("forecast", 0.2, meta={"better": "lower"}),
        },
        {"truce": {"n": 4, "contamination": {"rl": "not checked: <none>"}}},
        unmeasured=[
            {"captioner": "rl", "benchmark": "etth2", "metric": "identify_series", "why": "short"}
        ],
        comparisons=[
            {
                "captioner": "rl",
                "benchmark": "truce",
                "metric": "identify_series",
                "against": "start",
                "p_holm": 0.002,
            }
        ],
    )
    write_results(results, run)
    page = build(read_run(run), None)
    assert '<a href="#evaluation">' in page
    assert '<th colspan="1">truce</th><th colspan="1">etth2</th>' in page
    assert "<td><b>0.815</b>**</td>" in page
    assert '<td title="short">–</td>' in page
    assert "<td><em>0.250</em></td>" in page
    assert "<td><b>0.215</b></td>" in page  # lower is better
    assert "truce, rl: contamination not checked: &lt;none&gt;" in page
    assert "etth2, rl: no identify_series: short" in page
    assert "marks: against start" in page


def test_damaged_results_are_said(run: Path) -> None:
    (run / "results.json").write_text('{"results": [], "unmeasured": []}')
    page = build(read_run(run), None)
    assert "results.json cannot be shown (KeyError(&#39;comparisons&#39;))" in page
    assert 'id="evaluation"' not in page
    (run / "results.json").write_text('{"results": ')
    assert "results.json cannot be read" in build(read_run(run), None)
