from __future__ import annotations

import itertools
import math
import re
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lineup_fast import _core, reference_charts
from lineup_fast.kernels import nice_ticks

MAGNITUDES = st.floats(-9e299, 9e299)
POSITIVE = st.floats(0, 1e6, exclude_min=True)


@st.composite
def ranges(draw: st.DrawFn) -> tuple[float, float]:
    """Ranges of any level and width, often narrow ones on a high level."""
    lo = draw(st.one_of(MAGNITUDES, st.floats(-1e6, 1e6), st.just(1e12)))
    hi = draw(
        st.one_of(
            MAGNITUDES,
            POSITIVE.map(lambda width: lo + width),
            st.integers(1, 300).map(lambda steps: lo + steps * math.ulp(lo)),
        )
    )
    return (lo, hi) if lo < hi else (hi, lo) if hi < lo else (lo, math.nextafter(lo, math.inf))


@settings(max_examples=400, deadline=None)
@given(ranges(), st.integers(1, 12), st.booleans())
@example((0.0, 5e-324), 5, False)
@example((2.225073858507e-311, 2.2250738585075e-311), 1, False)
@example((-5e-324, 5e-324), 1, False)
@example((1e12, 1e12 + 0.0001220703125), 5, False)
@example((-1e300, 1e300), 7, True)
def test_native_equals_exact_decimal_twin(
    limits: tuple[float, float], n: int, integer: bool
) -> None:
    positions, texts = _core.nice_ticks(*limits, n, integer)
    expected_positions, expected_texts = reference_charts.nice_ticks(*limits, n, integer)
    assert texts == expected_texts
    assert np.array_equal(positions, expected_positions)


@settings(max_examples=300, deadline=None)
@given(ranges(), st.integers(2, 12))
def test_texts_are_the_values_and_steps_are_nice(limits: tuple[float, float], n: int) -> None:
    positions, texts = nice_ticks(*limits, n)
    assert [float(text) for text in texts] == positions.tolist()
    assert 1 <= len(texts) <= n + 1
    assert limits[0] <= positions[0]
    assert positions[-1] <= limits[1]
    assert (np.diff(positions) > 0).all()
    assert len(set(texts)) == len(texts)
    if positions.tolist() == list(limits):
        return  # the ends themselves: no nice step parts two neighbouring numbers
    values = [Fraction(text) for text in texts]
    steps = {after - before for before, after in itertools.pairwise(values)}
    assert len(steps) <= 1
    for step in steps:
        digits = str(step.numerator * 10**400 // step.denominator).rstrip("0")
        assert digits in {"1", "2", "25", "5"}
        assert all(value % step == 0 for value in values)
    if any("e" in text for text in texts):
        assert all(re.fullmatch(r"0|-?\d(\.\d*[1-9])?e-?\d+", text) for text in texts)
    else:
        assert len({len(text.partition(".")[2]) for text in texts}) == 1


@settings(max_examples=300, deadline=None)
@given(ranges(), st.integers(2, 12))
def test_no_smaller_nice_step_would_do(limits: tuple[float, float], n: int) -> None:
    lo, hi = limits
    positions, texts = nice_ticks(lo, hi, n)
    if len(texts) < 2 or positions.tolist() == [lo, hi]:
        return
    step = Fraction(texts[1]) - Fraction(texts[0])
    # Down the ladder 1, 2, 2.5, 5.
    leading = str(step.numerator * 10**400 // step.denominator).rstrip("0")
    smaller = step * {"1": Fraction(1, 2), "5": Fraction(1, 2), "2": Fraction(1, 2)}.get(
        leading, Fraction(4, 5)
    )
    if float(smaller) < (hi - lo) / n:
        return  # too many intervals
    first = math.ceil(Fraction(math.nextafter(lo, -math.inf)) / smaller)
    marks = [float(k * smaller) for k in range(first, first + n + 4)]
    marks = [mark for mark in marks if lo <= mark <= hi]
    assert len(marks) > n + 1 or len(set(marks)) < len(marks)


@pytest.mark.parametrize(
    ("lo", "hi", "n", "expected"),
    [
        (0, 100, 5, "0 20 40 60 80 100"),
        (0, 100, 4, "0 25 50 75 100"),
        (-0.25, 0.5, 3, "-0.25 0.00 0.25 0.50"),
        (0, 1e-12, 4, "0 2.5e-13 5e-13 7.5e-13 1e-12"),
        (9.5e11, 1.2e12, 2, "1e12 1.2e12"),
        (1e9, 1e9 + 0.5, 2, "1000000000.00 1000000000.25 1000000000.50"),
        (-3e8, 3e8, 3, "-200000000 0 200000000"),
        (0.00012, 0.00018, 3, "0.00012 0.00014 0.00016 0.00018"),
    ],
)
def test_known_axes(lo: float, hi: float, n: int, expected: str) -> None:
    assert nice_ticks(lo, hi, n)[1] == expected.split()


def test_integer_steps_only_when_asked() -> None:
    assert nice_ticks(0, 9, 4, integer=True)[1] == ["0", "5"]
    assert nice_ticks(0, 9, 4)[1] == ["0.0", "2.5", "5.0", "7.5"]
    assert nice_ticks(0.2, 0.8, 4, integer=True)[1] == []


@pytest.mark.parametrize("ticks", [nice_ticks, reference_charts.nice_ticks])
@pytest.mark.parametrize(
    ("lo", "hi", "n", "message"),
    [
        (1.0, 1.0, 5, "hi: expected more than lo"),
        (2.0, 1.0, 5, "hi: expected more than lo"),
        (math.nan, 1.0, 5, "lo: expected a finite number"),
        (0.0, math.inf, 5, "hi: expected a finite number"),
        (0.0, 1.0, 0, "n: expected 1 to 1000"),
        (0.0, 1.0, 1001, "n: expected 1 to 1000"),
    ],
)
def test_bad_input(ticks: object, lo: float, hi: float, n: int, message: str) -> None:
    assert callable(ticks)
    with pytest.raises(ValueError, match=message):
        ticks(lo, hi, n)
