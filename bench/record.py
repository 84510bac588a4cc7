"""Ratios of CPU time in one interleaved run, and the file that keeps them."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "latest.json"
KEY = ("piece", "size", "peer")


def cpu_seconds(run: Callable[[], object]) -> float:
    """CPU seconds of the calling thread for one call."""
    start = time.thread_time()
    run()
    return time.thread_time() - start


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
    times = [(cpu_seconds(ours), cpu_seconds(peer)) for _ in range(rounds)]
    own, other = (statistics.median(column) for column in zip(*times, strict=True))
    return (other / items[1]) / (own / items[0])


def row(
    piece: str, size: str, peer: str, ratio: float, must: float, goal: float, equal: str
) -> None:
    """Keep a row; one of the same piece, size and peer is replaced.

    equal: what was asserted about the two results before they were timed.
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
    verdict = "goal" if ratio >= goal else "must" if ratio >= must else "MISSED"
    print(f"{piece:32} {size:22} {peer:28} {ratio:8.1f}x  must {must:g} goal {goal:g}  {verdict}")
