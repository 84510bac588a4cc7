"""The parts of prefix sharing on their own: merged attention, forests, waves, buckets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from lineup_fast import kernels
from lineup_fast.encoders import ByteEncoder
from lineup_fast.prompt_tokens import PromptBuilder
from lineup_fast.prompts import Recipe
from lineup_fast.verifiers import prefix_attention
from lineup_fast.verifiers.base import withhold_too_long
from lineup_fast.verifiers.prefix_attention import attend, merge
from lineup_fast.verifiers.prefix_plan import batches, buckets, build_forest, waves


def _tree(ids: list[list[int]], parent: list[int], questions: Any) -> kernels.PromptTree:
    return kernels.PromptTree(
        np.array([token for node in ids for token in node], dtype=np.int32),
        np.cumsum([0, *map(len, ids)], dtype=np.int64),
        np.array(parent, dtype=np.int32),
        np.array(questions, dtype=np.int32),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_merged_parts_equal_one_softmax(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, h, 9, 8, generator=generator).to(dtype) for h in (4, 2, 2))
    whole, whole_lse = attend(q, k, v, 0.3, causal=False)
    first = attend(q, k[:, :, :4], v[:, :, :4], 0.3, causal=False)
    second = attend(q, k[:, :, 4:], v[:, :, 4:], 0.3, causal=False)
    tolerance = 1e-6 if dtype is not torch.bfloat16 else 2e-2
    merged, lse = merge(*first, *second)
    torch.testing.assert_close(merged.to(dtype), whole, atol=tolerance, rtol=0)
    # How exactly a kernel sums half-precision products depends on the processor.
    torch.testing.assert_close(
        lse, whole_lse, atol=1e-3 if dtype is torch.bfloat16 else 1e-5, rtol=0
    )
    for causal in (False, True):
        fused = attend(q, k, v, 0.3, causal=causal)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("lineup_fast.verifiers.prefix_attention._CPU_DTYPES", ())
            patch.setattr("lineup_fast.verifiers.prefix_attention.MATH_SCORES", 2 * 4 * 9 * 4)
            formula = attend(q, k, v, 0.3, causal=causal)
        torch.testing.assert_close(fused[0], formula[0], atol=tolerance, rtol=0)
        torch.testing.assert_close(fused[1], formula[1], atol=tolerance, rtol=0, check_dtype=False)


@pytest.mark.parametrize("heads", [1, 2])
def test_blocks_of_causal_rows_equal_one_masked_softmax(heads: int) -> None:
    generator = torch.Generator().manual_seed(1)
    length = 2 * prefix_attention.BLOCK + 37
    q, k, v = (
        torch.randn(2, h, length, 8, generator=generator, dtype=torch.float64)
        for h in (2, heads, heads)
    )
    out, lse = attend(q, k, v, 0.3, causal=True)
    k, v = (x.expand(2, 2, length, 8) if heads == 1 else x for x in (k, v))
    scores = (q @ k.transpose(2, 3)) * 0.3
    scores = scores.masked_fill(torch.ones(length, length).triu(1).bool(), float("-inf"))
    torch.testing.assert_close(out, scores.softmax(-1) @ v, atol=1e-12, rtol=0)
    torch.testing.assert_close(lse, scores.logsumexp(-1), atol=1e-12, rtol=0)


def test_forest_joins_chains_merges_equals_and_prunes() -> None:
    # 0 ─ 1 ─ 2 ─ 3 (asked), 2 ─ 4 (empty, asked: ends where 2 ends), 0 ─ 5 (not asked)
    first = _tree(
        [[1], [2, 3], [4], [5], [], [9]], [-1, 0, 1, 2, 2, 0], [[3, 4], [-1, -1]]
    )  # fmt: skip
    second = _tree([[1], [2, 3], [4], [6]], [-1, 0, 1, 2], [[3, 3]])
    forest = build_forest([first, second])
    assert [ids.tolist() for ids in forest.ids] == [[1, 2, 3, 4], [5], [6]]
    assert forest.parent == [-1, 0, 0]
    assert forest.start == [0, 4, 4]
    assert [questions.tolist() for questions in forest.questions] == [
        [[1, 0], [-1, -1]],
        [[2, 2]],
    ]
    assert forest.prefilled(2) == [5, 1]
    assert forest.path(2) == [0, 2]


@pytest.mark.parametrize("chunk", [1, 6, 10_000])
@pytest.mark.parametrize("layout", ["caption_first", "candidates_first"])
def test_waves_respect_order_and_size(layout: Any, chunk: int) -> None:
    builder = PromptBuilder(ByteEncoder(), Recipe(k=4, layout=layout))
    rng = np.random.default_rng(0)
    ids = builder.caption_ids(["It rises.", "", "It falls from 9 to 1, then rests. " * 4, "x"])
    trees = [builder.tree(rng.standard_normal((4, 5)) * 9, 1, ids) for _ in range(2)]
    forest = build_forest(trees)
    done: set[int] = set()
    for wave in waves(forest, chunk):
        assert all(forest.parent[node] in done | {-1} for node in wave.nodes)
        assert wave.offsets[-1] <= chunk or len(wave.nodes) == 1
        done |= set(wave.nodes)
        has_children = [node in forest.parent for node in wave.nodes]
        assert has_children == [wave.keep] * len(wave.nodes)
    assert done == set(range(len(forest.ids)))


def test_buckets_hold_every_segment_once_with_little_padding() -> None:
    lengths = np.random.default_rng(0).integers(1, 900, 60)
    groups = buckets(lengths)
    assert sorted(segment for group in groups for segment in group) == list(range(60))
    for group in groups:
        longest = lengths[group].max()
        assert lengths[group[0]] == longest
        assert (longest - lengths[group] <= max(32, longest // 8)).all()


def test_batches_are_bounded() -> None:
    trees = [_tree([[0] * n], [-1], [[0]]) for n in (5, 5, 20, 3, 3)]
    assert list(batches(trees, 10)) == [[0, 1], [2], [3, 4]]
    tree, reasons = withhold_too_long(trees[0], None)
    assert tree is trees[0]
    assert reasons == [None]
