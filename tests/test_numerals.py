"""Numbers as text and as token ids: native against twin, Python's format and a text tokeniser."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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


@dataclass(frozen=True)
class Table:
    """A made-up tokenizer: some digit runs are several ids, runs between digits none to three."""

    digit_ids: np.ndarray
    digit_offsets: np.ndarray
    first_ids: np.ndarray
    first_neg_ids: np.ndarray
    sep_ids: np.ndarray
    sep_neg_ids: np.ndarray
    dot_ids: np.ndarray
    group: int


RUNS = [str(n) for n in range(10)] + [f"{n:02}" for n in range(100)]
RUNS += [f"{n:03}" for n in range(1000)]


def _table(group: int) -> Table:
    pieces = [[10_000 + i] if i % 7 else [i, i + 1] for i in range(len(RUNS))]

    def ints(*values: int) -> np.ndarray:
        return np.array(values, dtype=np.int32)

    return Table(
        digit_ids=np.concatenate([ints(*piece) for piece in pieces]),
        digit_offsets=np.cumsum([0] + [len(piece) for piece in pieces]),
        first_ids=ints(),
        first_neg_ids=ints(20_001),
        sep_ids=ints(20_002, 20_003),
        sep_neg_ids=ints(20_002, 20_004, 20_005),
        dot_ids=ints(20_006),
        group=group,
    )


def _ids_of_text(text: str, table: Table) -> list[int]:
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


@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize("decimals", [0, 1, 2, 5])
def test_ids(group: int, decimals: int) -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(100, 7)) * 10.0 ** rng.integers(-3, 9, (100, 7))
    values[:2] = np.reshape(HARD[:14], (2, 7))
    table = _table(group)
    ids, offsets = both("number_ids", values, decimals, table)
    assert ids.dtype == np.int32
    assert offsets.dtype == np.int64
    for m, row in enumerate(values):
        text = ";".join(f"{value:.{decimals}f}" for value in row)
        assert ids[offsets[m] : offsets[m + 1]].tolist() == _ids_of_text(text, table)


def test_first_ids_open_every_row() -> None:
    table = replace(_table(3), first_ids=np.array([5, 6], np.int32))
    ids, offsets = both("number_ids", [[8.0], [-8.0], [8.0]], 0, table)
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
def test_bad_table(change: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        both("number_ids", [[1.0]], 0, replace(_table(3), **change))


def test_bad_values() -> None:
    with pytest.raises(ValueError, match="values: expected finite values, got nan at row 1"):
        both("number_ids", [[1.0], [np.nan]], 0, _table(3))
    with pytest.raises(ValueError, match=r"values: expected float64 \[M, T\]"):
        both("number_ids", [1.0], 0, _table(3))
