"""Which numbers a caption names, what each one claims, and whether the claim is true of the series.

Everything here is rules over text, no model; they are meant to be readable and to err in the open.
`numerals` finds the times and the values, `ties` the runs, the parts and the time of a value.

* A value of a run claims its step of the run; one of a list of parts, the mean of its part.
* What another value claims is said by the last cue word between the previous value and itself,
  else by the first cue word behind it, within commas: start, end, highest, lowest, mean. Without
  a cue it claims the value at the step named with it; without a step, a cue earlier in the
  sentence counts; without that, only that the series takes the value.

A value is true when it lies within ``RELATIVE_TOLERANCE`` of the series' range of what it claims;
never less than half of the last digit it prints, nor, where the chart has a fixed y-range, than
``AXIS_TOLERANCE`` of that, because a chart cannot be read more finely. Steps count from 0, as the
chart's axis does, and may be off by ``STEP_SLACK``, a run of them as a whole; the start and the
end of the series are where they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainer.report.numerals import Number, numbers
from trainer.report.ties import CUE, Kind, Run, Ties, cue_kind, edge_behind, part_ties, ties

RELATIVE_TOLERANCE = 0.05
AXIS_TOLERANCE = 0.02
STEP_SLACK = 1

Axis = tuple[float, float] | None

_SENTENCE_END = re.compile(r"[;!?\n]|\.(?!\d)")


@dataclass(frozen=True, slots=True)
class Claim:
    """A named value, where it stands, what it is said to be, and the step it is tied to."""

    value: float
    text: str
    kind: Kind
    start: int
    part: tuple[int, int] | None = None  # (index, count): the mean of that quarter or half
    step: int | None = None
    run: Run | None = None


@dataclass(frozen=True, slots=True)
class TimeClaim:
    """A named time position: the ``kind`` of thing it dates, and the ``value``, if named."""

    step: int
    kind: Kind
    value: float | None
    start: int
    text: str


def _sentences(caption: str) -> Iterator[tuple[int, int]]:
    start = 0
    for match in _SENTENCE_END.finditer(caption):
        yield start, match.start()
        start = match.end()
    yield start, len(caption)


def claims(caption: str, n_steps: int) -> tuple[list[Claim], list[TimeClaim]]:
    """Return what a caption says in numbers: claims on values and claims on times, in order."""
    values: list[Claim] = []
    times: list[TimeClaim] = []
    named = numbers(caption, n_steps)
    first = 0
    for begin, end in _sentences(caption):
        last = first
        while last < len(named) and named[last].start < end:
            last += 1
        inside, first = named[first:last], last
        parts = part_ties(caption, begin, inside)
        tied = ties(caption, begin, inside, parts, n_steps)
        owners: dict[int, Claim] = {}
        left = begin
        for i, number in enumerate(inside):
            if number.role == "value":
                stop = inside[i + 1].start if i + 1 < len(inside) else end
                claim = _claim(caption, (left, stop), number, tied, parts.get(number.start))
                values.append(claim)
                if number.start in tied.times:
                    owners.setdefault(tied.times[number.start].start, claim)
                left = edge_behind(caption, number)[1]
        times += _time_claims(caption, begin, inside, owners)
    return values, times


def _claim(
    caption: str, span: tuple[int, int], number: Number, tied: Ties, part: tuple[int, int] | None
) -> Claim:
    """Return the claim of a value, by the words of ``span``: between the numbers around it."""
    (left, stop), time = span, tied.times.get(number.start)
    step = None if time is None else int(time.value)
    if part is not None:
        return Claim(number.value, number.text, "part", number.start, part, step)
    if number.start in tied.runs:
        run, index = tied.runs[number.start]
        step = run.first + index
        return Claim(number.value, number.text, "run", number.start, None, step, run)
    clause = max(left, caption.rfind(",", left, number.start) + 1)
    comma = caption.find(",", number.end, stop)
    near = [
        match
        for match in CUE.finditer(caption, clause, number.start)
        # "starting at step 3 it is 70": the step says where.
        if time is None or match.end() > time.start or match.lastgroup not in ("start", "end")
    ]
    ahead = None if near else CUE.search(caption, number.end, comma if comma >= 0 else stop)
    kind: Kind
    if near or ahead:
        kind = cue_kind(near[-1] if near else ahead)  # type: ignore[arg-type]
    elif step is not None:
        kind = "step"
    else:
        earlier = list(CUE.finditer(caption, left, clause))
        kind = cue_kind(earlier[-1]) if earlier else "any"
    kind = kind if kind != "part" else "any"
    return Claim(number.value, number.text, kind, number.start, None, step)


def _time_claims(
    caption: str, begin: int, inside: list[Number], owners: dict[int, Claim]
) -> list[TimeClaim]:
    claimed: list[TimeClaim] = []
    left = begin
    for number in inside:
        if number.role == "time":
            step = int(number.value)
            owner = owners.get(number.start)
            if owner is not None:
                kind, value = owner.kind, owner.value
            else:
                kinds = [cue_kind(match) for match in CUE.finditer(caption, left, number.start)]
                kind, value = kinds[-1] if kinds else "any", None
            claimed.append(TimeClaim(step, kind, value, number.start, number.text))
        left = number.end
    return claimed


def tolerance(series: NDArray[np.float64], text: str, axis: Axis = None) -> float:
    """Return how far a value printed as ``text`` may lie from the truth, in the series' units."""
    digits = re.sub(r"[eE].*$", "", text)
    decimals = len(digits.partition(".")[2])
    exponent = re.search(r"[eE]([-+]?\d+)$", text)
    last_digit = 10.0 ** ((int(exponent.group(1)) if exponent else 0) - decimals)
    spread = float(series.max() - series.min())
    seen = AXIS_TOLERANCE * (axis[1] - axis[0]) if axis else 0.0
    return max(RELATIVE_TOLERANCE * spread, 0.5 * last_digit, seen) * (1 + 1e-9)


