"""Trees out of prompts that the tokenizer read whole: what they share is found, not known."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from lineup_fast.kernels import PromptTree

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    Ints = npt.NDArray[np.int32]
    Offsets = npt.NDArray[np.int64]


def ragged(rows: Sequence[Ints]) -> tuple[Ints, Offsets]:
    """Rows as one array and int64 offsets [n+1]."""
    offsets = np.array([*accumulate(map(len, rows), initial=0)], dtype=np.int64)
    return np.concatenate(rows).astype(np.int32, copy=False), offsets


def tree_around_captions(
    before: Sequence[Ints], after: Sequence[Ints], captions: Sequence[Ints]
) -> PromptTree:
    """The prompts ``before[p] + caption + after[p]`` as a tree.

    Args: before, after: K rotations, int32; captions: G, int32. What a rotation shares with all
    later ones in front of the caption is there once; where all of it is shared, so are the captions
    and what the rotations share behind them.
    """
    nodes: list[Ints] = []
    parents: list[int] = []
    questions = np.empty((len(captions), len(before)), dtype=np.int32)
    if all(np.array_equal(before[0], row) for row in before):
        nodes.append(before[0])
        parents.append(-1)
        for g, caption in enumerate(captions):
            nodes.append(caption)
            parents.append(0)
            questions[g] = _add_shared(after, len(nodes) - 1, nodes, parents)
    else:
        ends = _add_shared(before, -1, nodes, parents)
        for g, p in np.ndindex(questions.shape):
            nodes.append(np.concatenate([captions[g], after[p]]))
            parents.append(ends[p])
            questions[g, p] = len(nodes) - 1
    return PromptTree(*ragged(nodes), np.array(parents, dtype=np.int32), questions)


def tree_behind(prefix: Ints, rests: Sequence[Ints]) -> PromptTree:
    """The prompts ``prefix + rest`` of one question, int32, as a tree with questions [1, K].

    The prefix is a node of its own, so that trees that begin with the same one share it; what a
    rest shares with all later ones is there once, as the rotations of a target share what comes
    before it.
    """
    nodes: list[Ints] = [prefix]
    parents: list[int] = [-1]
    ends = _add_shared(rests, 0, nodes, parents)
    questions = np.array([ends], dtype=np.int32)
    return PromptTree(*ragged(nodes), np.array(parents, dtype=np.int32), questions)


def _add_shared(
    rows: Sequence[Ints], under: int, nodes: list[Ints], parents: list[int]
) -> list[int]:
    """Add the rows as nodes behind ``under``, what each shares with all later ones only once.

    Returns the node that ends each row.
    """
    ends = []
    done = 0  # ids that the chain of shared nodes holds by now
    for at, row in enumerate(rows):
        shared = min((_common(row, later) for later in rows[at + 1 :]), default=0)
        if shared > done:
            nodes.append(row[done:shared])
            parents.append(under)
            under, done = len(nodes) - 1, shared
        nodes.append(row[done:])
        parents.append(under)
        ends.append(len(nodes) - 1)
    return ends


def _common(a: Ints, b: Ints) -> int:
    """Length of the common beginning."""
    shortest = min(len(a), len(b))
    different = np.flatnonzero(a[:shortest] != b[:shortest])
    return int(different[0]) if len(different) else shortest
