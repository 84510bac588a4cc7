"""Ratios of CPU time in one interleaved run, and the file that keeps them."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "latest.json"
KEY = ("piece", "size", "peer")


def cpu_times(contenders: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median CPU seconds of each contender, run in turns: all once, all a second time, …"""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, run in contenders.items():
            began = time.process_time()
            run()
            seconds[name].append(time.process_time() - began)
    return {name: statistics.median(values) for name, values in seconds.items()}


def ratio(
    ours: Callable[[], object],
    peer: Callable[[], object],
    *,
    items: tuple[int, int] = (1, 1),
    rounds: int = 7,
) -> float:
    """How many times less CPU time ours needs per item: both in turn, medians of the rounds.

    items: how many items one call of ours and one call of the peer works on.
    """
    ours(), peer()  # what is made on first use is made here
    times = cpu_times({"ours": ours, "peer": peer}, rounds)
    return (times["peer"] / items[1]) / (times["ours"] / items[0])


def row(
    piece: str,
    size: str,
    peer: str,
    ratio: float,
    must: float | None,
    goal: float | None,
    equal: str,
) -> None:
    """Keep a row; one of the same piece, size and peer is replaced.

    must, goal: None for a peer that is only there for the record. equal: what was asserted about
    the two results before they were timed.
    """
    rows = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else []
    new = {
        "piece": piece,
        "size": size,
        "peer": peer,
        "ratio": round(ratio, 2),
        "must": must,
        "goal": goal,
        "equal": equal,
    }
    rows = [old for old in rows if [old[k] for k in KEY] != [new[k] for k in KEY]]
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps([*rows, new], indent=1) + "\n", encoding="utf-8")
    if must is None or goal is None:
        verdict = "for the record"
    else:
        reached = "goal" if ratio >= goal else "must" if ratio >= must else "MISSED"
        verdict = f"must {must:g} goal {goal:g}  {reached}"
    print(f"{piece:32} {size:22} {peer:28} {ratio:8.1f}x  {verdict}")
