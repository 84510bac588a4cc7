"""Which tokens of a batch of prompt trees are computed, and in which order.

A forest is the union of the trees of a call: unasked branches are pruned, nodes that several trees
share are merged, chains become one node. Its nodes are then laid out in waves: everything in a wave
depends only on earlier waves, and all leaves come last, in chunks of bounded size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from lineup_fast.kernels import PromptTree

    Ints = npt.NDArray[np.int32]

MAX_BUCKET_SLACK = 32  # padding tokens a short segment may get to be batched with a longer one


@dataclass(frozen=True)
class Forest:
    """Distinct nodes of several trees; parents come before children.

    ids[i] int32: tokens of node i; parent[i] (-1: none); start[i]: tokens before it;
    tree[i]: the first tree that needs it; questions[t] int32 [G, K]: node of each question of
    tree t, -1 where nothing is asked.
    """

    ids: list[Ints]
    parent: list[int]
    start: list[int]
    tree: list[int]
    questions: list[Ints]

    def path(self, node: int) -> list[int]:
        """The nodes from the root to ``node``, itself included."""
        nodes = []
        while node >= 0:
            nodes.append(node)
            node = self.parent[node]
        return nodes[::-1]

    def prefilled(self, n_trees: int) -> list[int]:
        """Computed tokens that each tree pays for, [n_trees]."""
        totals = [0] * n_trees
        for ids, tree in zip(self.ids, self.tree, strict=True):
            totals[tree] += len(ids)
        return totals


@dataclass(frozen=True)
class Wave:
    """Nodes computed in one forward pass, packed one after the other.

    nodes in packing order, by path; offsets int64 [n+1]: rows of each; keep: whether
    later waves read the keys and values of these nodes.
    """

    nodes: list[int]
    offsets: npt.NDArray[np.int64]
    keep: bool


def _needed(tree: PromptTree) -> list[int]:
    """Nodes on the way to an asked question, ascending."""
    parent = tree.parent.tolist()
    seen: set[int] = set()
    for node in set(tree.questions.ravel().tolist()) - {-1}:
        at = node
        while at >= 0 and at not in seen:
            seen.add(at)
            at = parent[at]
    return sorted(seen)


def _merged(trees: Sequence[PromptTree]) -> Forest:
    """All needed nodes of all trees, equal continuations of equal prefixes once."""
    forest = Forest([], [], [], [], [])
    known: dict[tuple[int, bytes], int] = {}
    for number, tree in enumerate(trees):
        place = np.full(len(tree.parent) + 1, -1, dtype=np.int32)  # the last entry stands for -1
        for node in _needed(tree):
            ids = tree.node(node)
            above = int(place[tree.parent[node]])
            if not ids.size:  # an empty node ends where its parent ends
                place[node] = above
                continue
            key = (above, ids.tobytes())
            at = known.get(key, -1)
            if at < 0:
                at = known[key] = len(forest.ids)
                forest.ids.append(ids)
                forest.parent.append(above)
                forest.start.append(
                    forest.start[above] + len(forest.ids[above]) if above >= 0 else 0
                )
                forest.tree.append(number)
            place[node] = at
        forest.questions.append(place[tree.questions])
    return forest


def build_forest(trees: Sequence[PromptTree]) -> Forest:
    """The distinct nodes that the trees ask for, with chains joined into single nodes."""
    raw = _merged(trees)
    children = [0] * len(raw.ids)
    for parent in raw.parent:
        if parent >= 0:
            children[parent] += 1
    asked = {node for questions in raw.questions for node in questions.ravel().tolist()}
    joins = [count == 1 and node not in asked for node, count in enumerate(children)]
    if not any(joins):
        return raw
    forest = Forest([], [], [], [], [])
    place = np.full(len(raw.ids) + 1, -1, dtype=np.int32)
    pending: dict[int, list[Ints]] = {}
    for node, ids in enumerate(raw.ids):
        parent = raw.parent[node]
        chain = parent >= 0 and joins[parent]
        pieces = [*pending.pop(parent), ids] if chain else [ids]
        if joins[node]:
            pending[node] = pieces
            place[node] = place[parent]  # the node above the chain
            continue
        place[node] = len(forest.ids)
        above = int(place[parent]) if parent >= 0 else -1
        forest.ids.append(np.concatenate(pieces) if len(pieces) > 1 else ids)
        forest.parent.append(above)
        forest.start.append(raw.start[node] + len(ids) - len(forest.ids[-1]))
        forest.tree.append(raw.tree[node])
    forest.questions.extend(place[questions] for questions in raw.questions)
    return forest


def packed(forest: Forest, nodes: list[int], chunk_tokens: int, *, keep: bool) -> Iterator[Wave]:
    """The nodes in order of their paths, cut into waves of at most ``chunk_tokens`` rows."""
    nodes = sorted(nodes, key=forest.path)  # descendants of a node become adjacent
    chunk: list[int] = []
    rows = [0]
    for node in nodes:
        size = len(forest.ids[node])
        if chunk and rows[-1] + size > chunk_tokens:
            yield Wave(chunk, np.array(rows, dtype=np.int64), keep)
            chunk, rows = [], [0]
        chunk.append(node)
        rows.append(rows[-1] + size)
    if chunk:
        yield Wave(chunk, np.array(rows, dtype=np.int64), keep)


def waves(forest: Forest, chunk_tokens: int, *, keep_leaves: bool = False) -> Iterator[Wave]:
    """Inner nodes level by level, then every leaf; ``keep_leaves`` where replies will follow."""
    inner = {parent for parent in forest.parent if parent >= 0}
    level: dict[int, list[int]] = {}
    depth = [0] * len(forest.ids)
    leaves = []
    for node, parent in enumerate(forest.parent):
        depth[node] = depth[parent] + 1 if parent >= 0 else 0
        if node in inner:
            level.setdefault(depth[node], []).append(node)
        else:
            leaves.append(node)
    for number in sorted(level):
        yield from packed(forest, level[number], chunk_tokens, keep=True)
    yield from packed(forest, leaves, chunk_tokens, keep=keep_leaves)


def grow(forest: Forest, parents: Sequence[int], tokens: Sequence[int]) -> list[int]:
    """Append one node of one token behind each parent; returns the new nodes."""
    nodes = []
    for parent, token in zip(parents, tokens, strict=True):
        nodes.append(len(forest.ids))
        forest.start.append(forest.start[parent] + len(forest.ids[parent]))
        forest.ids.append(np.array([token], dtype=np.int32))
        forest.parent.append(parent)
        forest.tree.append(forest.tree[parent])
    return nodes


def buckets(lengths: npt.NDArray[np.int64]) -> list[list[int]]:
    """Segments of similar length, to be padded and attended as one batch.

    Args: lengths int64 [n]. A bucket pads no segment by more than an eighth or 32 tokens.
    """
    order = np.argsort(-lengths, kind="stable").tolist()
    groups: list[list[int]] = []
    longest = 0
    for segment in order:
        slack = max(MAX_BUCKET_SLACK, longest // 8)
        if not groups or longest - int(lengths[segment]) > slack:
            groups.append([])
            longest = int(lengths[segment])
        groups[-1].append(segment)
    return groups


def batches(trees: Sequence[PromptTree], max_tokens: int) -> Iterator[list[int]]:
    """Runs of trees whose distinct tokens stay below ``max_tokens``, at least one tree each."""
    run: list[int] = []
    total = 0
    for number, tree in enumerate(trees):
        size = len(tree.ids)
        if run and total + size > max_tokens:
            yield run
            run, total = [], 0
        run.append(number)
        total += size
    if run:
        yield run
