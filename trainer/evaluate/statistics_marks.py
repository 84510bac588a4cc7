"""Paired tests of all captioners against one, corrected as one family: the marks in tables."""

from __future__ import annotations

from typing import Any

from trainer.evaluate.table import Results


def comparisons(results: Results, against: str) -> list[dict[str, Any]]:
    """Rows of results.json: every captioner against one, on every benchmark and metric of both.

    difference: captioner minus the other, over the n series with a value in both; low, high: its
    bootstrap interval; p: of the paired z-test; p_holm: corrected over all rows. Fewer than two
    such series: no row.
    """
    from trainer.evaluate.statistics import compare, family

    names: list[tuple[str, str]] = []
    tests = []
    for (captioner, benchmark, metric), table in results.tables.items():
        other = results.tables.get((against, benchmark, metric))
        if captioner == against or other is None or len(table.values.keys() & other.values) < 2:
            continue
        names.append((captioner, benchmark))
        tests.append(compare(table, other))
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
        for (captioner, benchmark), test in zip(names, family(tests), strict=True)
    ]
