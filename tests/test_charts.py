from __future__ import annotations

import dataclasses
import hashlib
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from lineup_fast import _core, charts, reference_charts
from lineup_fast.charts import DEFAULT_STYLE, PAPER_STYLE, TINY_STYLE, ChartStyle

INK = np.array([31, 119, 180])
SMALL_STYLE = ChartStyle("small", 240, 120, engine="cairo")
STYLES = [
    dataclasses.replace(style, engine="cairo")
    for style in (
        DEFAULT_STYLE,
        PAPER_STYLE,
        TINY_STYLE,
        dataclasses.replace(SMALL_STYLE, markers=False, axis_words=True),
    )
]


def awkward() -> list[NDArray[np.float64]]:
    rng = np.random.default_rng(5)
    return [
        np.array(values, dtype=np.float64)
        for values in (
            [3.25],
            [0],
            [-7, -7, -7],
            [1, 2],
            [1e-12, -3e-12, 2e-12],
            [1e12, -1e12, 5],
            [1e12, np.nextafter(1e12, 2e12)],
            1e9 + rng.normal(0, 1e-6, 30),
            [5e-324, 1e-323, 0],
            [1e150, -1e150, 0],
            [0, 100] * 12,
            np.r_[np.zeros(40), 1, np.zeros(40)],
            rng.normal(size=96),
            rng.normal(size=2500),
            rng.normal(size=2500) * np.where(rng.random(2500) < 0.01, 1e6, 1),  # far outside limits
            np.round(rng.normal(size=3000)),
            np.cumsum(rng.normal(size=100_000)),
        )
    ]


def ink_share(image: NDArray[np.uint8]) -> float:
    """Share of the pixels that are blue, blended ones included."""
    pixels = image.astype(int)
    return float((pixels[..., 2] - pixels[..., 0] > 40).mean())


def both(series: list[Any], style: ChartStyle) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    arrays = [np.asarray(values, dtype=np.float64) for values in series]
    native = np.empty((len(arrays), style.height, style.width, 3), dtype=np.uint8)
    reference = np.empty_like(native)
    _core.render_charts(arrays, style, native)
    reference_charts.render_charts(arrays, style, reference)
    return native, reference


@pytest.mark.parametrize("style", STYLES, ids=lambda style: style.name)
def test_native_pixels_equal_the_slow_twin(style: ChartStyle) -> None:
    native, reference = both(awkward(), style)
    assert np.array_equal(native, reference)
    for image in native:
        assert ink_share(image) > 0 or style.y_limits
        assert (image == 255).all(axis=-1).mean() > 0.3


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.one_of(st.floats(-1e150, 1e150), st.floats(-100, 100), st.sampled_from([0.0, 1.0])),
        min_size=1,
        max_size=40,
    )
)
def test_native_pixels_equal_the_slow_twin_on_any_series(series: list[float]) -> None:
    native, reference = both([series], SMALL_STYLE)
    assert np.array_equal(native, reference)


def test_batches_threads_and_buffers_do_not_change_pixels() -> None:
    rng = np.random.default_rng(0)
    series = [rng.normal(size=int(n)) for n in rng.integers(1, 97, size=37)]
    one_by_one = np.concatenate([charts.render([values], TINY_STYLE) for values in series])
    assert np.array_equal(charts.render(series, TINY_STYLE, threads=1), one_by_one)
    assert np.array_equal(charts.render(series, TINY_STYLE, threads=3), one_by_one)
    out = np.zeros_like(one_by_one)
    assert charts.render(series, TINY_STYLE, out=out) is out
    assert np.array_equal(out, one_by_one)
    assert charts.render([], TINY_STYLE).shape == (0, 112, 224, 3)


def test_scale_changes_only_the_tick_texts() -> None:
    # Tick texts of equal width: the same frame, and the same line in it.
    wave = np.sin(np.arange(48) / 5)
    one, two = charts.render([wave, wave * 0.001])
    ones, twos = (np.flatnonzero((i == 64).all(-1).mean(0) > 0.5)[0] for i in (one, two))
    assert ones < twos  # "0.0005" needs more room than "0.5"
    two_step, ten_step = charts.render([np.arange(11.0) * 2, np.arange(11.0) * 2 + 30])
    assert np.array_equal(two_step[:, 60:], ten_step[:, 60:])
    assert not np.array_equal(two_step[:, :60], ten_step[:, :60])


def test_line_goes_where_the_values_are() -> None:
    series = np.full(24, 20.0)
    series[17] = 90.0
    image = charts.render([series], TINY_STYLE)[0]
    frame = (image == 64).all(axis=-1)
    left, right = np.flatnonzero(frame.mean(axis=0) > 0.5)[[0, -1]]
    top, bottom = np.flatnonzero(frame.mean(axis=1) > 0.5)[[0, -1]]
    rows, columns = np.nonzero((image == INK).all(axis=-1))
    peak = columns[rows == rows.min()].mean()
    inset = 3
    assert peak == pytest.approx(left + inset + 17 / 23 * (right - left - 2 * inset), abs=1)
    height = bottom - top - 2 * inset
    assert rows.min() + 1.5 == pytest.approx(bottom - inset - 0.9 * height, abs=1.5)
    assert rows.max() - 1.5 == pytest.approx(bottom - inset - 0.2 * height, abs=1.5)


def test_fixed_limits_cut_off_at_the_frame() -> None:
    inside, beyond = charts.render([[50, 100, 0, 50], [50, 1e150, -1e150, 50]], TINY_STYLE)
    assert ink_share(beyond) > 0
    outside_frame = np.ones(inside.shape[:2], dtype=bool)
    outside_frame[1:100, 20:222] = False
    assert np.array_equal(inside[outside_frame], beyond[outside_frame])


