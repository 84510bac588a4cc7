"""A rollout and an update of a real captioner beside their plan, as a program that prints JSON.

``python tests/planned_run.py memory|time tiny|wide [NAME=VALUE]...``; run it with one thread.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from transformers import Qwen2_5_VLForConditionalGeneration

from tests.random_vlm import byte_tokenizer, random_images, random_model
from trainer.config import RlooConfig
from trainer.optim import make_optimizer
from trainer.plan import duration, memory, probe
from trainer.plan.command import training_of
from trainer.plan.memory import StepShape
from trainer.plan.rates import measure_cpu
from trainer.plan.shapes import ModelShape, from_config
from trainer.policy import Captioner
from trainer.rloo import Batch, update
from trainer.rollouts import TransformersSampler, gather

TINY = Path(__file__).parents[1] / "trainer" / "tiny" / "captioner"


def wide_model() -> Any:
    """16 million random weights in five layers, so that matmuls are most of the work."""
    config = random_model().config
    text, vision = config.text_config, config.vision_config
    text.hidden_size, text.intermediate_size, text.num_hidden_layers = 512, 1408, 5
    text.num_attention_heads, text.num_key_value_heads, text.vocab_size = 8, 2, 4096
    text.layer_types = ["full_attention"] * 5
    text.rope_parameters["mrope_section"] = [16, 8, 8]
    vision.hidden_size, vision.intermediate_size, vision.num_heads = 128, 256, 4
    vision.out_hidden_size = 512
    return Qwen2_5_VLForConditionalGeneration(config).eval()


class Run:
    """A captioner with a rollout step and its update; captions have the full length."""

    def __init__(self, kind: str, changes: dict[str, Any]) -> None:
        values = {
            "model": str(TINY), "charts": 4, "group_size": 8, "captions_per_update": 32,
            "micro_groups": 2, "charts_at_once": 4, "max_new_tokens": 40, "threads": 1,
            "compute_dtype": "float32", "gradient_checkpointing": False, "verifier": str(TINY),
        }  # fmt: skip
        self.config = RlooConfig(**(values | changes))
        torch.set_num_threads(1)
        torch.manual_seed(0)
        options = {"caption_prompt": "Describe the chart."}
        if kind == "tiny":
            self.captioner = Captioner.load(TINY, **options)
        else:
            self.captioner = Captioner(wide_model(), byte_tokenizer(), **options)
            self.captioner.banned = self.captioner.banned[:4]  # all ids stand for something
        model = self.captioner.model
        if self.config.gradient_checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
            model.train()
        self.captioner.eos_ids = frozenset([model.config.text_config.vocab_size])
        self.training = training_of(self.config)
        self.parameters = list(model.parameters())
        self.optimizer = make_optimizer(self.config.optimizer, self.parameters, (0.9, 0.95), 0.0)
        self.ids = [str(row) for row in range(self.config.charts)]
        self.images = random_images(self.config.charts, 112, 224)
        self.prompts = self.captioner.prompts(self.images)
        self.drawn: Any = None

    def shape(self) -> tuple[ModelShape, StepShape]:
        """Sizes of the captioner and of the step."""
        c, length = self.config, self.config.max_new_tokens
        shape = from_config("run", json.loads(self.captioner.model.config.to_json_string()))
        step = StepShape(
            self.prompts.input_ids.shape[1], int(self.prompts.grid[0].prod()), 112 * 224,
            length, length, c.charts, c.group_size, c.captions_per_update, c.micro_groups,
            c.charts_at_once, length,
        )  # fmt: skip
        return shape, step

    def rollout(self) -> None:
        """Draws the captions."""
        c = self.config
        sampler = TransformersSampler(
            self.captioner, c.group_size, c.max_new_tokens, seed=0, charts_at_once=c.charts_at_once
        )
        parts = list(sampler.sample(self.prompts, self.ids, 1))
        self.drawn = gather(self.ids, self.prompts, parts)
        assert all(len(ids) == c.max_new_tokens for ids in self.drawn.token_ids)

    def update(self) -> None:
        """Learns from them."""
        n = self.config.charts * self.config.group_size
        advantage = np.where(np.arange(n) % 2, 1.0, -1.0)
        batch = Batch(self.drawn, list(range(self.config.charts)), advantage, np.ones(n, bool))
        update(self.captioner, self.optimizer, batch, self.config, 1e-9)


def resident(name: str) -> int:
    """Bytes of this process: VmRSS now, VmHWM at the peak."""
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return 1024 * int(found[1])


def peaks(run: Run) -> dict[str, list[float]]:
    """Planned and measured bytes at the peak of rollout and update, above the loaded model."""
    clear = Path("/proc/self/clear_refs")
    small = Run("tiny", {"max_new_tokens": 4})  # libraries take their workspaces
    small.rollout()
    small.update()
    del small
    before = resident("VmRSS")
    run.rollout()
    run.update()  # from here on there are moments
    peaks = []
    for stage in (run.rollout, run.update):
        clear.write_text("5")  # the peak starts again from here
        stage()
        peaks.append(resident("VmHWM") - before)
    shape, step = run.shape()
    moments = memory.optimizer_state(shape, run.training)
    planned = [
        moments + sum(stage(shape, run.training, step).values())
        for stage in (memory.rollout, memory.update)
    ]
    return {"planned": planned, "measured": [float(peak) for peak in peaks]}


def seconds(run: Run, rounds: int = 3) -> dict[str, list[float]]:
    """Planned and measured CPU seconds of rollout and update, medians of alternating rounds."""
    (shape, step), clock = run.shape(), time.process_time
    small = probe.build(shape, step, run.training)
    text = shape.text
    rates = measure_cpu(text.hidden, text.ffn, text.head_dim, text.linear_weights)
    stages = (small.update, small.rollout, run.rollout, run.update)
    spent: list[list[float]] = [[] for _ in stages]
    for _ in range(rounds + 1):
        for times, stage in zip(spent, stages, strict=True):
            times.append(probe.spent(stage, clock))
    updates, rollouts, *measured = [median(times[1:]) for times in spent]
    rates = small.factors(rates, run.training, updates, rollouts)
    planned = [
        duration.rollout(shape, run.training, step, rates).seconds(rates) * rates.rollout_factor,
        duration.update(shape, run.training, step, rates).seconds(rates) * rates.update_factor,
    ]
    factors = [rates.rollout_factor, rates.update_factor]
    return {"planned": planned, "measured": measured, "factors": factors}


def main(arguments: list[str]) -> None:
    what, kind, *pairs = arguments
    kinds = {field.name: field.type for field in dataclasses.fields(RlooConfig)}
    changes = dict(pair.split("=") for pair in pairs)
    values = {name: text if kinds[name] != "int" else int(text) for name, text in changes.items()}
    if "gradient_checkpointing" in values:
        values["gradient_checkpointing"] = values["gradient_checkpointing"] == "True"
    run = Run(kind, values)
    sys.stdout.write(json.dumps((peaks if what == "memory" else seconds)(run)) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
