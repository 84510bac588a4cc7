"""One step's questions to a real verifier beside their plan, as a program that prints JSON.

``python tests/planned_verifier.py memory|time tiny|wide LAYOUT CHARTS NUMBERS``, with the numbers
of a series; run it with one thread.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

from lineup_fast.prompt_tokens import PromptBuilder
from lineup_fast.verifiers.prefix_plan import build_forest
from lineup_fast.verifiers.transformers import TransformersVerifier
from tests.planned_run import resident
from trainer.config import RlooConfig
from trainer.plan import duration, memory, probe
from trainer.plan.rates import measure_cpu
from trainer.plan.reading import counted_as, read_tokens
from trainer.plan.shapes import from_config

TINY = Path(__file__).parents[1] / "trainer" / "tiny" / "verifier"
G, K = 8, 4


def wide_model() -> Any:
    """Random weights of a width at which matmuls are most of the work."""
    torch.manual_seed(0)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=1024, hidden_size=512, intermediate_size=1408, num_hidden_layers=4,
            num_attention_heads=8, num_key_value_heads=2, max_position_embeddings=2048,
            eos_token_id=2,
        )
    )  # fmt: skip


class Asked:
    """A verifier and the questions of one step; `read`: what the plan takes them for."""

    def __init__(self, kind: str, layout: Any, charts: int, numbers: int) -> None:
        torch.set_num_threads(1)
        model = str(TINY) if kind == "tiny" else wide_model()
        self.verifier = TransformersVerifier(model, AutoTokenizer.from_pretrained(TINY))
        config = RlooConfig(
            layout=layout, decimals=0, k=K, charts=charts, group_size=G,
            captions_per_update=G * charts,
        )  # fmt: skip
        self.builder = PromptBuilder(self.verifier.encoder, config.recipe())
        self.trees, captions, sizes = [], [], []
        rng = np.random.default_rng(0)
        for _ in range(charts):
            series = rng.integers(0, 101, (K, numbers)).astype(float)
            spots = rng.integers(0, numbers, (G, 4))
            texts = [
                ", then ".join(f"{series[0, at]:.0f} at step {at}" for at in row) for row in spots
            ]
            ids = self.builder.caption_ids(texts)
            captions += map(len, ids)
            sizes.append(len(self.builder.number_ids(series, 0)[0]) / K)
            self.trees.append(self.builder.tree(series, 0, ids))
        rough = read_tokens(config, float(np.mean(captions)), float(np.mean(sizes)))
        self.read = counted_as(rough, sum(map(len, build_forest(self.trees).ids)), "counted")
        self.shape = from_config("asked", json.loads(self.verifier.model.config.to_json_string()))

    def ask(self) -> None:
        """All questions of the step."""
        answers = self.verifier.score(self.trees, self.builder.labels)
        assert all(reason is None for answer in answers for reason in answer.reason)
        assert sum(answer.prefilled_tokens for answer in answers) == self.read.tokens


def peak(asked: Asked) -> dict[str, float]:
    """Planned and measured bytes at the peak, above the loaded model."""
    Asked("tiny", "candidates_first", 1, 12).ask()  # libraries take their workspaces
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
    asked.ask()
    found = resident("VmHWM") - before
    read = asked.read
    _, call = memory.verifier(
        asked.shape, 4, read.tokens, read.kept + read.copied, on_cpu=True
    )  # fmt: skip
    return {"planned": sum(call.values()), "measured": float(found)}


def seconds(asked: Asked, rounds: int = 3) -> dict[str, float]:
    """Planned and measured CPU seconds; the median of some rounds after one to warm up."""
    text, read = asked.shape.text, asked.read
    rates = measure_cpu(text.hidden, text.ffn, text.head_dim, text.linear_weights)
    spent = [probe.spent(asked.ask, process_time) for _ in range(rounds + 1)]
    work = duration.prefill(text, read.tokens, read.context, read.questions, 4, rates)
    return {"planned": work.seconds(rates), "measured": median(spent[1:])}


def main(arguments: list[str]) -> None:
    what, kind, layout, charts, numbers = arguments
    asked = Asked(kind, layout, int(charts), int(numbers))
    sys.stdout.write(json.dumps((peak if what == "memory" else seconds)(asked)) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
