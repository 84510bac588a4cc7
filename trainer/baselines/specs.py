"""What a question claims, in a form that code can check against the series.

A spec is a JSON object of one of two kinds:

- ``{"kind": "region", "metric": M, "regions": [[first, last], …]}``: one stretch of steps (from 0,
  both ends included) for each option; right is the option whose stretch wins by the metric.
- ``{"kind": "shape", "shapes": [S, …]}``: one shape for each option; right is the one the whole
  series has.

Statistics of regions are in units of the values, so that a margin can be asked for in shares of the
series' range. Source: the paper's answerability baseline (reference-code margin 0.15).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]

MARGIN = 0.15  # of the series' range for regions, of its variance for shapes
LEAST_FIT = 0.5  # share of the variance that the winning shape must explain
MIN_STEPS = 8  # of a series whose shape is asked for


def _fitted_change(x: Floats) -> float:
    """Change over the stretch along its least-squares line."""
    t = np.arange(len(x)) - (len(x) - 1) / 2
    return float(t @ x / (t @ t) * (len(x) - 1)) if len(x) > 1 else 0.0


def _steepest_step(x: Floats) -> float:
    return float(np.abs(np.diff(x)).max()) if len(x) > 1 else 0.0


# Statistic of a stretch, and whether the highest (1) or the lowest (-1) of them wins.
METRICS: dict[str, tuple[Callable[[Floats], float], int]] = {
    "highest": (lambda x: float(x.max()), 1),
    "lowest": (lambda x: float(x.min()), -1),
    "mean_high": (lambda x: float(x.mean()), 1),
    "mean_low": (lambda x: float(x.mean()), -1),
    "rise": (_fitted_change, 1),
    "fall": (_fitted_change, -1),
    "range_wide": (lambda x: float(x.max() - x.min()), 1),
    "std_high": (lambda x: float(x.std()), 1),
    "std_low": (lambda x: float(x.std()), -1),
    "jump": (_steepest_step, 1),
}
SHAPES = ("rising", "falling", "peak", "valley", "step up", "step down", "oscillating")

# What a stem must say, and must not say, to be about a metric. Case is ignored.
_AVERAGE = r"\b(average|mean|typical)"
_STEADY = r"\b(steadi|stead(y|ily)|stable|least (variable|volatile|variation)|calm|smallest spread)"
_SPREAD = r"\b(most (variable|volatile)|standard deviation|varies? (the )?most|largest spread)"
_RANGE = r"\b(range|gap between (its|the) (highest|lowest))"
_RISE, _FALL = r"\b(rise|rising|increase|climb|grow)", r"\b(fall|falling|decrease|drop|declin)"
_JUMP = r"\b(single step|one step|jump|from one step to the next|neighbouring)"
_HIGH, _LOW = (
    r"\b(highest|maximum|largest|peak|greatest)",
    r"\b(lowest|minimum|smallest|trough|least)",
)
_WORDING: dict[str, tuple[str, tuple[str, ...]]] = {
    "highest": (_HIGH, (_LOW, _AVERAGE, _STEADY, _SPREAD, _RANGE, _RISE, _FALL, _JUMP)),
    "lowest": (_LOW, (_HIGH, _AVERAGE, _STEADY, _SPREAD, _RANGE, _RISE, _FALL, _JUMP)),
    "mean_high": (_AVERAGE, (_LOW, _SPREAD, _RANGE, _RISE, _FALL, _JUMP)),
    "mean_low": (_AVERAGE, (_HIGH, _SPREAD, _RANGE, _RISE, _FALL, _JUMP)),
    "rise": (_RISE, (_FALL, _AVERAGE, _JUMP, _RANGE, _LOW)),
    "fall": (_FALL, (_RISE, _AVERAGE, _JUMP, _RANGE, _LOW)),
    "range_wide": (_RANGE, (_AVERAGE, _JUMP, _RISE, _FALL, r"\b(smallest|narrowest|least)")),
    "std_high": (_SPREAD, (_STEADY, _AVERAGE, _JUMP, _RANGE, _RISE, _FALL)),
    "std_low": (_STEADY, (_SPREAD, _AVERAGE, _JUMP, _RANGE, _RISE, _FALL)),
    "jump": (_JUMP, (_AVERAGE, _RANGE, r"\b(smallest|least)")),
}
_MEANS = {"mean_high": _HIGH, "mean_low": _LOW}  # an average has to be the highest or lowest one
_SHAPE_STEM = r"\b(shape|pattern|overall|course)"


@dataclass(frozen=True)
class Verdict:
    """What the series says about a question: the right option, or why it cannot be asked."""

    answer: int | None
    reason: str | None = None


def verify(stem: str, options: Sequence[str], spec: Any, x: Floats) -> Verdict:
    """The right option of a question about a series x float64 [T].

    Reasons: spec, regions, options, stem, constant, short, margin, unclear.
    """
    kind = spec.get("kind") if isinstance(spec, dict) else None
    if kind == "region":
        return _verify_region(stem, options, spec, x)
    if kind == "shape":
        return _verify_shape(stem, options, spec, x)
    return Verdict(None, "spec")


def _verify_region(stem: str, options: Sequence[str], spec: Any, x: Floats) -> Verdict:
    metric, regions = spec.get("metric"), spec.get("regions")
    if metric not in METRICS:
        return Verdict(None, "spec")
    if not _sound(regions, len(options), len(x)):
        return Verdict(None, "regions")
    if any(not _names(option, region) for option, region in zip(options, regions, strict=True)):
        return Verdict(None, "options")
    if not stem_fits(stem, metric):
        return Verdict(None, "stem")
    spread = float(np.ptp(x))
    if spread == 0:
        return Verdict(None, "constant")
    statistic, sign = METRICS[metric]
    found = sign * np.array([statistic(x[first : last + 1]) for first, last in regions])
    best, second = np.argsort(-found, kind="stable")[:2]
    if found[best] - found[second] < MARGIN * spread:
        return Verdict(None, "margin")
    return Verdict(int(best))


def _verify_shape(stem: str, options: Sequence[str], spec: Any, x: Floats) -> Verdict:
    shapes = spec.get("shapes")
    if not isinstance(shapes, list) or len(shapes) != len(options) or len(shapes) < 2:
        return Verdict(None, "spec")
    if not set(map(str, shapes)) <= set(SHAPES) or len(set(shapes)) != len(shapes):
        return Verdict(None, "spec")
    if any(SHAPE_WORDS[s] != option for s, option in zip(shapes, options, strict=True)):
        return Verdict(None, "options")
    if not re.search(_SHAPE_STEM, stem, re.IGNORECASE):
        return Verdict(None, "stem")
    if len(x) < MIN_STEPS:
        return Verdict(None, "short")
    if np.ptp(x) == 0:
        return Verdict(None, "constant")
    name, reason = classify(x)
    if name is None:
        return Verdict(None, reason)
    if name not in shapes:
        return Verdict(None, "options")
    return Verdict(shapes.index(name))


def _sound(regions: Any, n: int, length: int) -> bool:
    """Whether there is a stretch of at least two steps for each of n options, none overlapping."""
    if not isinstance(regions, list) or len(regions) != n or n < 2:
        return False
    for region in regions:
        if not isinstance(region, list) or len(region) != 2:
            return False
        if not all(isinstance(end, int) and not isinstance(end, bool) for end in region):
            return False
        if not 0 <= region[0] < region[1] < length:
            return False
    ordered = sorted(regions)
    return all(a[1] < b[0] for a, b in itertools.pairwise(ordered))


def _names(option: str, region: Sequence[int]) -> bool:
    """Whether an option's text is about this stretch and nothing else."""
    return [int(number) for number in re.findall(r"\d+", option)] == list(region)


