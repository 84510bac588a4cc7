"""Charts, patches and PNG files against what others would use.

pytest bench/bench_charts.py                          ratios, written to bench/results
pytest bench/bench_charts.py --benchmark-disable      everything once, nothing timed
"""

from __future__ import annotations

import dataclasses
import io
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from bench import peers, record
from lineup_fast import charts

BATCH = 64  # charts that the output cycles through: 35 MB, so that they leave the cache
Images = NDArray[np.uint8]
Series = list[NDArray[np.float64]]


def some_series(n: int, steps: tuple[int, int], seed: int = 0) -> Series:
    """A third each of walks, daily cycles with noise, and noise."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(steps[0], steps[1] + 1, n)
    noise = [rng.normal(size=t) for t in lengths]
    shapes: tuple[Callable[[Any], Any], ...] = (
        np.cumsum,
        lambda e: np.sin(np.arange(len(e)) / 24 * 2 * np.pi) + 0.1 * e,
        lambda e: e,
    )
    return [np.asarray(shapes[i % 3](e), dtype=np.float64) for i, e in enumerate(noise)]


def is_ink(image: Images) -> NDArray[np.bool_]:
    return image[..., 2].astype(int) - image[..., 0] > 60


def assert_same_line(ours: Images, theirs: Images) -> None:
    """All ink of either lies within a pixel of the other's."""

    def wide(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
        padded = np.pad(mask, 1)
        shifts = [padded[y : y + len(mask), x : x + mask.shape[1]] for y, x in np.ndindex(3, 3)]
        return np.logical_or.reduce(shifts)

    a, b = is_ink(ours), is_ink(theirs)
    assert (a & ~wide(b)).sum() <= 0.01 * a.sum()
    assert (b & ~wide(a)).sum() <= 0.01 * b.sum()


SAME = "the same line within a pixel"


@pytest.mark.parametrize(
    ("steps", "n", "must", "goal"),
    [((24, 96), BATCH, 70, 110), ((2048, 2048), 6, 25, 40), ((100_000, 100_000), 3, 40, 100)],
    ids=["24-96", "2048", "100k"],
)
def test_charts_against_matplotlib(
    race: Any, steps: tuple[int, int], n: int, must: float, goal: float
) -> None:
    markers = steps[1] <= 96
    series = some_series(n, steps)
    few = series[: min(n, 6)]
    plans = [peers.plan(values) for values in few]
    matplotlib = peers.Matplotlib(markers=markers)
    out = charts.render(series, threads=1)
    for image, plan in zip(out, plans, strict=False):
        assert_same_line(image, matplotlib.draw(plan)[..., :3])
    got = race(
        lambda: charts.render(series, out=out, threads=1),
        lambda: [matplotlib.draw(plan) for plan in plans],
        items=(n, len(few)),
        rounds=5 if markers else 3,
    )
    size = f"{steps[0]}-{steps[1]} points" if markers else f"{steps[0]:,} points"
    record.row("charts 588x308", size, "matplotlib reused", got, must, goal, SAME)


def test_charts_against_opencv(race: Any) -> None:
    series = some_series(BATCH, (24, 96))
    plans = [peers.plan(values) for values in series]
    opencv = peers.OpenCV()
    out = charts.render(series, threads=1)
    theirs = np.zeros_like(out)

    def draw() -> None:
        for plan, image in zip(plans, theirs, strict=True):
            opencv.draw(plan, image)

    draw()
    for image, other in zip(out, theirs, strict=True):
        assert_same_line(image, other)
    got = race(lambda: charts.render(series, out=out, threads=1), draw, rounds=9)
    record.row("charts 588x308", "24-96 points", "OpenCV, cached ground", got, 2, 3, SAME)


def test_charts_against_cairo(race: Any) -> None:
    series = some_series(BATCH, (24, 96))
    cairo = dataclasses.replace(charts.DEFAULT_STYLE, engine="cairo")
    out, theirs = charts.render(series, threads=1), charts.render(series, cairo, threads=1)
    assert np.abs(out.astype(int) - theirs).max(axis=-1)[is_ink(out)].mean() <= 2
    got = race(
        lambda: charts.render(series, out=out, threads=1),
        lambda: charts.render(series, cairo, out=theirs, threads=1),
    )
    record.row("charts 588x308", "24-96 points", "our Cairo engine", got, 1, 4, "<= 2/255")


def test_two_threads_against_one(timed: bool) -> None:
    """Wall time, and CPU time for what the second thread costs: the best of rounds in turn."""
    series = some_series(BATCH, (24, 96))
    out = charts.render(series, threads=1)
    assert np.array_equal(charts.render(series, threads=2), out)
    if not timed:
        return
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one core only")
    clocks = (time.perf_counter, time.process_time)
    best = np.full((2, len(clocks)), np.inf)
    for _ in range(150):  # 2 s: some of them meet two quiet cores
        for i, threads in enumerate((1, 2)):
            began = [clock() for clock in clocks]
            charts.render(series, out=out, threads=threads)
            spent = [clock() - start for clock, start in zip(clocks, began, strict=True)]
            best[i] = np.minimum(best[i], spent)
    wall, cpu = best[0] / best[1]
    piece, equal = "charts 588x308, two threads", "pixels equal"
    record.row(piece, f"{BATCH} charts, wall time", "one thread", wall, 1.8, 1.9, equal)
    record.row(piece, f"{BATCH} charts, CPU time", "one thread", cpu, 0.91, 0.97, equal)


def test_pixel_values_against_the_processor(race: Any) -> None:
    processor = peers.QwenProcessor()
    series = some_series(16, (24, 96))
    plans = [peers.plan(values) for values in series[:4]]
    matplotlib = peers.Matplotlib()
    values, _ = charts.pixel_values(series, threads=1)
    assert np.array_equal(values, processor(list(charts.render(series, threads=1))))
    got = race(
        lambda: charts.pixel_values(series, out=values, threads=1),
        lambda: [processor([matplotlib.draw(plan)[..., :3].copy()]) for plan in plans],
        items=(16, 4),
        rounds=5,
    )
    piece, peer = "series to bf16 pixel_values", "matplotlib + HF processor"
    record.row(piece, "24-96 points", peer, got, 25, 60, "bits equal to HF's")


def test_patches_against_the_processor(race: Any) -> None:
    processor = peers.QwenProcessor()
    images = charts.render(some_series(16, (24, 96)), threads=1)
    values, _ = charts.patches(images, dtype="bfloat16", threads=1)
    assert np.array_equal(values, processor(list(images)))
    got = race(
        lambda: charts.patches(images, dtype="bfloat16", out=values, threads=1),
        lambda: processor(list(images[:4])),
        items=(16, 4),
        rounds=5,
    )
    record.row("patches bf16", "588x308", "HF processor", got, 10, 14, "bits equal to HF's")


def test_png_against_pil(race: Any) -> None:
    images = charts.render(some_series(16, (24, 96)), threads=1)
    for image in images:
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(charts.png(image)))), image)
    got = race(
        lambda: [charts.png(image) for image in images],
        lambda: [peers.pil_png(image) for image in images[:6]],
        items=(16, 6),
    )
    record.row("PNG bytes", "588x308", "PIL", got, 8, 18, "pixels equal")