def _around(series: NDArray[np.float64], step: int) -> NDArray[np.float64]:
    return series[max(0, step - STEP_SLACK) : max(0, step + STEP_SLACK + 1)]


def _shift(run: Run, step: int, series: NDArray[np.float64], axis: Axis) -> int:
    """Return by how many steps a run that reaches ``step`` fits ``series`` best when shifted."""
    n = len(series)
    if run.exact or not -STEP_SLACK <= step < n + STEP_SLACK:
        return 0
    # What lies further out is not true under any shift.
    told = list(zip(run.values, run.texts, strict=True))[: n + 2 * STEP_SLACK]
    near = [tolerance(series, text, axis) for _, text in told]

    def hits(shift: int) -> int:
        steps = range(run.first + shift, run.first + shift + len(told))
        return sum(
            0 <= at < n and abs(series[at] - value) <= slack
            for at, (value, _), slack in zip(steps, told, near, strict=True)
        )

    return max(sorted(range(-STEP_SLACK, STEP_SLACK + 1), key=abs), key=hits)


def value_is_true(claim: Claim, series: NDArray[np.float64], axis: Axis = None) -> bool:
    """Return whether a claimed value is true of ``series`` [T]; ``axis``: the fixed y-range."""
    if claim.kind == "start":
        truth = series[:1]
    elif claim.kind == "end":
        truth = series[-1:]
    elif claim.kind == "max":
        truth = np.array([series.max()])
    elif claim.kind == "min":
        truth = np.array([series.min()])
    elif claim.kind == "mean":
        truth = np.array([series.mean()])
    elif claim.kind == "part" and claim.part is not None:
        index, count = claim.part
        pieces = np.array_split(series, count)
        truth = np.array([pieces[index].mean()]) if pieces[index].size else series[:0]
    elif claim.kind == "run" and claim.run is not None and claim.step is not None:
        step = claim.step + _shift(claim.run, claim.step, series, axis)
        truth = series[step : step + 1] if step >= 0 else series[:0]
    elif claim.kind == "step" and claim.step is not None:
        truth = _around(series, claim.step) if claim.step < len(series) + STEP_SLACK else series[:0]
    else:
        truth = series
    return bool(np.any(np.abs(truth - claim.value) <= tolerance(series, claim.text, axis)))


def time_is_true(claim: TimeClaim, series: NDArray[np.float64], axis: Axis = None) -> bool | None:
    """Return whether what a time dates is there in ``series`` [T]; None: nothing to check."""
    near = _around(series, claim.step)
    slack = tolerance(series, "0.0000000001", axis)
    if claim.kind in ("max", "min"):
        extreme = series.max() if claim.kind == "max" else series.min()
        return bool(near.size and np.any(np.abs(near - extreme) <= slack))
    if claim.value is not None and claim.kind in ("step", "run", "start", "end"):
        return bool(near.size and np.any(np.abs(near - claim.value) <= slack))
    return None
