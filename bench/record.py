"""Ratios of CPU time, and the rows, the table and the file of one run.

A run that times anything writes ``bench/results/latest.json`` anew when it ends, with what it
measured and nothing else::

    {"machine": {...},                                    see bench/machine.py
     "rows": [{"piece", "size", "peer", "ratio", "must", "goal", "equal"}, ...]}

``ratio``: how many times less CPU time ours takes. ``must``, ``goal``: the least and the wanted
ratio, null for a peer that is there for the record. ``equal``: what was asserted about the two
results before they were timed. A run with a ratio below its ``must`` fails.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

RESULTS = Path(__file__).parent / "results" / os.environ.get("BENCH_RESULTS", "latest.json")
Call = Callable[[], object]


class Ratio(NamedTuple):
    """Times less CPU time: of the medians, and the quartiles of the ratios of single rounds."""

    value: float
    low: float
    high: float


class Row(NamedTuple):
    """One line of the table."""

    piece: str
    size: str
    peer: str
    ratio: Ratio
    must: float | None
    goal: float | None
    equal: str

    @property
    def missed_must(self) -> bool:
        return self.must is not None and self.ratio.value < self.must

    @property
    def verdict(self) -> str:
        for name, bound in (("MUST", self.must), ("goal", self.goal)):
            if bound is not None and self.ratio.value < bound:
                return f"{name} missed by {1 - self.ratio.value / bound:.1%}"
        return "for the record" if self.must is None and self.goal is None else "met"


ROWS: list[Row] = []  # of this run


def seconds_of(run: Call) -> float:
    """CPU seconds of one call, all threads together."""
    began = time.process_time()
    run()
    return time.process_time() - began


def cpu_times(contenders: Mapping[str, Call], rounds: int) -> dict[str, float]:
    """Median CPU seconds of each contender, run in turns: all once, all a second time, …"""
    turns = [[seconds_of(run) for run in contenders.values()] for _ in range(rounds)]
    return dict(zip(contenders, map(statistics.median, zip(*turns, strict=True)), strict=True))


def _ratio(ours: Sequence[float], peer: Sequence[float], items: tuple[int, int]) -> Ratio:
    scale = items[0] / items[1]
    value = statistics.median(peer) / statistics.median(ours) * scale
    rounds = [theirs / own * scale for own, theirs in zip(ours, peer, strict=True)]
    if len(rounds) < 2:
        return Ratio(value, value, value)
    low, _, high = statistics.quantiles(rounds, n=4, method="inclusive")
    return Ratio(value, low, high)


def ratio(ours: Call, peer: Call, *, items: tuple[int, int] = (1, 1), rounds: int = 7) -> Ratio:
    """How many times less CPU time ours needs per item: both in turn, medians of the rounds.

    items: how many items one call of ours and one call of the peer works on.
    """
    ours(), peer()  # what is made on first use is made here
    turns = [(seconds_of(peer), seconds_of(ours)) for _ in range(rounds)]
    theirs, own = zip(*turns, strict=True)
    return _ratio(own, theirs, items)


def race(
    benchmark: Any,
    ours: Call,
    peer: Call,
    *,
    items: tuple[int, int] = (1, 1),
    rounds: int = 7,
    warmup: bool = True,
) -> Ratio | None:
    """The same, ours timed by pytest-benchmark's fixture, the peer before each of its rounds.

    warmup: False where both have run before. Under --benchmark-disable both run once, and there is
    no ratio.
    """
    theirs: list[float] = []
    benchmark.pedantic(
        ours,
        setup=lambda: theirs.append(seconds_of(peer)),
        rounds=rounds,
        warmup_rounds=int(warmup),
    )
    if benchmark.disabled:
        return None
    return _ratio(benchmark.stats.stats.data, theirs[int(warmup) :], items)


def row(
    piece: str,
    size: str,
    peer: str,
    got: Ratio | float | None,
    must: float | None,
    goal: float | None,
    equal: str,
) -> None:
    """Keep a row of this run; nothing where nothing was timed (``got`` is None).

    must, goal: None for a peer that is only there for the record. equal: what was asserted about
    the two results before they were timed.
    """
    if got is not None:
        measured = got if isinstance(got, Ratio) else Ratio(got, got, got)
        ROWS.append(Row(piece, size, peer, measured, must, goal, equal))


def write(path: Path, machine: dict[str, Any], rows: Sequence[Row]) -> None:
    """The file of a run, in place of the one before."""
    plain = [{**line._asdict(), "ratio": round(line.ratio.value, 2)} for line in rows]
    path.parent.mkdir(exist_ok=True)
    path.write_text(
        json.dumps({"machine": machine, "rows": plain}, indent=1, ensure_ascii=False) + "\n",
        encoding="utf-8",
    )


def figure(value: float) -> str:
    """A ratio for people."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def table(rows: Sequence[Row]) -> str:
    """All rows of a run in columns."""
    lines = [("piece", "size", "peer", "times faster", "quartiles", "must", "goal", "", "equal")]
    for line in rows:
        got = line.ratio
        spread = "" if got.low == got.high else f"{figure(got.low)} to {figure(got.high)}"
        must, goal = ("" if x is None else f"{x:g}" for x in (line.must, line.goal))
        shown = (line.piece, line.size, line.peer, figure(got.value), spread, must, goal)
        lines.append((*shown, line.verdict, line.equal))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if 3 <= i <= 6 else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
