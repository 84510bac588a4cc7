"""Claim check: the share of the numbers and times a caption names that are true of its series.

By rules over text (`trainer.report.claims`), no model. It stands beside every other metric, because
a caption can be identified without each of its statements being right.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from trainer.evaluate.table import Table, UnmeasuredError
from trainer.report.anatomy import CaptionCheck, check, other_series
from trainer.report.claims import AXIS_TOLERANCE, RELATIVE_TOLERANCE, STEP_SLACK, Axis

if TYPE_CHECKING:
    from trainer.evaluate.benchmark import Benchmark

METRIC = "claims"
UNTOLD = "names no number or time that can be checked"


def claim_check(captions: Mapping[str, str], benchmark: Benchmark, axis: Axis = None) -> Table:
    """By series the share of checked values and times that are true; its mean over captions.

    captions: by id, one for every series of the benchmark. axis: y-range of the charts the
    captioner saw, where it is fixed. Captions that name nothing are in `missing`.
    Control `another_series`: the same captions held against the next series of equal length, which
    is what such sentences get right by luck.

    Raises:
        UnmeasuredError: no caption names anything.
    """
    ids = benchmark.ids
    series = [benchmark.series(id_) for id_ in ids]
    own = [check(captions[i], x, axis) for i, x in zip(ids, series, strict=True)]
    values = {i: s for i, c in zip(ids, own, strict=True) if (s := share(c)) is not None}
    if not values:
        raise UnmeasuredError("no caption names a number or time that can be checked")
    luck = [
        s
        for i, j in other_series(series)
        if (s := share(check(captions[ids[i]], series[j], axis))) is not None
    ]
    named = [c.n_values + c.n_times for c in own]
    return Table(
        METRIC,
        values,
        controls={"another_series": sum(luck) / len(luck)} if luck else {},
        meta={
            "values_true": _pooled(own, "true_values", "n_values"),
            "times_true": _pooled(own, "true_times", "checked_times"),
            "named_per_caption": sum(named) / len(named),
            "tolerance": RELATIVE_TOLERANCE,
            "axis_tolerance": AXIS_TOLERANCE if axis else None,
            "step_slack": STEP_SLACK,
        },
        missing={id_: UNTOLD for id_ in ids if id_ not in values},
    )


def share(counts: CaptionCheck) -> float | None:
    """True claims over checked ones; None: nothing to check."""
    checked = counts.n_values + counts.checked_times
    return (counts.true_values + counts.true_times) / checked if checked else None


def _pooled(checks: list[CaptionCheck], part: str, whole: str) -> float | None:
    total = sum(getattr(c, whole) for c in checks)
    return sum(getattr(c, part) for c in checks) / total if total else None
