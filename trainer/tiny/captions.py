"""Template captions of a series of whole numbers, true up to a noise that the caller sets.

Steps are counted from 0, as on the x axis of the charts. Every caption is a pure function of the
series, its arguments and the state of ``rng``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

KINDS = ("start", "direction", "high", "low", "quarters", "selected", "end")
LOW, HIGH = 0, 100
# A change of the end against the start below this many units is called flat.
FLAT = 5.0

WORDING: dict[str, tuple[str, ...]] = {
    "start": (
        "starts at {v}",
        "begins at {v}",
        "opens at {v}",
        "first value {v}",
        "start {v}",
        "it starts near {v}",
    ),
    "end": (
        "ends at {v}",
        "finishes at {v}",
        "closes at {v}",
        "last value {v}",
        "end {v}",
        "it ends near {v}",
    ),
    "high": (
        "peaks at {v} at step {t}",
        "highest {v} at step {t}",
        "maximum {v} (step {t})",
        "tops out at {v} around step {t}",
        "peak {v} at step {t}",
        "reaches a high of {v} near step {t}",
    ),
    "low": (
        "dips to {v} at step {t}",
        "lowest {v} at step {t}",
        "minimum {v} (step {t})",
        "bottoms out at {v} around step {t}",
        "low {v} at step {t}",
        "falls to a low of {v} near step {t}",
    ),
    "quarters": (
        "quarters near {a}, {b}, {c}, {d}",
        "quarter levels {a}, {b}, {c}, {d}",
        "averages by quarter: {a}, {b}, {c}, {d}",
        "its quarters sit around {a}, {b}, {c}, {d}",
        "level about {a}, then {b}, then {c}, then {d}",
        "first quarter near {a}, second {b}, third {c}, last {d}",
    ),
    "selected": (
        "at {t}: {v}",
        "step {t}: {v}",
        "{v} at step {t}",
        "at step {t} it is {v}",
    ),
    "up": ("rises overall", "trends up", "climbs on the whole", "it goes up"),
    "down": ("falls overall", "trends down", "declines on the whole", "it goes down"),
    "flat": (
        "roughly flat overall",
        "no clear trend",
        "ends about where it began",
        "it stays level",
    ),
}

VAGUE_OPENINGS = (
    "The series",
    "The line",
    "The chart shows a series that",
    "This series",
    "A time series that",
    "The value",
)
VAGUE_SHAPES: dict[str, tuple[str, ...]] = {
    "up": ("moves higher over time", "rises", "drifts upward", "grows toward the end"),
    "down": ("moves lower over time", "falls", "drifts downward", "shrinks toward the end"),
    "flat": ("shows little change", "returns to its level", "hovers", "wanders without a trend"),
}
VAGUE_ENDINGS = (
    "",
    " with some ups and downs",
    ", with small fluctuations",
    ", with a clear peak",
    " and varies",
)
EMPTY_TALK = (
    "A line chart of one time series.",
    "The chart shows a time series.",
    "No further details.",
    "Values change over time.",
    "It is a series of numbers.",
)


@dataclass(frozen=True)
class Facts:
    """What a caption can tell of one series: values in its units, steps counted from 0."""

    start: float
    end: float
    high: float
    high_step: int
    low: float
    low_step: int
    quarters: tuple[float, float, float, float]
    direction: str


def facts_of(series: NDArray[np.float64]) -> Facts:
    """Return the facts of ``series`` f64[T], T ≥ 4; ties of an extreme go to the first step.

    The direction is "up", "down" or "flat" by the end against the start; a quarter's level is its
    mean. Raises ValueError for shorter or non-finite series.
    """
    values = np.asarray(series, dtype=np.float64)
    if values.ndim != 1 or values.size < 4 or not np.isfinite(values).all():
        raise ValueError(f"series: expected at least 4 finite values, got shape {values.shape}")
    change = float(values[-1] - values[0])
    means = [float(part.mean()) for part in np.array_split(values, 4)]
    return Facts(
        start=float(values[0]),
        end=float(values[-1]),
        high=float(values.max()),
        high_step=int(values.argmax()),
        low=float(values.min()),
        low_step=int(values.argmin()),
        quarters=(means[0], means[1], means[2], means[3]),
        direction="flat" if abs(change) < FLAT else ("up" if change > 0 else "down"),
    )


def _spoken(value: float, noise: float, rng: np.random.Generator) -> int:
    """Return ``value`` as told: with noise of the given σ, whole, inside 0..100."""
    shift = rng.normal(0.0, noise) if noise > 0 else 0.0
    # Half up, not half to even: what a reader would expect of a level of 42.5.
    return int(np.clip(np.floor(value + shift + 0.5), LOW, HIGH))


def _step(step: int, length: int, noise: float, rng: np.random.Generator) -> int:
    shift = rng.normal(0.0, noise) if noise > 0 else 0.0
    return int(np.clip(np.floor(step + shift + 0.5), 0, length - 1))


def _pick(kind: str, rng: np.random.Generator, wording: int | None) -> str:
    choices = WORDING[kind]
    return choices[int(rng.integers(len(choices))) if wording is None else wording % len(choices)]


def phrases(
    series: NDArray[np.float64],
    rng: np.random.Generator,
    *,
    kinds: Sequence[str],
    noise: float = 0.0,
    step_noise: float = 0.0,
    selected: int = 2,
    wording: int | None = None,
) -> list[str]:
    """Return one phrase per fact of ``kinds`` (``selected`` phrases for "selected"), in order.

    ``noise`` is the σ of told values in units of the series, ``step_noise`` that of told steps.
    ``wording`` fixes the paraphrase; None draws one per fact.
    """
    facts, length = facts_of(series), int(np.size(series))
    told: list[str] = []
    for kind in kinds:
        if kind not in KINDS:
            raise ValueError(f"kinds: expected names of {KINDS}, got {kind!r}")
        if kind == "direction":
            told.append(_pick(facts.direction, rng, wording))
        elif kind in ("start", "end"):
            value = facts.start if kind == "start" else facts.end
            told.append(_pick(kind, rng, wording).format(v=_spoken(value, noise, rng)))
        elif kind in ("high", "low"):
            value, step = (
                (facts.high, facts.high_step) if kind == "high" else (facts.low, facts.low_step)
            )
            text = _pick(kind, rng, wording)
            told.append(
                text.format(v=_spoken(value, noise, rng), t=_step(step, length, step_noise, rng))
            )
        elif kind == "quarters":
            levels = [_spoken(level, noise, rng) for level in facts.quarters]
            told.append(_pick(kind, rng, wording).format(**dict(zip("abcd", levels, strict=True))))
        else:
            steps = np.sort(rng.permutation(length)[: min(selected, length)])
            template = _pick(kind, rng, wording)
            told += [
                template.format(v=_spoken(float(series[step]), noise, rng), t=int(step))
                for step in steps
            ]
    return told


def join(told: Sequence[str], rng: np.random.Generator, style: int | None = None) -> str:
    """Return the phrases as one text: sentences (style 0), commas (1) or semicolons (2)."""
    style = int(rng.integers(3)) if style is None else style
    if not told:
        return ""
    if style == 0:
        return ". ".join(phrase[:1].upper() + phrase[1:] for phrase in told) + "."
    text = (", " if style == 1 else "; ").join(told)
    return text[:1].upper() + text[1:] + "."


def full(
    series: NDArray[np.float64],
    rng: np.random.Generator,
    *,
    noise: float = 0.0,
    step_noise: float = 0.0,
    selected: int = 2,
    wording: int | None = None,
    style: int | None = None,
) -> str:
    """Return a caption that tells every kind of fact, in time order of telling.

    This is the caption that the verifier's accuracy is measured with; at most 48 tokens.
    """
    told = phrases(
        series,
        rng,
        kinds=KINDS,
        noise=noise,
        step_noise=step_noise,
        selected=selected,
        wording=wording,
    )
    return join(told, rng, style)


def partial(
    series: NDArray[np.float64],
    rng: np.random.Generator,
    *,
    noise: float = 0.0,
    step_noise: float = 0.0,
    least: int = 1,
) -> str:
    """Return a caption that tells a random subset of the facts, half the time in random order."""
    count = int(rng.integers(least, len(KINDS) + 1))
    chosen = np.sort(rng.permutation(len(KINDS))[:count])
    if rng.random() < 0.5:
        chosen = rng.permutation(chosen)
    told = phrases(
        series,
        rng,
        kinds=[KINDS[i] for i in chosen],
        noise=noise,
        step_noise=step_noise,
        selected=int(rng.integers(1, 5)),
    )
    return join(told, rng)


def vague(series: NDArray[np.float64], rng: np.random.Generator) -> str:
    """Return a true caption without a number: an opening, the direction, a colourless ending."""
    opening = VAGUE_OPENINGS[int(rng.integers(len(VAGUE_OPENINGS)))]
    shapes = VAGUE_SHAPES[facts_of(series).direction]
    ending = VAGUE_ENDINGS[int(rng.integers(len(VAGUE_ENDINGS)))]
    return f"{opening} {shapes[int(rng.integers(len(shapes)))]}{ending}."


def empty_talk(rng: np.random.Generator) -> str:
    """Return a sentence that is true of any series."""
    return EMPTY_TALK[int(rng.integers(len(EMPTY_TALK)))]
