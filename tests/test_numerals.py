"""Numbers as text and as token ids: native against twin, Python's format and a text tokeniser."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lineup_fast import _core, kernels, reference
from lineup_fast.numerals import Numerals, NumeralTable
from tests.conftest import KNOWN
from tests.parity import both

HARD = [0.0, -0.0, 0.005, 0.125, -0.001, 2.675, 0.5, 1.5, 2.5, 123456.785, 1e12, -1e12, 1e-12,
        0.1 + 0.2, 999.9995, -999.5, 1e150, 4.35, 9.995, 1e15 + 0.3]  # fmt: skip


@pytest.mark.parametrize("decimals", [0, 1, 2, 3, 6, 12])
@pytest.mark.parametrize("separator", [", ", ",", "", "\n", "é"])
def test_text_is_pythons(decimals: int, separator: str) -> None:
    expected = separator.join(f"{value:.{decimals}f}" for value in HARD)
    assert both("format_numbers", HARD, decimals, separator) == expected


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(-1e150, 1e150), min_size=1, max_size=20), st.integers(0, 12))
def test_text_of_any_values(values: list[float], decimals: int) -> None:
    expected = ", ".join(f"{value:.{decimals}f}" for value in values)
    assert both("format_numbers", values, decimals) == expected


@pytest.mark.parametrize(
    ("values", "decimals", "text"),
    [
        ([], 2, "values: expected float64 [T] with no empty side, got shape (0,)"),
        ([1.0, -np.inf], 2, "values: expected finite values, got -inf at step 1"),
        ([1.0], 13, "decimals: expected 0 to 12, got 13"),
        ([1.0], -1, "decimals: expected 0 to 12, got -1"),
    ],
)
def test_bad_text_input(values: object, decimals: int, text: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the whole text is compared
        both("format_numbers", values, decimals)
    assert str(caught.value) == text


RUNS = [str(n) for n in range(10)] + [f"{n:02}" for n in range(100)]
RUNS += [f"{n:03}" for n in range(1000)]


def _table(group: int, wide: bool = True) -> NumeralTable:
    """A made-up tokenizer; a wide one has digit runs of several ids, and runs of none or three."""
    pieces = [[10_000 + i] if i % 7 or not wide else [i, i + 1] * 2 for i in range(len(RUNS))]

    def ints(*values: int) -> np.ndarray:
        return np.array(values, dtype=np.int32)

    return NumeralTable(
        digit_ids=np.concatenate([ints(*piece) for piece in pieces]),
        digit_offsets=np.cumsum([0] + [len(piece) for piece in pieces]),
        first_ids=ints(),
        first_neg_ids=ints(20_001),
        sep_ids=ints(20_002, 20_003),
        sep_neg_ids=ints(20_002, 20_004, 20_005),
        dot_ids=ints(20_006),
        group=group,
    )


def _ids_of_text(text: str, table: NumeralTable) -> list[int]:
    """Ids of a row of numbers joined by ";": regular expressions instead of a walk."""
    ids: list[int] = []
    for token in re.findall(rf"^-|;-|;|\.|\d{{1,{table.group}}}", text):
        if token.isdigit():
            at = RUNS.index(token)
            ids += table.digit_ids[table.digit_offsets[at] : table.digit_offsets[at + 1]].tolist()
        else:
            run = {
                "-": table.first_neg_ids,
                ";": table.sep_ids,
                ";-": table.sep_neg_ids,
                ".": table.dot_ids,
            }
            ids += run[token].tolist()
    return ids


def _both(values: object, decimals: object, table: NumeralTable, **options: Any) -> Any:
    """Native ids, which are the twin's on every instruction set; raises what both raise."""
    outcomes: list[Any] = []
    for implementation, isa in ((reference, ""), *((_core, isa) for isa in KNOWN)):
        with (
            mock.patch.object(kernels, "_impl", implementation),
            mock.patch.dict(os.environ, {"LINEUP_ISA": isa}),
        ):
            try:
                outcomes.append(Numerals(table).ids(values, decimals, **options))
            except ValueError as error:
                outcomes.append(error)
    for outcome in outcomes[1:]:
        if isinstance(outcome, ValueError):
            assert str(outcome) == str(outcomes[0])
            raise outcome
        assert [part.dtype for part in outcome] == [np.int32, np.int64]
        for mine, twin in zip(outcome, outcomes[0], strict=True):
            np.testing.assert_array_equal(mine, twin)
    return outcomes[1]


