"""One metric of one captioner on one benchmark, a value per series; and results.json.

A results folder holds results.json and, for every table, a JSONL file with a line per series, so
that a later run can be compared with it series by series:

    results.json   {"format": 1,
                    "settings": {…} of the evaluation,
                    "benchmarks": {name: {"fingerprint", "n", …}},
                    "captioners": {label: {benchmark: {"file", "sha256", "settings", …}}},
                    "results": [{"captioner", "benchmark", "metric", "mean", "n", "n_missing",
                                 "controls", "meta", "table"}],
                    "unmeasured": [{"captioner", "benchmark", "metric", "why"}],
                    "comparisons": [{"captioner", "against", "benchmark", "metric", "n",
                                     "difference", "low", "high", "p", "p_holm"}]}
    tables/BENCHMARK/METRIC/CAPTIONER.jsonl
                   {"id", "value"} or {"id", "missing": why there is no value}
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FORMAT = 1
RESULTS = "results.json"
UNSET = float("nan")  # compared by identity: another NaN is refused
_NAME = re.compile(r"\w[\w.+@-]*")


class UnmeasuredError(ValueError):
    """A metric that does not apply here, such as entailment without references; the text says why.

    It is reported as such, and the evaluation goes on.
    """


@dataclass(frozen=True)
class Table:
    """A metric with its value for every series.

    metric: its name, letters, digits, "_", ".", "+", "@" and "-".
    values: by series id, averaged over references, positions and verifiers; finite.
    mean: the figure that is reported; the mean of the values unless the metric says otherwise
        (UNSET when made: that mean).
    controls: what the same metric gives where nothing can be known, or everything is, by name.
    meta: what the figure depends on (models, recipe, thresholds), JSON types only; "better":
        "lower" or "neither" where that is so.
    missing: by id, why a series has no value. An id is in `values` or here, never in neither.

    Raises:
        ValueError: another name, a value that is not finite, no value at all, an id in both.
    """

    metric: str
    values: dict[str, float]
    mean: float = UNSET
    controls: dict[str, float] = field(default_factory=dict)
    meta: dict[str, Any] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        checked_name("metric", self.metric)
        if not self.values:
            raise ValueError(f"values: expected at least one, got none for {self.metric}")
        if self.mean is UNSET:
            mean = math.fsum(self.values.values()) / len(self.values)
            object.__setattr__(self, "mean", mean)
        numbers = {**self.values, "mean": self.mean, **self.controls}
        for name, value in numbers.items():
            if not math.isfinite(value):
                raise ValueError(f"{name}: expected a finite number of {self.metric}, got {value}")
        both = sorted(self.values.keys() & self.missing.keys())
        if both:
            raise ValueError(f"missing: expected no id that has a value, got {both[0]}")

    @property
    def ids(self) -> set[str]:
        """Every series the table speaks of."""
        return self.values.keys() | self.missing.keys()

    def check(self, ids: Collection[str]) -> Table:
        """The table itself, if it speaks of exactly these series.

        Raises:
            ValueError: a series is left out without a word, or is not of the benchmark.
        """
        silent, strange = sorted(set(ids) - self.ids), sorted(self.ids - set(ids))
        if silent:
            raise ValueError(
                f"{self.metric}: expected a value or a reason for all {len(set(ids))} series, "
                f"got none for {len(silent)} ({silent[0]}, …)"
            )
        if strange:
            raise ValueError(
                f"{self.metric}: expected series of the benchmark, got {len(strange)} others "
                f"({strange[0]}, …)"
            )
        return self


def checked_name(what: str, name: str) -> str:
    """The name, if it can stand in a file name. Raises ValueError otherwise."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{what}: expected letters, digits and _ . + @ -, got {name!r}")
    return name


def paired_values(a: Table, b: Table) -> tuple[dict[str, float], dict[str, float]]:
    """The values of the series that have one in both tables.

    Raises:
        ValueError: the tables are of different metrics or series, or share no value.
    """
    if a.metric != b.metric:
        raise ValueError(f"metric: expected {a.metric} twice, got {b.metric}")
    if a.ids != b.ids:
        raise ValueError(
            f"{a.metric}: expected the same series in both tables, got "
            f"{len(a.ids - b.ids)} and {len(b.ids - a.ids)} that the other lacks"
        )
    both = [id_ for id_ in a.values if id_ in b.values]
    if not both:
        raise ValueError(f"{a.metric}: expected series with a value in both tables, got none")
    return {i: a.values[i] for i in both}, {i: b.values[i] for i in both}