def stem_fits(stem: str, metric: str) -> bool:
    """Whether the wording of a stem is that of the metric and of no other."""
    wanted, unwanted = _WORDING[metric]
    patterns = [wanted, *([_MEANS[metric]] if metric in _MEANS else [])]
    said = all(re.search(pattern, stem, re.IGNORECASE) for pattern in patterns)
    return said and not any(re.search(pattern, stem, re.IGNORECASE) for pattern in unwanted)


SHAPE_WORDS = {
    "rising": "rises from start to end",
    "falling": "falls from start to end",
    "peak": "rises and then falls again",
    "valley": "falls and then rises again",
    "step up": "moves from one level up to another",
    "step down": "moves from one level down to another",
    "oscillating": "goes up and down several times",
}


def classify(x: Floats) -> tuple[str | None, str]:
    """The shape of a series x float64 [T], or None and the reason: margin or unclear.

    Every shape has templates: a ramp, tents with their top at a third to two thirds, two levels
    that change at a quarter to three quarters, sinusoids of 2 to T/4 whole cycles. A shape explains
    the share of the variance that the best of its templates does, alone, with the right sign.
    """
    shares = shape_shares(x)
    order = sorted(SHAPES, key=lambda name: -shares[name])
    if shares[order[0]] - shares[order[1]] < MARGIN:
        return None, "margin"
    if shares[order[0]] < LEAST_FIT:
        return None, "unclear"
    return order[0], ""


def shape_shares(x: Floats) -> dict[str, float]:
    """Share of the variance of x float64 [T] that each shape explains, 0 to 1."""
    n = len(x)
    t = np.arange(n, dtype=np.float64)
    centred = x - x.mean()
    centred = centred / np.sqrt(centred @ centred)
    ramp = _correlations(t[None], centred)
    tops = np.arange(int(np.ceil((n - 1) / 3)), int(2 * (n - 1) / 3) + 1)[:, None]
    tent = _correlations(np.minimum(t / tops, (n - 1 - t) / (n - 1 - tops)), centred)
    edges = np.arange(int(np.ceil(n / 4)), int(3 * n / 4) + 1)[:, None]
    level = _correlations((t >= edges).astype(np.float64), centred)
    cycles = np.arange(2, max(2, n // 4) + 1)[:, None]
    angle = 2 * np.pi * cycles * t / n
    waves = _correlations(np.cos(angle), centred) ** 2 + _correlations(np.sin(angle), centred) ** 2
    shares = [ramp, -ramp, tent, -tent, level, -level]
    found = [float(np.maximum(side, 0).max() ** 2) for side in shares]
    return dict(zip(SHAPES, [*found, float(waves.max())], strict=True))


def _correlations(templates: Floats, centred: Floats) -> Floats:
    """Correlation of each template [m, T] with a centred series of norm 1."""
    rows = templates - templates.mean(axis=1, keepdims=True)
    result: Floats = rows @ centred / np.sqrt((rows * rows).sum(axis=1))
    return result
