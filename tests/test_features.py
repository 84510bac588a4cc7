"""φ: native against twin and against plain definitions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lineup_fast import kernels
from tests.parity import both

pytestmark = pytest.mark.usefixtures("isa")


@pytest.mark.parametrize("shape", [(1, 1), (1, 2), (3, 7), (5, 8), (2, 9), (33, 96), (257, 100)])
@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_shapes_and_magnitudes(shape: tuple[int, int], scale: float) -> None:
    series = np.random.default_rng(0).normal(3.0, 2.0, shape) * scale
    phi = both("features", series, rtol=1e-13)
    expected = [series.mean(1), series.std(1), series.min(1), series.max(1)]
    np.testing.assert_allclose(phi, np.stack(expected, 1), rtol=1e-9)


@pytest.mark.parametrize("value", [0.1, -1e12, 1e-12, 0.0])
def test_constant_series_have_exact_mean_and_no_deviation(value: float) -> None:
    phi = both("features", np.full((2, 97), value))
    np.testing.assert_array_equal(phi, [[value, 0.0, value, value]] * 2)


def test_small_deviation_beside_large_mean() -> None:
    series = 1e12 + np.array([[0.0, 1.0, 2.0, 3.0]])
    np.testing.assert_allclose(both("features", series)[0, 1], np.sqrt(1.25), rtol=1e-12)


def test_other_inputs_are_coerced() -> None:
    expected = both("features", [[1.0, 2.0, 4.0]])
    np.testing.assert_array_equal(both("features", [[1, 2, 4]]), expected)
    np.testing.assert_array_equal(both("features", np.array([[1, 2, 4]], np.float32)), expected)
    strided = np.array([[1.0, 9.0, 2.0, 9.0, 4.0, 9.0]])[:, ::2]
    np.testing.assert_array_equal(both("features", strided), expected)


@pytest.mark.parametrize("steps", [1, 5, 96, 700])
def test_overlapping_rows_are_read_where_they_are(steps: int) -> None:
    line = np.random.default_rng(2).normal(size=steps + 400)
    windows = np.lib.stride_tricks.sliding_window_view(line, steps)
    phi = kernels.features(windows)
    np.testing.assert_array_equal(phi, kernels.features(windows.copy()))
    np.testing.assert_array_equal(kernels.features(windows[::7]), phi[::7])


def test_a_given_output_is_written_and_returned() -> None:
    series = np.random.default_rng(3).normal(size=(9, 20))
    expected = both("features", series, rtol=1e-13)
    out = np.full((9, 4), np.nan)
    assert kernels.features(series, out=out) is out
    np.testing.assert_array_equal(out, kernels.features(series))
    assert both("features", series, out=out, rtol=1e-13) is out
    np.testing.assert_allclose(out, expected, rtol=1e-12)


def test_bad_outputs() -> None:
    frozen = np.empty((1, 4))
    frozen.flags.writeable = False
    wrong = "out: expected writable, C-contiguous float64 (1, 4), got "
    for out, got in (
        (np.empty((2, 4)), "float64 (2, 4)"),
        (np.empty((1, 4), np.float32), "float32 (1, 4)"),
        (np.empty((1, 8))[:, ::2], "float64 (1, 4)"),
        (frozen, "float64 (1, 4)"),
    ):
        with pytest.raises(ValueError, match="out") as caught:
            both("features", [[1.0]], out=out)
        assert str(caught.value) == wrong + got


def test_threads_change_nothing() -> None:
    series = np.random.default_rng(1).normal(size=(2000, 50))
    one = kernels.features(series, threads=1)
    np.testing.assert_array_equal(one, kernels.features(series, threads=4))
    np.testing.assert_array_equal(one, kernels.features(series))


@pytest.mark.parametrize("steps", [1, 2, 7, 15, 16, 17, 33, 96])
def test_instruction_sets_agree_to_the_last_bit(
    isa: str, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert str(kernels.build_info()["isa"]).split()[-1] in (isa, "aarch64", "generic")
    series = np.random.default_rng(steps).normal(size=(9, steps)) * 1e6
    phi = kernels.features(series)
    monkeypatch.setenv("LINEUP_ISA", "plain")
    assert phi.tobytes() == kernels.features(series).tobytes()


@pytest.mark.parametrize(
    ("series", "text"),
    [
        ([[1.0, np.nan]], "series: expected finite values, got nan at row 0, step 1"),
        ([[1.0], [-np.inf]], "series: expected finite values, got -inf at row 1, step 0"),
        ([[1e200]], "series: expected magnitudes up to 1e150, got 1.000e+200 at row 0, step 0"),
        ([1.0, 2.0], r"series: expected float64 [N, T] with no empty side, got shape (2,)"),
        (np.empty((0, 5)), r"series: expected float64 [N, T] with no empty side, got shape (0, 5)"),
        ([[]], r"series: expected float64 [N, T] with no empty side, got shape (1, 0)"),
        ([[1.0], [1.0, 2.0]], "series: expected float64 [N, T], got ragged rows"),
        ([["a"]], "series: expected float64 [N, T], got dtype <U1"),
        ([[1j]], "series: expected float64 [N, T], got dtype complex128"),
        ([[None]], "series: expected float64 [N, T], got dtype object"),
    ],
)
def test_bad_input(series: object, text: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the whole text is compared
        both("features", series)
    assert str(caught.value) == text


@pytest.mark.parametrize("threads", [-1, 1.5, True, "2"])
def test_bad_threads(threads: object) -> None:
    with pytest.raises(ValueError, match="threads: expected"):
        both("features", [[1.0]], threads=threads)


@settings(max_examples=60, deadline=None)
@given(
    hnp.arrays(
        np.float64,
        hnp.array_shapes(min_dims=2, max_dims=2, max_side=20),
        elements=st.floats(-1e12, 1e12, allow_nan=False),
    )
)
def test_any_values(series: np.ndarray) -> None:
    phi = both("features", series, rtol=1e-12)
    assert (phi[:, 2] <= phi[:, 3]).all()
    assert (phi[:, 1] >= 0).all()
