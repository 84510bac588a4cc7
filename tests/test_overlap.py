"""Longest shared run: native against twin and against a search that only compares slices."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.parity import both


def _by_slices(a: list[float], b: list[float]) -> int:
    for length in range(min(len(a), len(b)), 0, -1):
        starts = {tuple(a[i : i + length]) for i in range(len(a) - length + 1)}
        if any(tuple(b[j : j + length]) in starts for j in range(len(b) - length + 1)):
            return length
    return 0


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.integers(0, 2).map(float), min_size=1, max_size=16),
    st.lists(st.integers(0, 2).map(float), min_size=1, max_size=16),
)
def test_few_distinct_values(a: list[float], b: list[float]) -> None:
    assert both("longest_run", a, b, decimals=0) == _by_slices(a, b)


@pytest.mark.parametrize(
    ("a", "b", "decimals", "expected"),
    [
        ([1, 2, 3, 4], [9, 1, 2, 3], 4, 3),
        ([7], [7], 4, 1),
        ([7], [8], 4, 0),
        ([5] * 24, [5] * 10, 4, 10),
        ([0.0, 1.0], [-0.0, 1.0], 4, 2),
        ([1.00001, 2.00001], [1.00002, 2.00002], 4, 2),
        ([1.00001, 2.00001], [1.00002, 2.00002], 5, 0),
        ([1e-12, 2e-12], [1e-12, 3e-12], 16, 1),
        ([1e-12, 2e-12], [1e-12, 3e-12], 4, 2),
        ([1e12, 2e12, 3e12], [1e12 + 1, 2e12, 3e12], 4, 2),
        ([1e149, 1.0], [1e149, 2.0], 308, 1),
    ],
)
def test_known_runs(a: list[float], b: list[float], decimals: int, expected: int) -> None:
    assert both("longest_run", a, b, decimals=decimals) == expected
    assert both("longest_run", b, a, decimals=decimals) == expected


def test_rounding_agrees_on_ties_and_random_values() -> None:
    rng = np.random.default_rng(2)
    ties = np.arange(-50, 50) / 8
    for decimals in (0, 1, 2):
        assert both("longest_run", ties, np.round(ties, decimals), decimals=decimals) == 100
    values = rng.normal(size=500) * 10.0 ** rng.integers(-6, 6, 500)
    assert both("longest_run", values, np.round(values, 4), decimals=4) == 500


@pytest.mark.parametrize(
    ("a", "decimals", "text"),
    [
        ([], 4, "a: expected float64 [T] with no empty side, got shape (0,)"),
        ([[1.0]], 4, "a: expected float64 [T] with no empty side, got shape (1, 1)"),
        ([1.0, np.nan], 4, "a: expected finite values, got nan at step 1"),
        ([np.inf], 4, "a: expected finite values, got inf at step 0"),
        ([1.0], -1, "decimals: expected 0 to 308, got -1"),
        ([1.0], 309, "decimals: expected 0 to 308, got 309"),
        ([1.0], 2.0, "decimals: expected an integer, got 2.0"),
    ],
)
def test_bad_input(a: object, decimals: object, text: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the whole text is compared
        both("longest_run", a, [1.0], decimals=decimals)
    assert str(caught.value) == text
