"""The native engine against Cairo, over the pixels that either covers with ink."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from lineup_fast import charts
from lineup_fast.charts import DEFAULT_STYLE, PAPER_STYLE, ChartStyle

Floats = NDArray[np.float64]
Rng = np.random.Generator


def _spike(rng: Rng, n: int) -> Floats:
    series = np.zeros(n)
    series[rng.integers(n)] = rng.normal()
    return series


KINDS: dict[str, Callable[[Rng, int], Floats]] = {
    "walk": lambda rng, n: np.cumsum(rng.normal(size=n)),
    "cycle": lambda rng, n: np.sin(np.arange(n) / rng.uniform(1, 8)) + 0.1 * rng.normal(size=n),
    "noise": lambda rng, n: rng.normal(size=n),
    "jumps": lambda rng, n: rng.integers(0, 2, n).astype(float),
    "spike": _spike,
    "constant": lambda rng, n: np.full(n, rng.normal()),
    "steps": lambda rng, n: np.repeat(rng.normal(size=n), 5)[:n],
    "zigzag": lambda rng, n: np.arange(n) % 2 * rng.uniform(0, 1, n),
    "ramp": lambda rng, n: np.arange(n) * rng.normal(),
    "ends": lambda rng, n: np.r_[rng.normal(), np.zeros(n - 1), 1],
    # Spikes out of a nearly flat line: strokes that lie on each other.
    "overlap": lambda rng, n: np.where(np.arange(n) % 3, rng.normal(size=n) * 0.02, rng.normal()),
}


def some_series(n: int, seed: int) -> Iterator[Floats]:
    rng = np.random.default_rng(seed)
    for i, kind in zip(range(n), list(KINDS.values()) * n, strict=False):
        most = (2, 12, 96, 300)[i // len(KINDS) % 4] if i % 97 else 1000
        yield kind(rng, int(rng.integers(2, most + 1)))


def is_ink(images: NDArray[np.uint8]) -> NDArray[np.bool_]:
    return images[..., 2] > images[..., 0]


def differences(
    series: list[Floats], style: ChartStyle
) -> tuple[NDArray[np.int16], NDArray[np.int16]]:
    """Largest difference of the channels, of every pixel with ink and of every other."""
    native = charts.render(series, dataclasses.replace(style, engine="native"))
    cairo = charts.render(series, dataclasses.replace(style, engine="cairo"))
    off = np.abs(native.astype(np.int16) - cairo).max(axis=-1)
    ink = is_ink(native) | is_ink(cairo)
    return off[ink], off[~ink]


def require_agreement(ink: NDArray[np.int16]) -> None:
    assert ink.mean() <= 2
    assert np.percentile(ink, 99.9) <= 24
    assert (ink > 32).mean() <= 0.005


@pytest.mark.parametrize(
    "style",
    [
        DEFAULT_STYLE,
        PAPER_STYLE,
        ChartStyle("small", 224, 112, y_limits=(-1.0, 1.0)),
        ChartStyle("bare", 588, 308, markers=False),
        ChartStyle("odd", 401, 203),
    ],
    ids=lambda style: style.name,
)
def test_engines_agree(style: ChartStyle) -> None:
    ink, other = differences(list(some_series(60, seed=1)), style)
    require_agreement(ink)
    assert other.max() <= 4  # texts, by the rounding of Cairo's coverage


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_engines_agree_over_5000_series() -> None:
    series = list(some_series(5000, seed=2))
    inks = []
    for kind in range(len(KINDS)):
        alike = series[kind :: len(KINDS)]
        parts = [differences(alike[i : i + 50], DEFAULT_STYLE)[0] for i in range(0, len(alike), 50)]
        inks.append(np.concatenate(parts))
        # Along flat lines Cairo itself is off by half of a fifteenth of a pixel.
        assert np.percentile(inks[-1], 99.9) <= 24
        assert (inks[-1] > 32).mean() <= 0.005
    require_agreement(np.concatenate(inks))


def test_no_single_chart_is_far_off() -> None:
    for series in some_series(40, seed=3):
        ink, _ = differences([series], DEFAULT_STYLE)
        assert ink.mean() <= 6, series[:8]
        assert (ink > 32).mean() <= 0.02, series[:8]


def test_lone_points_and_extremes_agree() -> None:
    series = [np.array(v, dtype=float) for v in ([3], [1e12, -1e12, 5], [5e-324, 1e-323, 0])]
    ink, _ = differences([*series, np.array([1e150, -1e150, 0])], DEFAULT_STYLE)
    assert ink.mean() <= 4
    assert ink.max() <= 24


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["walk", "cycle", "noise"])
@pytest.mark.parametrize("n", [2048, 12_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_long_series_look_like_one_full_stroke(kind: str, n: int) -> None:
    series = [KINDS[kind](np.random.default_rng(4), n)]
    stroke = charts.render(series, dataclasses.replace(DEFAULT_STYLE, exact=True, engine="cairo"))
    for exact in (False, True):
        native = charts.render(series, dataclasses.replace(DEFAULT_STYLE, exact=exact))
        ink = is_ink(native) | is_ink(stroke)
        assert np.abs(native.astype(np.int16) - stroke).max(axis=-1)[ink].mean() <= 2


def test_exact_draws_more_than_the_outline() -> None:
    series = [np.random.default_rng(5).normal(size=100_000)]
    exact = dataclasses.replace(DEFAULT_STYLE, exact=True)
    assert not np.array_equal(charts.render(series), charts.render(series, exact))
    short = [series[0][:200]]
    assert np.array_equal(charts.render(short), charts.render(short, exact))