@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize("decimals", range(13))
def test_ids(group: int, decimals: int, wide: bool) -> None:
    rng = np.random.default_rng(decimals)
    values = rng.normal(size=(100, 7)) * 10.0 ** rng.integers(-3, 9, (100, 7))
    values[:2] = np.reshape(HARD[:14], (2, 7))
    values[2:6] = rng.integers(-4000, 4000, (4, 7)) * 0.5 / 10.0**decimals  # half of them ties
    table = _table(group, wide)
    ids, offsets = _both(values, decimals, table)
    for m, row in enumerate(values):
        text = ";".join(f"{value:.{decimals}f}" for value in row)
        assert ids[offsets[m] : offsets[m + 1]].tolist() == _ids_of_text(text, table)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.floats(-1e12, 1e12) | st.integers(-3000, 3000).map(lambda n: n * 0.125),
             min_size=1, max_size=80),
    st.integers(0, 12), st.sampled_from([1, 3]),
)  # fmt: skip
def test_ids_of_any_values(values: list[float], decimals: int, group: int) -> None:
    table = _table(group, wide=False)
    ids, _ = _both([values], decimals, table)
    text = ";".join(f"{value:.{decimals}f}" for value in values)
    assert ids.tolist() == _ids_of_text(text, table)


def test_every_row_may_have_its_own_decimals_and_threads_change_nothing() -> None:
    values = np.random.default_rng(0).normal(size=(700, 96)).cumsum(axis=1)
    decimals = np.arange(700) % 13
    table = _table(3, wide=False)
    ids, offsets = Numerals(table).ids(values, decimals, threads=1)
    for threads in (0, 2, 5):
        for mine, one in zip(Numerals(table).ids(values, decimals, threads=threads),
                             (ids, offsets), strict=True):  # fmt: skip
            np.testing.assert_array_equal(mine, one)
    for row in (0, 1, 12, 699):
        alone, _ = _both(values[row : row + 1], int(decimals[row]), table)
        np.testing.assert_array_equal(ids[offsets[row] : offsets[row + 1]], alone)


def test_first_ids_open_every_row() -> None:
    table = replace(_table(3), first_ids=np.array([5, 6], np.int32))
    ids, offsets = _both([[8.0], [-8.0], [8.0]], 0, table)
    assert ids.tolist() == [5, 6, 10_008, 20_001, 10_008, 5, 6, 10_008]
    assert offsets.tolist() == [0, 3, 5, 8]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"group": 2}, "table.group: expected 1 or 3, got 2"),
        ({"digit_offsets": np.zeros(1111, np.int64)}, "table.digits offsets: expected rising"),
        ({"digit_offsets": np.array([0, 1269])}, "table.digit"),
        ({"digit_offsets": np.arange(1112)}, "table.digit"),
        ({"sep_ids": np.array([1.5])}, "table.sep_ids: expected int32"),
        ({"dot_ids": np.array([[1]])}, "table.dot_ids: expected int32"),
    ],
)
def test_bad_table(change: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        Numerals(replace(_table(3), **change))


@pytest.mark.parametrize(
    ("values", "decimals", "text"),
    [
        ([[1.0], [np.nan]], 0, "values: expected finite values, got nan at row 1, step 0"),
        ([1.0], 0, "values: expected float64 [M, T] with no empty side, got shape (1,)"),
        ([[1.0]], 13, "decimals: expected 0 to 12, got 13"),
        ([[1.0]], True, "decimals: expected an integer, got True"),
        ([[1.0]], [0, 1], "decimals: expected one for each of 1, got 2"),
        ([[1.0], [2.0]], [0, -1], "decimals: expected 0 to 12, got -1"),
    ],
)
def test_bad_values(values: object, decimals: object, text: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the whole text is compared
        _both(values, decimals, _table(3))
    assert str(caught.value) == text
