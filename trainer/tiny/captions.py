"""Template captions of a series of whole numbers, true up to a noise that the caller sets.

Steps are counted from 0, as on the x axis of the charts. Every caption is a pure function of the
series, its arguments and the state of ``rng``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

KINDS = ("start", "direction", "high", "low", "quarters", "run", "selected", "end")
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
    "start_run": (
        "starts {r}",
        "opens with {r}",
        "first values {r}",
        "begins {r}",
    ),
    "end_run": (
        "ends {r}",
        "closes with {r}",
        "last values {r}",
        "finishes {r}",
    ),
    "run": (
        "from step {t}: {r}",
        "step {t} on: {r}",
        "from step {t} it goes {r}",
        "{r} from step {t}",
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


class Told(NamedTuple):
    """A text and, for each number in it, the step of the series that it speaks of; -1: none."""

    text: str
    steps: tuple[int, ...]


@dataclass(frozen=True)
class _Teller:
    """One series on its way into words: the noise of values and steps, the wording (None: any)."""

    series: NDArray[np.float64]
    rng: np.random.Generator
    noise: float
    step_noise: float
    wording: int | None

    def value(self, value: float) -> int:
        """Return a value as told: with noise, whole (half up, as a reader expects), in range."""
        shift = self.rng.normal(0.0, self.noise) if self.noise > 0 else 0.0
        return int(np.clip(np.floor(value + shift + 0.5), LOW, HIGH))

    def step(self, step: int) -> int:
        """Return a step as told."""
        shift = self.rng.normal(0.0, self.step_noise) if self.step_noise > 0 else 0.0
        return int(np.clip(np.floor(step + shift + 0.5), 0, len(self.series) - 1))

    def pick(self, kind: str) -> str:
        """Return a paraphrase of a kind of fact."""
        choices = WORDING[kind]
        drawn = int(self.rng.integers(len(choices)))
        return choices[drawn if self.wording is None else self.wording % len(choices)]

    def at(self, kind: str, step: int) -> Told:
        """Return one value and its step; the mark stands at whichever comes second."""
        template = self.pick(kind)
        text = template.format(v=self.value(float(self.series[step])), t=self.step(step))
        return Told(text, (-1, step) if "{t}" in template else (step,))

    def run(self, kind: str, first: int, count: int) -> Told:
        """Return ``count`` consecutive values, separated as in the verifier's candidates."""
        steps = tuple(range(first, first + count))
        values = ", ".join(str(self.value(float(self.series[step]))) for step in steps)
        template = self.pick(kind)
        text = template.format(r=values, t=self.step(first))
        if "{t}" not in template:
            return Told(text, steps)
        front = template.index("{t}") < template.index("{r}")
        return Told(text, (-1, *steps) if front else (*steps, first))


def _tell(teller: _Teller, kinds: Sequence[str], selected: int, run: int) -> list[Told]:
    series, rng, length = teller.series, teller.rng, len(teller.series)
    facts, told = facts_of(series), list[Told]()
    for kind in kinds:
        if kind == "direction":
            told.append(Told(teller.pick(facts.direction), ()))
        elif kind in ("start", "end"):
            if run > 1 and rng.random() < 0.7:
                first = 0 if kind == "start" else length - run
                told.append(teller.run(f"{kind}_run", first, run))
            else:
                told.append(teller.at(kind, 0 if kind == "start" else length - 1))
        elif kind in ("high", "low"):
            step = facts.high_step if kind == "high" else facts.low_step
            told.append(teller.at(kind, step))
        elif kind == "quarters":
            levels = dict(zip("abcd", map(teller.value, facts.quarters), strict=True))
            told.append(Told(teller.pick(kind).format(**levels), (-1,) * 4))
        elif kind == "run":
            count = min(max(2, run), length)
            told.append(teller.run(kind, int(rng.integers(length - count + 1)), count))
        elif kind == "selected":
            steps = np.sort(rng.permutation(length)[: min(selected, length)])
            template = teller.pick(kind)
            fixed = replace(teller, wording=WORDING[kind].index(template))
            told += [fixed.at(kind, int(step)) for step in steps]
        else:
            raise ValueError(f"kinds: expected names of {KINDS}, got {kind!r}")
    return told


def _join(told: Sequence[Told], rng: np.random.Generator, style: int | None = None) -> Told:
    text = join([part.text for part in told], rng, style)
    return Told(text, tuple(step for part in told for step in part.steps))


