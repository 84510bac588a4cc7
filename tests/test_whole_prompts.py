"""Prompts written out whole: native against twin and against the tree of the same group."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pytest

from lineup_fast import _core, kernels, reference
from lineup_fast.numerals import Numerals, NumeralTable
from lineup_fast.whole_prompts import ragged, tree_around_captions

LAYOUTS = ("candidates_first", "caption_first")


def _ints(*ids: int) -> np.ndarray:
    return np.array(ids, dtype=np.int32)


def _table() -> NumeralTable:
    """Digits are themselves."""
    runs = [f"{n:0{width}}" for width in (1, 2, 3) for n in range(10**width)]
    ids, offsets = ragged([_ints(*map(int, run)) for run in runs])
    return NumeralTable(
        ids, offsets, _ints(), _ints(10), _ints(11, 12), _ints(11, 10), _ints(13), 1
    )


def _case(n_sets: int, k: int, n_captions: int, steps: int, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)

    def some(high: int) -> np.ndarray:
        return rng.integers(100, 200, int(rng.integers(0, high)), dtype=np.int32)

    return {
        "head": some(9) if seed else _ints(7),
        "middle": some(5),
        "tail": some(5),
        "labels": ragged([some(4) for _ in range(k)]),
        "sets": rng.normal(size=(n_sets, k, steps)) * 10.0 ** rng.integers(-2, 8, (n_sets, k, 1)),
        "decimals": rng.integers(0, 13, n_sets),
        "captions": ragged([some(30) for _ in range(n_sets * n_captions)]),
    }


def _numerals(implementation: Any) -> Numerals:
    with mock.patch.object(kernels, "_impl", implementation):
        return Numerals(_table())


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("n_sets", "k", "n_captions", "steps"),
    [(1, 2, 1, 1), (3, 4, 2, 7), (2, 12, 1, 3), (5, 3, 3, 65)],
)
def test_native_equals_twin_and_tree(
    layout: str, n_sets: int, k: int, n_captions: int, steps: int
) -> None:
    case = _case(n_sets, k, n_captions, steps, seed=k)
    native, twin = _numerals(_core), _numerals(reference)
    ids, offsets = native.prompts(layout, **case)
    for mine, other in zip((ids, offsets), twin.prompts(layout, **case), strict=True):
        assert mine.dtype == other.dtype
        np.testing.assert_array_equal(mine, other)
    words = np.split(case["captions"][0], case["captions"][1][1:-1])
    fixed = {name: case[name] for name in ("middle", "tail", "labels")}
    for number, series in enumerate(case["sets"]):
        blocks = native.ids(series, int(case["decimals"][number]))
        mine = words[number * n_captions :][:n_captions]
        head = np.append(_ints(7), case["head"])  # a tree needs a root
        tree = kernels.prompt_tree(
            layout, head, **fixed, blocks=blocks, block_end=_ints(), captions=ragged(mine)
        )
        for g, p in np.ndindex(n_captions, k):
            at = (number * n_captions + g) * k + p
            np.testing.assert_array_equal(ids[offsets[at] : offsets[at + 1]], tree.prompt(g, p)[1:])


def test_threads_change_nothing_and_a_buffer_is_used() -> None:
    case = _case(200, 4, 2, 96)
    numerals = _numerals(_core)
    ids, offsets = numerals.prompts("caption_first", **case, threads=1)
    buffer = np.full(len(ids) + 3, -1, dtype=np.int32)
    for threads in (0, 1, 3):
        buffer[:] = -1
        out, ends = numerals.prompts("caption_first", **case, out=buffer, threads=threads)
        assert np.shares_memory(out, buffer)
        np.testing.assert_array_equal(out, ids)
        np.testing.assert_array_equal(ends, offsets)
        assert buffer[len(ids) :].tolist() == [-1] * 3


READ_ONLY = np.zeros(900, dtype=np.int32)
READ_ONLY.flags.writeable = False


@pytest.mark.parametrize(
    ("layout", "change", "text"),
    [
        ("x", {}, "layout: expected candidates_first or caption_first, got 'x'"),
        (2, {}, "layout: expected 0 to 1, got 2"),
        (0, {"sets": np.ones((1, 3, 2))}, "sets: expected 2 rows each as in labels, got 3"),
        (0, {"sets": np.ones((2, 2))}, "sets: expected float64 [B, K, T] with no empty side, got"),
        (0, {"sets": np.full((1, 2, 1), np.inf)}, "values: expected finite values, got inf at row"),
        (0, {"decimals": [1, 2]}, "decimals: expected one for each of 1, got 2"),
        (0, {"labels": ragged([_ints(1)])}, "labels: expected at least 2 candidates, got 1"),
        (0, {"captions": (_ints(), [0])}, "captions: expected at least 1 caption, got 0"),
        (
            0, {"sets": np.ones((2, 2, 1)), "decimals": 1},
            "captions: expected equally many for each of 2 sets, got 1",
        ),
        (0, {"out": np.zeros(9)}, "out: expected writable, C-contiguous int32 [n], got float64"),
        (0, {"out": READ_ONLY}, "out: expected writable, C-contiguous int32 [n], got int32 (900,)"),
        (0, {"out": READ_ONLY[::2].copy()[:3]}, "out: expected room for "),
        (0, {"threads": -1}, "threads: expected 0 to 1024, got -1"),
    ],
)  # fmt: skip
def test_bad_input(layout: Any, change: dict[str, Any], text: str) -> None:
    case = _case(1, 2, 1, 2) | change
    messages = []
    for implementation in (_core, reference):
        with pytest.raises(ValueError) as caught:  # noqa: PT011 - the text is compared
            _numerals(implementation).prompts(layout, **case)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert messages[0].startswith(text)


def test_a_tree_is_found_in_whole_prompts() -> None:
    before = [_ints(1, 2, 5, 9), _ints(1, 2, 6, 7, 9), _ints(1, 2, 6, 8, 9, 9)]
    after = [_ints(3, 1), _ints(3, 2), _ints(3, 2, 4)]
    captions = [_ints(50), _ints(60, 61)]
    first = tree_around_captions(before, after, captions)
    assert [first.node(i).tolist() for i in range(5)] == [[1, 2], [5, 9], [6], [7, 9], [8, 9, 9]]
    assert first.parent.tolist()[:5] == [-1, 0, 0, 2, 2]
    last = tree_around_captions([before[0]] * 3, after, captions)
    assert [last.node(i).tolist() for i in (0, 1, 2)] == [[1, 2, 5, 9], [50], [3]]
    for g, p in np.ndindex(2, 3):
        for tree, front in ((first, before[p]), (last, before[0])):
            expected = [*front.tolist(), *captions[g].tolist(), *after[p].tolist()]
            assert tree.prompt(g, p).tolist() == expected
