"""A run folder as the report reads it: what is there, and in plain words what is not."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_VALIDATION = re.compile(r"step-(\d+)\.jsonl")


@dataclass(frozen=True, slots=True)
class Scored:
    """One validation caption: ``picks`` [K], ``probs`` [K, K], rows by the target's position."""

    id: str
    caption: str
    accuracy: float
    picks: list[int]
    probs: list[list[float]]
    valid: bool
    reason: str
    distractors: list[str]


@dataclass
class Run:
    """Everything a run folder holds; ``notes`` says what was missing or damaged."""

    path: Path
    config: dict[str, Any] = field(default_factory=dict)
    metrics: list[dict[str, Any]] = field(default_factory=list)
    validation: dict[int, list[Scored]] = field(default_factory=dict)
    best: dict[str, Any] = field(default_factory=dict)
    final: dict[str, Any] = field(default_factory=dict)
    audit: dict[str, Any] = field(default_factory=dict)
    evaluation: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def curve(self, name: str) -> tuple[list[int], list[float]]:
        """Return the steps and values of a metric, where it is a finite number."""
        points = [(int(row["step"]), _number(row.get(name))) for row in self.metrics]
        kept = [(step, value) for step, value in points if value is not None]
        return [step for step, _ in kept], [value for _, value in kept]

    def curves(self, name: str) -> list[tuple[list[int], list[float]]]:
        """Return steps and values of a metric that is a list, one pair per place in the list."""
        found: list[tuple[list[int], list[float]]] = []
        for row in self.metrics:
            values = row.get(name)
            for k, item in enumerate(values if isinstance(values, list) else ()):
                while len(found) <= k:
                    found.append(([], []))
                value = _number(item)
                if value is not None:
                    found[k][0].append(int(row["step"]))
                    found[k][1].append(value)
        return found

    def get(self, *names: str) -> Any:
        """Return the first of ``names`` found in the configuration, at any depth, else None."""
        for name in names:
            found = _find(self.config, name)
            if found is not None:
                return found
        return None

    @property
    def first_validation(self) -> int | None:
        """Step of the earliest validation pass."""
        return min(self.validation, default=None)

    @property
    def last_validation(self) -> int | None:
        """Step of the kept checkpoint's validation pass if it is there, else of the latest."""
        best = self.best.get("step")
        return best if best in self.validation else max(self.validation, default=None)


def read_run(path: Path) -> Run:
    """Return the run in ``path``.

    Only ``metrics.jsonl`` or one validation file has to be there; every other gap becomes a note.

    Raises
    ------
    FileNotFoundError
        No such folder, or nothing in it that a trainer wrote.
    """
    if not path.is_dir():
        raise FileNotFoundError(f"run: expected a run folder, got {path}")
    run = Run(path)
    run.config = _read_object(run, "config.json", "the settings of the run are unknown")
    rows = _read_rows(run, "metrics.jsonl")
    by_step = {int(row["step"]): row for row in rows if _number(row.get("step")) is not None}
    if len(by_step) < len(rows):
        run.notes.append("metrics.jsonl repeats steps (a resumed run): the later row counts.")
    run.metrics = [by_step[step] for step in sorted(by_step)]
    for file in sorted((path / "validation").glob("step-*.jsonl")):
        match = _VALIDATION.fullmatch(file.name)
        if match:
            scored = [_scored(row) for row in _read_rows(run, f"validation/{file.name}")]
            if scored:
                run.validation[int(match[1])] = scored
    if not run.metrics and not run.validation:
        raise FileNotFoundError(f"run: expected metrics.jsonl or validation/, got neither: {path}")
    run.best = _read_object(run, "best.json", "no checkpoint was kept yet")
    run.final = _read_object(
        run, "final.json", "the second fixed set was not scored: the run is unfinished or was ended"
    )
    if (path / "audit.json").is_file():
        run.audit = _read_object(run, "audit.json", "the audit cannot be shown")
    if (path / "results.json").is_file():
        run.evaluation = _read_object(run, "results.json", "the evaluation cannot be shown")
    if not run.validation:
        run.notes.append("There is no validation pass: captions and their anatomy cannot be shown.")
    return run


def _read_object(run: Run, name: str, without: str) -> dict[str, Any]:
    file = run.path / name
    if not file.is_file():
        run.notes.append(f"{name} is missing: {without}.")
        return {}
    try:
        read = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        run.notes.append(f"{name} cannot be read ({error}): {without}.")
        return {}
    return read if isinstance(read, dict) else {}


def _read_rows(run: Run, name: str) -> list[dict[str, Any]]:
    file = run.path / name
    if not file.is_file():
        run.notes.append(f"{name} is missing.")
        return []
    rows, damaged = [], 0
    for line in file.read_text(encoding="utf-8", errors="replace").split("\n"):
        if line.strip():
            try:
                rows.append(json.loads(line))
            except ValueError:
                damaged += 1
    if damaged:
        run.notes.append(f"{name}: {damaged} line(s) could not be read and are left out.")
    return [row for row in rows if isinstance(row, dict)]


def _scored(row: Mapping[str, Any]) -> Scored:
    picked = row.get("distractors") != []  # else the questions were not about candidates
    probs = (row.get("probs") or []) if picked else []
    return Scored(
        id=str(row.get("id", "")),
        caption=str(row.get("caption", "")),
        accuracy=_number(row.get("accuracy")) or 0.0,
        picks=[int(pick) for pick in (row.get("picks") or [] if picked else [])],
        probs=[[_number(p) or 0.0 for p in position] for position in probs],
        valid=bool(row.get("valid", True)),
        reason=str(row.get("reason") or ""),
        distractors=[str(id) for id in row.get("distractors") or []],
    )


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


def _find(tree: object, name: str) -> Any:
    if isinstance(tree, dict):
        if tree.get(name) is not None:
            return tree[name]
        for child in tree.values():
            found = _find(child, name)
            if found is not None:
                return found
    return None
