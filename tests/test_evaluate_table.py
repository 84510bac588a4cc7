"""The tables of an evaluation: what they refuse, and results.json there and back."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from trainer.evaluate.table import Results, Table, paired_values, read_results, write_results


def test_the_mean_is_that_of_the_values_unless_told() -> None:
    assert Table("m", {"a": 0.25, "b": 0.75}).mean == 0.5
    assert Table("m", {"a": 0.25, "b": 0.75}, 0.9).mean == 0.9


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"metric": "a/b"}, "metric: expected letters"),
        ({"values": {}}, "values: expected at least one"),
        ({"values": {"a": math.nan}}, "a: expected a finite number of m, got nan"),
        ({"mean": math.inf}, "mean: expected a finite"),
        ({"mean": math.nan}, "mean: expected a finite"),
        ({"controls": {"empty": math.nan}}, "empty: expected a finite"),
        ({"missing": {"a": "too long"}}, "missing: expected no id that has a value, got a"),
    ],
)
def test_tables_refuse(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Table(**({"metric": "m", "values": {"a": 1.0}} | change))


def test_no_series_is_skipped_without_a_word() -> None:
    table = Table("m", {"a": 1.0}, missing={"b": "names no number"})
    assert table.check(["b", "a"]) is table
    with pytest.raises(ValueError, match="for all 3 series, got none for 1 \\(c"):
        table.check(["a", "b", "c"])
    with pytest.raises(ValueError, match="expected series of the benchmark, got 1 others \\(b"):
        table.check(["a"])


def test_pairs_are_the_series_with_a_value_in_both() -> None:
    a = Table("m", {"x": 1.0, "y": 2.0}, missing={"z": "none"})
    b = Table("m", {"z": 5.0, "x": 4.0}, missing={"y": "none"})
    assert paired_values(a, b) == ({"x": 1.0}, {"x": 4.0})
    with pytest.raises(ValueError, match="expected m twice, got n"):
        paired_values(a, Table("n", {"x": 1.0}))
    with pytest.raises(ValueError, match="got 2 and 0 that the other lacks"):
        paired_values(a, Table("m", {"x": 1.0}))
    with pytest.raises(ValueError, match="a value in both tables, got none"):
        paired_values(Table("m", {"x": 1.0}, missing={"y": ""}),
                      Table("m", {"y": 1.0}, missing={"x": ""}))  # fmt: skip


def _results() -> Results:
    table = Table("ent", {"a": 0.1, "b": 1 / 3}, 0.2, {"empty": 0.0}, {"tau": 0.5}, {"c": "ünused"})
    tables = {("base", "truce", "ent"): table, ("rl", "truce", "c2s"): Table("c2s", {"a": 1.0})}
    return Results(tables, {"truce": {"n": 3}}, {"base": {"truce": {"file": "x"}}},
                   [{"metric": "c2s", "why": "w"}], [{"p": 0.5}])  # fmt: skip


def test_results_come_back_as_they_were(tmp_path: Path) -> None:
    file = write_results(_results(), tmp_path)
    assert read_results(tmp_path) == _results()
    row = json.loads(file.read_text())["results"][0]
    assert (row["captioner"], row["mean"], row["n"], row["n_missing"]) == ("base", 0.2, 2, 1)
    assert _results().names() == (["base", "rl"], ["truce"], ["ent", "c2s"])


def test_results_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"expected a folder with results\.json"):
        read_results(tmp_path)
    write_results(_results(), tmp_path)
    table = tmp_path / "tables/truce/ent/base.jsonl"
    table.write_text(table.read_text().splitlines(keepends=True)[0])
    with pytest.raises(ValueError, match=r"2 \+ 1 lines expected in tables/truce/ent/base.jsonl"):
        read_results(tmp_path)
    (tmp_path / "results.json").write_text('{"format": 2}')
    with pytest.raises(ValueError, match="expected format 1, got 2"):
        read_results(tmp_path)
    bad = Results({("a b", "t", "m"): Table("m", {"a": 1.0})})
    with pytest.raises(ValueError, match="captioner: expected letters"):
        write_results(bad, tmp_path)
