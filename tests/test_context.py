"""The bound on prompt lengths: no set that can be drawn exceeds it, and it is not much above."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lineup_fast.candidates import CandidateError, CandidateSet, draw, fixed
from lineup_fast.context import longest_prompt
from lineup_fast.corpus import Corpus, build
from lineup_fast.encoders import ByteEncoder
from lineup_fast.prompt_tokens import PromptBuilder
from lineup_fast.prompts import Recipe
from lineup_fast.readers import Channel
from lineup_fast.verifiers.base import prompt_lengths
from tests.toy_tokenizers import tokenizer


def _corpus(noise: float, seed: int = 0) -> Corpus:
    """Series that come again with a little noise: told apart only with decimals enough."""
    rng = np.random.default_rng(seed)
    shape = np.cumsum(rng.standard_normal(12)) * 50
    channels = []
    for source in range(3):
        values = np.tile(shape, 40) * 10.0 ** rng.integers(-2, 3)
        channels.append(
            Channel(f"source{source}", values + noise * rng.standard_normal(len(values)))
        )
    return build(channels, lengths=[8, 12], eta=1.0, overlap="window", seed=0)


def _sets(corpus: Corpus, recipe: Recipe, kind: Any) -> list[CandidateSet]:
    words: dict[str, Any] = {"k": recipe.k, "decimals": recipe.decimals, "kind": kind}
    made = []
    for item in corpus.ids():
        try:
            made.append(fixed(corpus, item, **words))
            made += [draw(corpus, item, seed=0, index=index, **words) for index in range(4)]
        except CandidateError:
            continue
    assert made
    return made


@pytest.mark.parametrize("noise", [1e-7, 1e-4, 10.0])
@pytest.mark.parametrize("decimals", ["auto", 0, 2])
def test_no_set_exceeds_the_bound(noise: float, decimals: Any) -> None:
    corpus, recipe = _corpus(noise), Recipe(k=3, decimals=decimals)
    builder = PromptBuilder(ByteEncoder(), recipe)
    caption = builder.caption_ids(["x"])
    sets = _sets(corpus, recipe, "nearest")
    trees = [builder.tree(one.series, one.decimals, caption) for one in sets]
    longest = max(int(prompt_lengths(tree).max()) for tree in trees) - len(caption[0])
    bound = longest_prompt(corpus, builder, "nearest")
    assert longest <= bound <= longest + 40  # of about 500 to 1,100
    if noise < 1e-3 and decimals == 0:
        assert max(one.decimals for one in sets) >= 3  # what the recipe says would not bound it


@pytest.mark.parametrize("kind", ["random", "shuffle", "synthetic"])
def test_other_kinds_are_bounded_by_the_most_decimals(kind: str) -> None:
    corpus, recipe = _corpus(1e-6), Recipe(k=3)
    builder = PromptBuilder(ByteEncoder(), recipe)
    caption = builder.caption_ids(["x"])
    bound = longest_prompt(corpus, builder, kind)
    for one in _sets(corpus, recipe, kind):
        tree = builder.tree(one.series, one.decimals, caption)
        assert int(prompt_lengths(tree).max()) <= bound + len(caption[0])


@pytest.mark.parametrize("family", ["llama3", "gpt2"])
@pytest.mark.parametrize("layout", ["caption_first", "candidates_first"])
def test_it_holds_for_tokenizers(family: str, layout: Any) -> None:
    corpus, recipe = _corpus(1e-3), Recipe(k=4, layout=layout)
    builder = PromptBuilder(tokenizer(family), recipe)
    caption = builder.caption_ids(["x"])
    bound = longest_prompt(corpus, builder, "nearest")
    for one in _sets(corpus, recipe, "nearest")[::5]:
        tree = builder.tree(one.series, one.decimals, caption)
        assert int(prompt_lengths(tree).max()) <= bound + len(caption[0])
