"""Timing of contenders in one process, and the rows that come of it."""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True)
class Row:
    """How many times less CPU time than a peer ours took, and what it should be."""

    piece: str
    size: str
    peer: str
    ratio: float
    must: float | None
    goal: float | None
    equal: str  # what was compared before the timing


ROWS: list[Row] = []


def cpu_times(contenders: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median CPU seconds of each contender, run in turns: all once, all a second time, …"""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, run in contenders.items():
            began = time.process_time()
            run()
            seconds[name].append(time.process_time() - began)
    return {name: statistics.median(values) for name, values in seconds.items()}


def add(row: Row) -> None:
    """Keep a row and print it."""
    ROWS.append(row)
    wanted = "for the record" if row.must is None else f"must {row.must:g}, goal {row.goal:g}"
    print(f"{row.piece} | {row.size} | {row.peer} | {row.ratio:.1f}x | {wanted} | {row.equal}")


def write(path: Path) -> None:
    """All rows so far as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([asdict(row) for row in ROWS], indent=1) + "\n", encoding="utf-8")
