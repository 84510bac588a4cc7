"""Prompt trees: native against twin, and against prompts written out one by one."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lineup_fast.kernels import PromptTree
from tests.parity import both

LAYOUTS = ["candidates_first", "caption_first"]
Rows = list[list[int]]


def _ragged(rows: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    flat = np.array([token for row in rows for token in row], dtype=np.int32)
    return flat, np.cumsum([0] + [len(row) for row in rows])


def _plain(layout: str, labels: Rows, blocks: Rows, caption: list[int], position: int) -> list[int]:
    """A prompt as the definition says: head 1, middle 2, tail 3, block end 9."""
    order = list(range(1, len(blocks)))
    order.insert(position, 0)
    candidates = [
        token
        for place, candidate in enumerate(order)
        for token in [*labels[place], *blocks[candidate], 9]
    ]
    if layout == "candidates_first":
        return [1, *candidates, 2, *caption, 3]
    return [1, *caption, 2, *candidates, 3]


def _tree(
    layout: str | int, labels: Rows, blocks: Rows, captions: Rows, /, **change: object
) -> PromptTree:
    parts = {
        "head": [1], "middle": [2], "tail": [3], "labels": _ragged(labels),
        "blocks": _ragged(blocks), "block_end": [9], "captions": _ragged(captions),
    } | change  # fmt: skip
    tree: PromptTree = both("prompt_tree", layout, *parts.values())
    return tree


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_paths_are_the_prompts(data: st.DataObject) -> None:
    tokens = st.lists(st.integers(10, 2**31 - 1), max_size=6)
    k = data.draw(st.integers(2, 8))
    labels = data.draw(st.lists(tokens, min_size=k, max_size=k))
    blocks = data.draw(st.lists(tokens, min_size=k, max_size=k))
    captions = data.draw(st.lists(tokens, min_size=1, max_size=5))
    for layout in LAYOUTS:
        tree = _tree(layout, labels, blocks, captions)
        assert tree.questions.shape == (len(captions), k)
        assert tree.parent[0] == -1
        assert (tree.parent[1:] < np.arange(1, len(tree.parent))).all()
        assert tree.offsets[-1] == len(tree.ids)
        for g, caption in enumerate(captions):
            for p in range(k):
                expected = _plain(layout, labels, blocks, caption, p)
                assert tree.prompt(g, p).tolist() == expected


@pytest.mark.parametrize("k", [2, 3, 4, 8])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_shared_prefix_occurs_once(layout: str, k: int) -> None:
    """Tokens as in the table of shared prefixes: F + tree·S + G·K·(C + a), or F + G·(…)."""
    size, caption, group = 50, 7, 3
    tree = _tree(layout, [[]] * k, [[5] * (size - 1)] * k, [[6] * caption] * group)
    shared = k**2 - (k - 1) * (k - 2) // 2
    if layout == "candidates_first":
        assert len(tree.ids) == 1 + shared * size + k + group * k * (caption + 1)
    else:
        assert len(tree.ids) == 1 + group * (caption + 1 + shared * size + k)


def test_layout_by_number() -> None:
    parts = ([[4], [5]], [[6], [7]], [[8]])
    for number, name in enumerate(LAYOUTS):
        np.testing.assert_array_equal(_tree(number, *parts).ids, _tree(name, *parts).ids)


_LABELS, _BLOCKS, _CAPTIONS = [[4], [5]], [[6], [7]], [[8]]


@pytest.mark.parametrize(
    ("layout", "change", "text"),
    [
        ("sideways", {}, "layout: expected candidates_first or caption_first, got 'sideways'"),
        (2, {}, "layout: expected 0 to 1, got 2"),
        (0, {"head": []}, "head: expected at least 1 id, got 0"),
        (0, {"head": [1.5]}, "head: expected int32 [n], got dtype float64"),
        (0, {"tail": [2**31]}, "tail: expected int32 [n], got 2147483648 to 2147483648"),
        (0, {"labels": _ragged([[4]])}, "labels: expected at least 2 candidates, got 1"),
        (0, {"blocks": _ragged([[4]])}, "blocks: expected 2 rows as in labels, got 1"),
        (0, {"captions": _ragged([])}, "captions: expected at least 1 caption, got 0"),
        (0, {"captions": [[1], [0, 1]]}, "captions: expected (ids, offsets), got list"),
        (
            0, {"captions": ([1, 2], [0, 3, 2])},
            "captions offsets: expected rising from 0 to 2, got [0, 3, 2]",
        ),
        (
            0, {"captions": ([1, 2], [0, 1])},
            "captions offsets: expected rising from 0 to 2, got [0, 1]",
        ),
    ],
)  # fmt: skip
def test_bad_input(layout: str | int, change: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        _tree(layout, _LABELS, _BLOCKS, _CAPTIONS, **change)
