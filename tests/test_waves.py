"""Plans of waves: every question once, every prefix computed before who counts on it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lineup_fast.encoders import ByteEncoder
from lineup_fast.kernels import PromptTree
from lineup_fast.prompt_tokens import PromptBuilder
from lineup_fast.prompts import Recipe
from lineup_fast.verifiers.base import keep_positions
from lineup_fast.verifiers.prefix_plan import Forest, build_forest
from lineup_fast.verifiers.sglang_wire import PromptWriter
from lineup_fast.verifiers.waves import Unit, plan

LAYOUTS = ("caption_first", "candidates_first")


def _trees(layout: Any, *, groups: int, captions: int, k: int = 4) -> list[PromptTree]:
    builder = PromptBuilder(ByteEncoder(), Recipe(k=k, layout=layout))
    rng = np.random.default_rng(0)
    made = []
    for group in range(groups):
        texts = [f"{group} {n}: it rises." for n in range(captions)]
        series = rng.standard_normal((k, 6)) * 9
        made.append(builder.tree(series, 1, builder.caption_ids(texts)))
    return made


def _computed(forest: Forest, units: list[Unit]) -> int:
    """Tokens that a cold radix cache computes, every wave of a unit seeing the waves before it.

    Units see nothing of each other: the worst case. Checks what prompts count on as it goes.
    """
    writer = PromptWriter(forest)
    total = 0
    for unit in units:
        known: set[tuple[int, ...]] = set()
        for wave in unit.waves:
            assert wave
            prompts = [(prompt, tuple(writer.ids(prompt.node))) for prompt in wave]
            for prompt, ids in prompts:
                assert len(ids) == prompt.tokens
                assert prompt.cached < prompt.tokens
                held = len(ids) - 1
                while held and ids[:held] not in known:
                    held -= 1
                assert held >= prompt.cached
                total += len(ids) - held
            for _, ids in prompts:
                known |= {ids[:n] for n in range(len(ids) + 1)}
    return total


def _asked(forest: Forest) -> list[int]:
    return sorted({node for table in forest.questions for node in table.ravel().tolist()} - {-1})


@pytest.mark.parametrize("k", [2, 3, 4, 7])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_question_is_sent_once_and_each_prefix_computed_once(layout: Any, k: int) -> None:
    trees = _trees(layout, groups=2, captions=3, k=k)
    forest = build_forest(trees)
    units = plan(forest).units
    assert sorted(prompt.node for unit in units for prompt in unit.prompts()) == _asked(forest)
    # Only the head of all prompts may be computed more than once: nothing waits for it here.
    head = len(forest.ids[0])
    distinct = sum(map(len, forest.ids))
    assert _computed(forest, units) <= distinct + (len(units) - 1) * head
    assert sum(unit.tokens for unit in units) == distinct + (len(units) - 1) * head


@pytest.mark.parametrize(("layout", "waves"), [("candidates_first", 3), ("caption_first", 2)])
def test_waves_are_few(layout: Any, waves: int) -> None:
    forest = build_forest(_trees(layout, groups=1, captions=2))
    units = plan(forest).units
    assert max(len(unit.waves) for unit in units) == waves
    # Of the rotations, those that begin with a distractor form one unit, the other is on its own;
    # of the captions, each does.
    assert len(units) == 2
    assert [len(unit.waves[0]) for unit in units] == [1, 1]


def test_followers_count_on_their_whole_prefix() -> None:
    forest = build_forest(_trees("candidates_first", groups=1, captions=4))
    for unit in plan(forest).units:
        for prompt in [prompt for wave in unit.waves[1:] for prompt in wave]:
            assert prompt.cached in {
                forest.start[node] for node in forest.path(prompt.node) if forest.start[node]
            }


def test_the_head_is_waited_for_only_where_it_saves_more_than_its_leader_costs() -> None:
    def forest(captions: int) -> Forest:
        return build_forest(_trees("caption_first", groups=1, captions=captions))

    head = len(forest(2).ids[0])
    for captions in (1, 2, 4, 8):
        order = plan(forest(captions))
        assert order.head_first == ((captions - 1) * head > order.units[0].waves[0][0].tokens)
        assert captions == 1 or len(order.units) == captions
    assert not plan(forest(2)).head_first
    assert plan(forest(40)).head_first


def test_a_short_prefix_is_not_waited_for() -> None:
    # 0 ─ 1 ─ {2, 3}: node 1 has 10 tokens and two ways on
    ids = [[7] * 50, [8] * 10, [1, 2], [3]]
    tree = PromptTree(
        np.array([token for node in ids for token in node] + [9], dtype=np.int32),
        np.cumsum([0, *map(len, ids), 1], dtype=np.int64),
        np.array([-1, 0, 1, 1, 0], dtype=np.int32),
        np.array([[2, 3, 4]], dtype=np.int32),
    )
    forest = build_forest([tree])
    assert [len(unit.waves) for unit in plan(forest, min_saving=11).units] == [1, 1, 1]
    assert [len(unit.waves) for unit in plan(forest, min_saving=10).units] == [2, 1]


def test_only_what_is_asked_is_sent() -> None:
    (tree,) = _trees("candidates_first", groups=1, captions=3)
    forest = build_forest([keep_positions(tree, [1])])
    assert sorted(p.node for unit in plan(forest).units for p in unit.prompts()) == _asked(forest)
    assert plan(build_forest([keep_positions(tree, [])])).units == []
    assert plan(build_forest([])).units == []


@given(st.data())
def test_any_forest_is_planned_soundly(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 12))
    parent = [-1] + [data.draw(st.integers(-1, node - 1)) for node in range(1, n)]
    sizes = [data.draw(st.integers(0, 30)) for _ in range(n)]
    sizes = [max(1, size) if above < 0 else size for size, above in zip(sizes, parent, strict=True)]
    ids = [data.draw(st.lists(st.integers(0, 2), min_size=m, max_size=m)) for m in sizes]
    rows = data.draw(st.lists(st.lists(st.integers(-1, n - 1), min_size=2, max_size=2), min_size=1))
    tree = PromptTree(
        np.array([token for node in ids for token in node], dtype=np.int32),
        np.cumsum([0, *sizes], dtype=np.int64),
        np.array(parent, dtype=np.int32),
        np.array(rows, dtype=np.int32),
    )
    forest = build_forest([tree])
    units = plan(forest, min_saving=data.draw(st.integers(0, 40))).units
    assert sorted(p.node for unit in units for p in unit.prompts()) == _asked(forest)
    _computed(forest, units)


def test_prompts_are_written_as_the_tree_has_them() -> None:
    trees = _trees("candidates_first", groups=2, captions=2)
    forest = build_forest(trees)
    writer = PromptWriter(forest)
    for tree, nodes in zip(trees, forest.questions, strict=True):
        for caption, position in np.ndindex(nodes.shape):
            ids = tree.prompt(caption, position).tolist()
            assert writer.ids(int(nodes[caption, position])) == ids
            assert writer.json(int(nodes[caption, position])) == str(ids)
