"""Short prefixes whose keys are kept in front of what follows them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from lineup_fast import kernels
from lineup_fast.encoders import ByteEncoder
from lineup_fast.verifiers import prefix_attention
from lineup_fast.verifiers.base import LabelTokens
from lineup_fast.verifiers.prefix_plan import Forest, build_forest, waves
from lineup_fast.verifiers.transformers import TransformersVerifier
from tests.toy_models import model

# Node → (its parent, its tokens): leaves lie between inner nodes, so that the rows behind a prefix
# do not follow one another.
NODES = {
    0: (-1, 20), 1: (0, 5), 2: (0, 150), 3: (2, 4), 4: (0, 7), 5: (0, 10), 6: (5, 3), 7: (5, 140),
    8: (7, 6), 9: (5, 9), 10: (7, 2), 11: (2, 130), 12: (11, 3), 13: (11, 8), 14: (0, 3),
}  # fmt: skip
LEAVES = [[1, 3, 4], [6, 8, 9], [10, 12, 13], [14, 2, 7]]


def _tree() -> kernels.PromptTree:
    rng = np.random.default_rng(0)
    sizes = [size for _, size in NODES.values()]
    return kernels.PromptTree(
        rng.integers(0, 250, sum(sizes)).astype(np.int32),
        np.cumsum([0, *sizes]),
        np.array([parent for parent, _ in NODES.values()], dtype=np.int32),
        np.array(LEAVES, dtype=np.int32),
    )


@pytest.mark.parametrize("joined", [0, 16, 128, 10**6])
def test_whatever_is_joined_the_answers_are_those_of_whole_prompts(
    joined: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefix_attention, "JOINED", joined)
    net = model("llama").double()
    shared, plain = (TransformersVerifier(net, ByteEncoder(), shared=x) for x in (True, False))
    assert shared.shared
    labels = LabelTokens(("A", "B", "C"), np.array([[65], [66], [67]], dtype=np.int32))
    (found,), (right,) = (side.score([_tree()], labels) for side in (shared, plain))
    np.testing.assert_allclose(found.label_logprobs, right.label_logprobs, atol=1e-6)
    assert found.reason == right.reason == [None] * 4
    (said,), (expected,) = (side.generate([_tree()]) for side in (shared, plain))
    assert said.texts == expected.texts


def _packed(forest: Forest) -> list[Any]:
    kept = prefix_attention.KeptKeys()
    device = torch.device("cpu")
    return [prefix_attention.pack_wave(forest, it, kept, device) for it in waves(forest, 10**6)]


@pytest.mark.parametrize("joined", [0, 16, 128, 10**6])
def test_prefixes_cover_the_path_of_every_row_once(
    joined: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefix_attention, "JOINED", joined)
    forest = build_forest([_tree()])
    held: dict[int, list[int]] = {}  # node → whose keys are kept as its own
    for packed in _packed(forest):
        rows = packed.wave.offsets.tolist()
        for node, front, row in zip(packed.wave.nodes, packed.fronts, rows, strict=False):
            covering = [a for first, last, a in packed.prefixes if first <= row < last]
            assert [x for a in covering for x in held[a]] == forest.path(node)[:-1]
            held[node] = [*(held[front] if front >= 0 else []), node]
    sizes = {node: sum(len(forest.ids[x]) for x in front[:-1]) for node, front in held.items()}
    assert max(sizes.values()) <= joined  # what is kept twice is bounded
    assert (max(sizes.values()) > 0) == (joined > 0)
