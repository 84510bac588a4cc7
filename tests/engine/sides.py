"""One model on an engine and on transformers, and the questions that both are asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lineup_fast.prompt_tokens import PromptBuilder
from lineup_fast.prompts import Recipe
from lineup_fast.verifiers.base import LabelTokens, TreeScores
from lineup_fast.verifiers.engine_process import EngineProcess
from lineup_fast.verifiers.prefix_plan import build_forest
from lineup_fast.verifiers.sglang import SGLangVerifier
from lineup_fast.verifiers.sglang_wire import Reply, label_options
from lineup_fast.verifiers.transformers import TransformersVerifier
from lineup_fast.verifiers.wave_runner import run_waves
from lineup_fast.verifiers.waves import Plan, Unit, plan

LAYOUTS = ("caption_first", "candidates_first")
EXACT = 1e-4  # float32, label log-probabilities
# The tiny verifier's own float32 logits are 1.1e-4 from those in float64, and the shared path of
# transformers, which sums in another order, errs by as much to the other side.
ROUNDING = 3e-4


@dataclass(frozen=True)
class Side:
    """One model on an engine, and the same on transformers: shared, and one prompt at a time."""

    name: str
    process: EngineProcess
    engine: SGLangVerifier
    shared: TransformersVerifier
    oracle: TransformersVerifier
    steps: int

    def questions(self, layout: Any, *, groups: int = 4) -> tuple[list[Any], LabelTokens]:
        """Trees of G = 8 captions and K = 4 candidates, whole numbers 0 to 100."""
        recipe = Recipe(k=4, layout=layout, decimals=0)
        builder = PromptBuilder(self.engine.encoder, recipe)
        rng = np.random.default_rng(groups)
        trees = []
        for _ in range(groups):
            series = rng.integers(0, 101, (4, self.steps)).astype(float)
            spots = rng.integers(0, self.steps, 8)
            texts = [f"{series[0, at]:.0f} at step {at}, then it moves on." for at in spots]
            trees.append(builder.tree(series, 0, builder.caption_ids(texts)))
        return trees, builder.labels

    def flush(self) -> None:
        """Make the server forget every prefix."""
        self.engine._command("flush_cache")


def same(answers: list[TreeScores], oracle: list[TreeScores]) -> float:
    """Largest gap of log-probabilities; picks and reasons have to be the same."""
    for one, other in zip(answers, oracle, strict=True):
        assert one.reason == other.reason == [None] * len(one.reason)
        assert np.array_equal(one.label_logprobs.argmax(2), other.label_logprobs.argmax(2))
        assert one.prompt_tokens == other.prompt_tokens
    return max(
        float(np.abs(one.label_logprobs - other.label_logprobs).max())
        for one, other in zip(answers, oracle, strict=True)
    )


def cached_at_once(side: Side, trees: list[Any], labels: LabelTokens) -> int:
    """Cached tokens when every question is sent at once to a server that knows nothing."""
    side.flush()
    forest = build_forest(trees)
    prompts = [prompt for unit in plan(forest).units for prompt in unit.prompts()]
    found = replies_of(side, forest, Plan([Unit([prompts], 1)], head_first=False), labels)
    return sum(reply.cached for reply in found.values())


def replies_of(side: Side, forest: Any, order: Plan, labels: LabelTokens) -> dict[int, Reply]:
    options = label_options(np.unique(labels.ids[labels.ids >= 0]).tolist())
    found = side.engine._fleet.run(lambda fleet: run_waves(fleet, forest, order, options, 300.0))
    replies = {node: reply for node, reply in found.items() if isinstance(reply, Reply)}
    assert len(replies) == len(found)
    return replies