def phrases(
    series: NDArray[np.float64],
    rng: np.random.Generator,
    *,
    kinds: Sequence[str],
    noise: float = 0.0,
    step_noise: float = 0.0,
    selected: int = 2,
    run: int = 3,
    wording: int | None = None,
) -> list[str]:
    """Return one phrase per fact of ``kinds`` (``selected`` phrases for "selected"), in order.

    ``noise`` is the σ of told values in units of the series, ``step_noise`` that of told steps.
    ``run`` consecutive values are told by "run" and often by "start" and "end" (1: never there).
    ``wording`` fixes the paraphrase; None draws one per fact.
    """
    teller = _Teller(series, rng, noise, step_noise, wording)
    return [part.text for part in _tell(teller, kinds, selected, run)]


def join(told: Sequence[str], rng: np.random.Generator, style: int | None = None) -> str:
    """Return the phrases as one text: sentences (style 0), commas (1) or semicolons (2)."""
    style = int(rng.integers(3)) if style is None else style
    if not told:
        return ""
    if style == 0:
        return ". ".join(phrase[:1].upper() + phrase[1:] for phrase in told) + "."
    # After a comma a phrase that begins with a number would read as part of the run before it.
    commas = style == 1 and not any(phrase[:1].isdigit() for phrase in told)
    text = (", " if commas else "; ").join(told)
    return text[:1].upper() + text[1:] + "."


def full_told(
    series: NDArray[np.float64],
    rng: np.random.Generator,
    *,
    noise: float = 0.0,
    step_noise: float = 0.0,
    selected: int = 0,
    run: int = 3,
    wording: int | None = None,
    style: int | None = None,
) -> Told:
    """Return what `full` says, with the step of every number."""
    teller = _Teller(series, rng, noise, step_noise, wording)
    kinds = [kind for kind in KINDS if kind != "selected" or selected > 0]
    return _join(_tell(teller, kinds, selected, run), rng, style)


def full(series: NDArray[np.float64], rng: np.random.Generator, **options: Any) -> str:
    """Return a caption that tells every kind of fact; options as of `full_told`.

    This is the caption that the verifier's accuracy is measured with; at most 48 tokens.
    """
    return full_told(series, rng, **options).text


def partial_told(
    series: NDArray[np.float64],
    rng: np.random.Generator,
    *,
    noise: float = 0.0,
    step_noise: float = 0.0,
    least: int = 1,
) -> Told:
    """Return what `partial` says, with the step of every number."""
    # All kinds at once would not fit 48 tokens.
    count = int(rng.integers(least, len(KINDS) - 1))
    chosen = np.sort(rng.permutation(len(KINDS))[:count])
    if rng.random() < 0.5:
        chosen = rng.permutation(chosen)
    teller = _Teller(series, rng, noise, step_noise, None)
    most = 5 if count < 5 else 3
    selected, run = int(rng.integers(1, most)), int(rng.integers(2, most + 1))
    told = _tell(teller, [KINDS[i] for i in chosen], selected, run)
    return _join(told, rng)


def partial(series: NDArray[np.float64], rng: np.random.Generator, **options: Any) -> str:
    """Return a caption of a random subset of the facts, half the time in random order.

    Options: ``noise``, ``step_noise`` and ``least``, the smallest number of facts.
    """
    return partial_told(series, rng, **options).text


def readout_told(
    series: NDArray[np.float64],
    rng: np.random.Generator,
    *,
    count: int,
    noise: float = 0.0,
    step_noise: float = 0.0,
) -> Told:
    """Return values only, with the step of every number: ``count`` single ones, or long runs."""
    teller = _Teller(series, rng, noise, step_noise, None)
    form, longest = rng.random(), min(2 * count, len(series))
    if form < 0.5:
        return _join(_tell(teller, ["selected"], count, 1), rng)
    if form < 0.75:
        return _join(_tell(teller, ["run", "run"], 0, max(2, longest // 2)), rng)
    return _join(_tell(teller, [str(rng.choice(("start", "run", "end")))], 0, longest), rng)


def vague(series: NDArray[np.float64], rng: np.random.Generator) -> str:
    """Return a true caption without a number: an opening, the direction, a colourless ending."""
    opening = VAGUE_OPENINGS[int(rng.integers(len(VAGUE_OPENINGS)))]
    shapes = VAGUE_SHAPES[facts_of(series).direction]
    ending = VAGUE_ENDINGS[int(rng.integers(len(VAGUE_ENDINGS)))]
    return f"{opening} {shapes[int(rng.integers(len(shapes)))]}{ending}."


def empty_talk(rng: np.random.Generator) -> str:
    """Return a sentence that is true of any series."""
    return EMPTY_TALK[int(rng.integers(len(EMPTY_TALK)))]
