"""Questions for an SGLang verifier against a stand-in server, and what the answers must be."""

from __future__ import annotations

from typing import Any

import numpy as np

from lineup_fast.encoders import ByteEncoder
from lineup_fast.prompt_tokens import PromptBuilder
from lineup_fast.prompts import Recipe
from lineup_fast.verifiers.base import LabelTokens, TreeScores
from lineup_fast.verifiers.sglang import SGLangVerifier
from tests.standin_sglang import StandIn, log_probs

CAPTIONS = ["It rises.", "", "It falls from 9 to 1, then rests. " * 4, "x"]


def connect(server: StandIn | list[StandIn], **words: Any) -> SGLangVerifier:
    """A verifier of one stand-in or several."""
    urls = [one.url for one in server] if isinstance(server, list) else server.url
    return SGLangVerifier(urls, **{"tokenizer": ByteEncoder(), "deadline_s": 60.0, **words})


def questions(
    layout: Any = "candidates_first", n: int = 2, captions: list[str] = CAPTIONS, k: int = 3
) -> tuple[list[Any], LabelTokens]:
    """Trees of a few captions on numbers, and their labels."""
    builder = PromptBuilder(ByteEncoder(), Recipe(k=k, layout=layout))
    rng = np.random.default_rng(0)
    ids = builder.caption_ids(captions)
    made = [builder.tree(rng.standard_normal((k, 5)) * 9, 1, ids) for _ in range(n)]
    return made, builder.labels


def check_answers(
    trees: list[Any], labels: LabelTokens, answers: list[TreeScores], weights: str = "a"
) -> None:
    """Every answer is what the stand-in's function says about the whole prompt."""
    for tree, answer in zip(trees, answers, strict=True):
        for caption, position in np.argwhere(tree.questions >= 0).tolist():
            expected = log_probs(tree.prompt(caption, position), weights)[labels.ids[:, 0]]
            np.testing.assert_allclose(
                answer.label_logprobs[caption, position], expected, atol=1e-6
            )
        np.testing.assert_allclose(answer.label_mass, np.exp(answer.label_logprobs).sum(2))