Key = tuple[str, str, str]  # captioner, benchmark, metric


@dataclass
class Results:
    """All tables of an evaluation, by (captioner, benchmark, metric), and what they rest on.

    benchmarks, captioners, unmeasured, comparisons, settings: as in results.json.
    """

    tables: dict[Key, Table] = field(default_factory=dict)
    benchmarks: dict[str, dict[str, Any]] = field(default_factory=dict)
    captioners: dict[str, dict[str, Any]] = field(default_factory=dict)
    unmeasured: list[dict[str, str]] = field(default_factory=list)
    comparisons: list[dict[str, Any]] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)

    def names(self) -> tuple[list[str], list[str], list[str]]:
        """Captioners, benchmarks and metrics that there are tables of, in order of appearance."""
        parts = [list(dict.fromkeys(key[i] for key in self.tables)) for i in range(3)]
        return parts[0], parts[1], parts[2]


def write_results(results: Results, folder: Path, only: Collection[Key] | None = None) -> Path:
    """Writes the tables, then results.json, each at once or not at all; returns its path.

    only: tables to write, the others being there already; None: all.
    """
    rows = []
    for (captioner, benchmark, metric), table in results.tables.items():
        for what, name in (("captioner", captioner), ("benchmark", benchmark)):
            checked_name(what, name)
        if metric != table.metric:
            raise ValueError(f"metric: expected {metric}, got a table of {table.metric}")
        place = f"tables/{benchmark}/{metric}/{captioner}.jsonl"
        if only is None or (captioner, benchmark, metric) in only:
            _write(folder / place, _lines(table))
        rows.append(
            {
                "captioner": captioner,
                "benchmark": benchmark,
                "metric": metric,
                "mean": table.mean,
                "n": len(table.values),
                "n_missing": len(table.missing),
                "controls": table.controls,
                "meta": table.meta,
                "table": place,
            }
        )
    document = {
        "format": FORMAT,
        "settings": results.settings,
        "benchmarks": results.benchmarks,
        "captioners": results.captioners,
        "results": rows,
        "unmeasured": results.unmeasured,
        "comparisons": results.comparisons,
    }
    _write(folder / RESULTS, json.dumps(document, indent=1, allow_nan=False) + "\n")
    return folder / RESULTS


def _lines(table: Table) -> str:
    rows: list[dict[str, Any]] = [{"id": i, "value": v} for i, v in table.values.items()]
    rows += [{"id": i, "missing": why} for i, why in table.missing.items()]
    return "".join(json.dumps(row) + "\n" for row in rows)


def read_results(folder: Path) -> Results:
    """What `write_results` wrote.

    Raises:
        ValueError: no results.json there, of another format, or a table that does not fit it.
    """
    file = folder / RESULTS
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        if document["format"] != FORMAT:
            raise ValueError(f"expected format {FORMAT}, got {document['format']}")
        tables = {
            (row["captioner"], row["benchmark"], row["metric"]): _read_table(folder, row)
            for row in document["results"]
        }
        named = ("benchmarks", "captioners", "unmeasured", "comparisons", "settings")
        return Results(tables, **{name: document[name] for name in named})
    except OSError as error:
        raise ValueError(f"results: expected a folder with {RESULTS}, got {error}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"results: expected results and tables in {folder}, got {error}") from None


def _read_table(folder: Path, row: Mapping[str, Any]) -> Table:
    values: dict[str, float] = {}
    missing: dict[str, str] = {}
    for line in (folder / row["table"]).read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        if "missing" in entry:
            missing[entry["id"]] = entry["missing"]
        else:
            values[entry["id"]] = entry["value"]
    if (len(values), len(missing)) != (row["n"], row["n_missing"]):
        raise ValueError(f"{row['n']} + {row['n_missing']} lines expected in {row['table']}")
    return Table(row["metric"], values, row["mean"], row["controls"], row["meta"], missing)


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    fresh = file.with_name(f"{file.name}.writing-{os.getpid()}")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(file)