def test_axis_words_only_where_asked() -> None:
    words = charts.render([np.arange(24.0)], PAPER_STYLE)[0]
    dark = (words < 200).any(axis=-1)
    rows, columns = np.nonzero(dark[-14:])  # "time" alone below the tick texts
    assert 290 < columns.min() < columns.max() < 350
    rows, columns = np.nonzero(dark[:, :14])  # "value" alone, upwards, left of them
    assert 100 < rows.min() < rows.max() < 180
    without = dataclasses.replace(PAPER_STYLE, axis_words=False)
    plain = charts.render([np.arange(24.0)], without)[0]
    assert np.ptp(np.nonzero((plain[-14:] < 200).any(axis=-1))[1]) > 400  # tick texts only


@pytest.mark.parametrize(
    ("series", "message"),
    [
        ([[1.0], [1.0, np.nan]], r"series\[1\]: expected finite values, got nan at step 1"),
        ([[np.inf]], r"series\[0\]: expected finite values, got inf at step 0"),
        ([[-1e151]], r"series\[0\]: expected magnitudes up to 1e150"),
        ([[]], r"series\[0\]: expected float64 \[T\] with no empty side"),
        ([[[1.0, 2.0]]], r"series\[0\]: expected float64 \[T\]"),
        ([["a", "b"]], r"series\[0\]: expected float64 \[T\], got dtype"),
        ([[[1.0], [2.0, 3.0]]], r"series\[0\]: expected float64 \[T\], got ragged"),
    ],
)
def test_bad_series(series: list[Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        charts.render(series, TINY_STYLE)


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan, 1e151])
def test_twin_refuses_the_same_values(bad: float) -> None:
    out = np.empty((1, 112, 224, 3), dtype=np.uint8)
    texts = []
    for renderer in (_core, reference_charts):
        with pytest.raises(ValueError, match="expected") as caught:
            renderer.render_charts([np.array([0.0, bad])], TINY_STYLE, out)
        texts.append(str(caught.value))
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    "out",
    [
        np.empty((2, 112, 224, 3), dtype=np.uint8),
        np.empty((1, 112, 224, 3), dtype=np.float32),
        np.empty((1, 112, 448, 3), dtype=np.uint8)[:, :, ::2],
    ],
)
def test_bad_out(out: NDArray[np.uint8]) -> None:
    with pytest.raises(ValueError, match="out: expected writable, C-contiguous uint8"):
        charts.render([[1.0, 2.0]], TINY_STYLE, out=out)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"width": 100}, "width: expected 168 to 8192"),
        ({"height": 9000}, "height: expected 84 to 8192"),
        ({"y_limits": (1.0, 1.0)}, "y_limits: expected lo < hi"),
        ({"y_limits": (0.0, np.inf)}, "y_limits: expected lo < hi"),
        ({"engine": "skia"}, "engine: expected native or cairo, got 'skia'"),
    ],
)
def test_bad_style(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(DEFAULT_STYLE, **change)


def test_fingerprint_follows_what_is_drawn() -> None:
    assert DEFAULT_STYLE.fingerprint == dataclasses.replace(DEFAULT_STYLE, name="x").fingerprint
    changes: list[dict[str, Any]] = [
        {"width": 616},
        {"height": 280},
        {"y_limits": (0.0, 1.0)},
        {"axis_words": True},
        {"markers": False},
        {"exact": True},
        {"engine": "cairo"},
    ]
    prints = {dataclasses.replace(DEFAULT_STYLE, **change).fingerprint for change in changes}
    assert len(prints | {DEFAULT_STYLE.fingerprint}) == len(changes) + 1


@pytest.mark.parametrize("style", [TINY_STYLE, DEFAULT_STYLE], ids=lambda style: style.name)
def test_memory_stays_flat(style: ChartStyle) -> None:
    def resident() -> int:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    series = [np.sin(np.arange(24.0) + i) * 50 + 50 for i in range(50)]
    out = np.empty((50, style.height, style.width, 3), dtype=np.uint8)
    charts.render(series, style, out=out)
    charts.png(out[0])
    before = resident()
    for i in range(20):
        charts.render(series, style, out=out)
        charts.png(out[i])
    assert resident() - before < 4 << 20


def test_other_threads_run_while_charts_are_drawn() -> None:
    if charts.kernels.IMPLEMENTATION != "native":
        pytest.skip("the twin holds the interpreter")
    series = [np.random.default_rng(i).normal(size=2000) for i in range(60)]
    done = threading.Event()

    def draw() -> None:
        charts.render(series, threads=1)
        done.set()

    worker = threading.Thread(target=draw)
    ticks = 0
    worker.start()
    while not done.wait(0.001):
        ticks += 1
    worker.join()
    assert ticks >= 5


def test_tiny_chart_is_frozen() -> None:
    # The weights of the tiny captioner depend on these pixels: CHART_VERSION guards them.
    if charts.kernels.build_info()["cairo"] != "1.16.0":
        pytest.skip("the pixels were recorded with Cairo 1.16.0")
    series = [(np.arange(24.0) * 37) % 101, (np.arange(12.0) * 53) % 101]
    digest = hashlib.sha256(charts.render(series, TINY_STYLE).tobytes()).hexdigest()[:16]
    assert (charts.CHART_VERSION, digest) == ("1", "fccf6bc16b6c1be5")
