"""The audit of a run's reward, where ``lineup-fast audit`` wrote one into the run folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainer.report.run import Run


@dataclass(frozen=True, slots=True)
class AuditRow:
    """A line of a table: accuracy (or its change), its interval, items, what else is worth saying.

    ``low`` and ``high`` are None where there is one source only.
    """

    name: str
    about: str
    value: float | None
    low: float | None
    high: float | None
    n: int
    by_position: list[float | None]


@dataclass(frozen=True, slots=True)
class AuditTables:
    """What the page shows of ``audit.json``; ``findings`` are its own rows."""

    verdicts: list[str]
    scope: str
    findings: list[dict[str, Any]]
    captions: list[AuditRow]
    hacks: list[AuditRow]
    questions: list[AuditRow]


def audit_tables(run: Run) -> AuditTables | None:
    """Return the tables, or None where there is no audit; a damaged one becomes a note."""
    found = run.audit
    if not found:
        return None
    try:
        return AuditTables(
            [str(verdict) for verdict in found["verdicts"]],
            f"{found['items']} items of {found['sources']} sources · {found['distractors']} "
            f"distractors · {found['recipe']}",
            [
                {**row, "value": float(row["value"]), "threshold": float(row["threshold"])}
                for row in found["findings"]
            ],
            [_row(row, row["name"], row["accuracy"]) for row in found["captions"]],
            [_row(row, row["name"], row["change"]) for row in found["hacks"]],
            [
                _row(row, f"{row['distractors']}, K = {row['k']}, {row['name']}", row["accuracy"])
                for row in (*found["questions"], *found["sweep"])
            ],
        )
    except (KeyError, TypeError, ValueError) as error:
        run.notes.append(f"audit.json cannot be shown ({error!r}).")
        return None


def _row(row: Mapping[str, Any], name: str, value: float | None) -> AuditRow:
    return AuditRow(
        name,
        str(row["about"]),
        value,
        row["low"],
        row["high"],
        int(row["n"]),
        list(row.get("by_position", [])),
    )
