"""Tables of an evaluation side by side, out of the results.json that `trainer evaluate` writes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from trainer.report.run import Run

LEVELS = ((0.001, "***"), (0.01, "**"), (0.05, "*"))
# Which metrics stand in one table, by how their names begin; the others follow in one of their own.
TABLES = (
    ("Descriptions and identification", ("entailment", "identify")),
    ("Decoding from the caption alone", ("forecast", "reconstruct")),
    ("Captions", ("claims", "characters")),
)
OTHERS = "Other metrics"
DETAILS = "Details"  # other directions and thresholds, single verifiers
_DETAIL = re.compile(r"@|_(reverse|both|q)$")

Rows = Mapping[tuple[str, str, str], Mapping[str, Any]]  # by captioner, benchmark, metric


@dataclass(frozen=True, slots=True)
class Cell:
    """A figure: its mark of significance, whether it is the best of its column, a note.

    value is None where the metric does not apply; the note says why, or how many series lack one.
    """

    value: float | None
    mark: str = ""
    best: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class EvaluationTable:
    """Metrics of one kind on all benchmarks: a row of cells per captioner and per control.

    columns: (benchmark, metric), those of a benchmark together; "↓" marks where less is better.
    """

    title: str
    columns: list[tuple[str, str]]
    rows: list[tuple[str, list[Cell]]]
    controls: list[tuple[str, list[Cell]]]

    @property
    def benchmarks(self) -> list[tuple[str, int]]:
        """Benchmarks and how many columns each has."""
        return [(name, len(list(some))) for name, some in groupby(b for b, _ in self.columns)]


def run_evaluation(run: Run) -> tuple[list[EvaluationTable], list[str]] | None:
    """Tables and notes of the evaluation in a run folder; None without one, a damaged one becomes
    a note of the run."""
    if not run.evaluation:
        return None
    try:
        return evaluation_tables(run.evaluation), evaluation_notes(run.evaluation)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        run.notes.append(f"results.json cannot be shown ({error!r}).")
        return None


def mark(p: float | None) -> str:
    """Stars of a p-value: 0.05, 0.01, 0.001."""
    return next((stars for level, stars in LEVELS if p is not None and p < level), "")


def digits(value: float | None) -> str:
    """A figure of a table: three decimals, one from 100 on, "–" where there is none."""
    if value is None:
        return "–"
    return f"{value:.3f}" if abs(value) < 100 else f"{value:,.1f}"


def evaluation_tables(document: Mapping[str, Any]) -> list[EvaluationTable]:
    """The tables of results.json.

    Raises:
        KeyError, TypeError: not such a document.
    """
    rows = _by_key(document["results"])
    absent = _by_key(document["unmeasured"])
    marks = {key: mark(row.get("p_holm")) for key, row in _by_key(document["comparisons"]).items()}
    keys = [*rows, *absent]
    benchmarks = list(dict.fromkeys(benchmark for _, benchmark, _ in keys))
    metrics = list(dict.fromkeys(metric for _, _, metric in keys))
    measured = {key[1:] for key in keys}
    tables = []
    for title in dict.fromkeys([*(name for name, _ in TABLES), OTHERS, DETAILS]):
        some = [metric for metric in metrics if title_of(metric) == title]
        columns = [(b, m) for b in benchmarks for m in some if (b, m) in measured]
        if columns:
            tables.append(_table(title, columns, rows, absent, marks))
    return tables


def _by_key(rows: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str, str], Mapping[str, Any]]:
    return {(row["captioner"], row["benchmark"], row["metric"]): row for row in rows}


def title_of(metric: str) -> str:
    """The table that a metric stands in."""
    if _DETAIL.search(metric):
        return DETAILS
    return next((name for name, starts in TABLES if metric.startswith(starts)), OTHERS)


def _table(
    title: str,
    columns: list[tuple[str, str]],
    rows: Rows,
    absent: Rows,
    marks: Mapping[tuple[str, str, str], str],
) -> EvaluationTable:
    captioners = list(dict.fromkeys(name for name, *column in (*rows, *absent)))
    best = {column: _best(column, rows) for column in columns}

    def cell(name: str, column: tuple[str, str]) -> Cell:
        key = (name, *column)
        if key not in rows:
            return Cell(None, note=absent[key]["why"] if key in absent else "not measured")
        row = rows[key]
        lacking = f"{row['n_missing']} of them without a value" if row["n_missing"] else ""
        return Cell(row["mean"], marks.get(key, ""), row["mean"] == best[column], lacking)

    lines = [(name, [cell(name, column) for column in columns]) for name in captioners]
    return EvaluationTable(
        title,
        [(b, f"{m} ↓" if _lower((b, m), rows) else m) for b, m in columns],
        [line for line in lines if any(c.note != "not measured" for c in line[1])],
        _controls(captioners, columns, rows),
    )


def _lower(column: tuple[str, str], rows: Rows) -> bool:
    return any(row["meta"].get("better") == "lower" for k, row in rows.items() if k[1:] == column)


def _best(column: tuple[str, str], rows: Rows) -> float | None:
    """The best mean of a column, None where there is nothing to choose between."""
    means = [row["mean"] for key, row in rows.items() if key[1:] == column]
    neutral = any(
        row["meta"].get("better") == "neither" for k, row in rows.items() if k[1:] == column
    )
    if len(means) < 2 or min(means) == max(means) or neutral:
        return None
    return float(min(means) if _lower(column, rows) else max(means))


def _controls(
    captioners: Sequence[str], columns: Sequence[tuple[str, str]], rows: Rows
) -> list[tuple[str, list[Cell]]]:
    """A row per control; one for each captioner where it depends on the captioner."""
    shown = []
    inside = [row for key, row in rows.items() if key[1:] in columns]
    for kind in dict.fromkeys(kind for row in inside for kind in row["controls"]):
        lines = []
        for name in captioners:
            found = [rows.get((name, *c), {"controls": {}})["controls"].get(kind) for c in columns]
            if any(value is not None for value in found):
                lines.append((name, found))
        alike = all(values == lines[0][1] for _, values in lines)
        for name, values in lines[:1] if alike else lines:
            label = str(kind).replace("_", " ")
            shown.append((label if alike else f"{name}: {label}", [Cell(v) for v in values]))
    return shown


def evaluation_notes(document: Mapping[str, Any]) -> list[str]:
    """What the figures rest on: benchmarks, contamination, what does not apply, marks."""
    notes = []
    for benchmark, known in document["benchmarks"].items():
        parts = [f"{known['n']:,} series"]
        if known.get("n_asked", known["n"]) < known["n"]:
            parts.append(f"{known['n_asked']:,} asked about")
        if known.get("n_references"):
            parts.append(f"{known['n_references']:,} references")
        if known.get("neighbours"):
            parts.append(f"{known['neighbours']} neighbours")
        notes.append(f"{benchmark}: {', '.join(parts)}")
        for name, found in known.get("contamination", {}).items():
            said = _shared(found)
            notes += [f"{benchmark}, {name}: {said}"] if said else []
    notes += [
        f"{row['benchmark']}, {row['captioner']}: no {row['metric']}: {row['why']}"
        for row in document["unmeasured"]
    ]
    against = dict.fromkeys(row["against"] for row in document["comparisons"])
    if against:
        levels = ", ".join(f"{stars} p < {level:g}" for level, stars in reversed(LEVELS))
        notes.append(
            f"marks: against {', '.join(against)}, paired by series, Holm over each table: {levels}"
        )
    return notes


def _shared(found: Any) -> str:
    if isinstance(found, str):
        return f"contamination {found}"
    if found["shared"]:
        return (
            f"{found['shared']:,} of {found['n']:,} series were trained on in whole or in part "
            f"({found['source_interval']:,} by source, {found['run']:,} by a shared run)"
        )
    return str(found["note"])
