"""Paired tests of all captioners against one, corrected table by table: the marks in them."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from trainer.evaluate.table import Results
from trainer.report.evaluation import title_of


def comparisons(results: Results, against: str) -> list[dict[str, Any]]:
    """Rows of results.json: every captioner against one, on every benchmark and metric of both.

    difference: captioner minus the other, over the n series with a value in both; low, high: its
    bootstrap interval; p: of the paired z-test; p_holm: corrected over the captioners and columns
    that stand in one table, as in the paper. No row: fewer than two such series, or a metric that
    is neither better high nor low.
    """
    from trainer.evaluate.statistics import Comparison, compare, family

    tests: dict[str, list[tuple[str, str, Comparison]]] = defaultdict(list)
    for (captioner, benchmark, metric), table in results.tables.items():
        other = results.tables.get((against, benchmark, metric))
        if captioner == against or other is None or table.meta.get("better") == "neither":
            continue
        if len(table.values.keys() & other.values) >= 2:
            tests[title_of(metric)].append((captioner, benchmark, compare(table, other)))
    return [
        {
            "captioner": captioner,
            "against": against,
            "benchmark": benchmark,
            "metric": test.metric,
            "n": test.n,
            "difference": test.difference,
            "low": test.low,
            "high": test.high,
            "p": test.p,
            "p_holm": test.p_holm,
        }
        for some in tests.values()
        for (captioner, benchmark, _), test in zip(some, family([t for *_, t in some]), strict=True)
    ]
