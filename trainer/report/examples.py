"""The series the page shows one by one: chart, captions, candidates and the verifier's picks."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from lineup_fast import charts
from trainer.report.claims import Axis, claims, time_is_true, value_is_true
from trainer.report.run import Run, Scored

SPARK_WIDTH, SPARK_HEIGHT = 160.0, 40.0
_PAD = 3.0
# What a browser would drop without a word; line breaks and tabs are shown as such.
_CONTROL_PICTURES = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"}


class SeriesSource(Protocol):
    """What the report needs of a corpus."""

    def series(self, item: str, /) -> NDArray[np.float64]:
        """Return the values [T] of an item."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of a caption; ``verdict``: true, false, unchecked (a number) or "" (plain text)."""

    text: str
    verdict: str


@dataclass(frozen=True, slots=True)
class Cell:
    """Probability of a letter; ``hit``: the target's letter, ``picked``: the verifier's answer."""

    prob: float
    hit: bool
    picked: bool


@dataclass(frozen=True, slots=True)
class Told:
    """A caption at one moment of the run and how the verifier read it."""

    label: str
    pieces: list[Piece]
    accuracy: float
    valid: bool
    reason: str
    table: list[list[Cell]]
    candidate_probs: list[float]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One candidate as a sparkline on the scale all candidates of the set share."""

    points: str
    target: bool
    first: str
    last: str
    probs: list[float]


@dataclass(frozen=True, slots=True)
class Example:
    """One series of the page; ``chart`` is a PNG data URI, "" when it cannot be drawn."""

    id: str
    facts: list[str]
    chart: str
    width: int
    height: int
    letters: list[str]
    candidates: list[Candidate]
    told: list[Told]


def chosen(rows: Sequence[Scored], count: int) -> list[int]:
    """Return ``count`` indices spread evenly over ``rows``: fixed by the validation set alone."""
    count = min(count, len(rows))
    return [int((2 * i + 1) * len(rows) / (2 * count)) for i in range(count)]


def examples(
    run: Run, corpus: SeriesSource | None, style: charts.ChartStyle | None, count: int
) -> list[Example]:
    """Return ``count`` fixed validation series with their captions at the start and at the end."""
    first, last = run.first_validation, run.last_validation
    if first is None or last is None:
        return []
    moments = [("start", first)] if first == last else [("start", first), ("end", last)]
    starting = run.validation[first]
    by_id = {step: {row.id: row for row in run.validation[step]} for _, step in moments}
    shown = []
    for index in chosen(starting, count):
        id = starting[index].id
        rows = [
            (f"{name}, step {step:,}", by_id[step][id])
            for name, step in moments
            if id in by_id[step]
        ]
        shown.append(_example(id, rows, corpus, style))
    return shown


def _example(
    id: str,
    rows: list[tuple[str, Scored]],
    corpus: SeriesSource | None,
    style: charts.ChartStyle | None,
) -> Example:
    ids = [id, *rows[0][1].distractors]
    series = [_series(corpus, each) for each in ids]
    target = series[0]
    chart, width, height = "", 0, 0
    if target is not None and style is not None:
        chart, (width, height) = _chart(target, style), (style.width, style.height)
    axis = style.y_limits if style is not None else None
    told = [_told(label, row, target, axis) for label, row in rows]
    same_set = all(row.distractors == ids[1:] for _, row in rows)
    candidates = _candidates(series, told if same_set else told[:1])
    facts = [] if target is None else [f"{len(target)} steps"]
    meta = getattr(corpus, "meta", None)
    if meta is not None and target is not None:
        item = meta(id)
        facts = [str(item.domain or ""), str(item.source), *facts, f"from {item.start:,}"]
    letters = [chr(ord("A") + i) for i in range(len(ids))]
    return Example(id, [f for f in facts if f], chart, width, height, letters, candidates, told)


def _series(corpus: SeriesSource | None, id: str) -> NDArray[np.float64] | None:
    if corpus is None:
        return None
    try:
        return np.asarray(corpus.series(id), dtype=np.float64)
    except (KeyError, ValueError):
        return None


def _chart(series: NDArray[np.float64], style: charts.ChartStyle) -> str:
    image = charts.png(charts.render([series], style, threads=1)[0])
    return "data:image/png;base64," + base64.b64encode(image).decode()


def _told(label: str, row: Scored, target: NDArray[np.float64] | None, axis: Axis) -> Told:
    table = [
        [Cell(prob, column == position, column == pick) for column, prob in enumerate(probs)]
        for position, (probs, pick) in enumerate(zip(row.probs, row.picks, strict=False))
    ]
    return Told(
        label=label,
        pieces=marked(row.caption, target, axis),
        reason=row.reason,
        accuracy=row.accuracy,
        valid=row.valid,
        table=table,
        candidate_probs=candidate_probs(row.probs),
    )


def candidate_probs(probs: Sequence[Sequence[float]]) -> list[float]:
    """Return the mean probability of each candidate, target first, from ``probs`` [K, K].

    Row p has the target at letter p and the distractors, in their order, at the other letters.
    """
    k = len(probs)
    if not k or any(len(row) != k for row in probs):
        return []
    sums = [0.0] * k
    for position, row in enumerate(probs):
        others = [prob for letter, prob in enumerate(row) if letter != position]
        for candidate, prob in enumerate([row[position], *others]):
            sums[candidate] += prob / k
    return sums


def marked(caption: str, series: NDArray[np.float64] | None, axis: Axis = None) -> list[Piece]:
    """Return ``caption`` cut at its checked numbers, each with its verdict for ``series`` [T]."""
    caption = caption.translate(_CONTROL_PICTURES)
    if series is None:
        return [Piece(caption, "")]
    values, times = claims(caption, len(series))
    words = {True: "true", False: "false", None: "unchecked"}
    verdicts = [(c.start, c.text, words[value_is_true(c, series, axis)]) for c in values]
    verdicts += [(c.start, c.text, words[time_is_true(c, series, axis)]) for c in times]
    pieces, done = [], 0
    for start, text, verdict in sorted(verdicts):
        pieces += [Piece(caption[done:start], ""), Piece(text, verdict)]
        done = start + len(text)
    pieces.append(Piece(caption[done:], ""))
    return [piece for piece in pieces if piece.text]


def _candidates(series: list[NDArray[np.float64] | None], told: list[Told]) -> list[Candidate]:
    if any(values is None for values in series):
        return []
    known = [values for values in series if values is not None]
    low = min(float(values.min()) for values in known)
    high = max(float(values.max()) for values in known)
    return [
        Candidate(
            points=sparkline(values, low, high),
            target=index == 0,
            first=f"{values[0]:g}",
            last=f"{values[-1]:g}",
            probs=[t.candidate_probs[index] for t in told if index < len(t.candidate_probs)],
        )
        for index, values in enumerate(known)
    ]


def sparkline(values: NDArray[np.float64], low: float, high: float) -> str:
    """Return SVG polyline points of ``values`` [T] between ``low`` and ``high``."""
    width, height = SPARK_WIDTH - 2 * _PAD, SPARK_HEIGHT - 2 * _PAD
    x = _PAD + np.linspace(0.0, 1.0, len(values)) * width
    spread = high - low
    level = (values - low) / spread if spread > 0 else np.full(len(values), 0.5)
    y = _PAD + (1.0 - level) * height
    return " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
