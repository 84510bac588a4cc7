"""A small random captioner of the planned widths, timed on the real code.

What the sum of measured parts leaves out (cold caches, memory handed back and asked for again)
grows with the parts, so it is carried over from here as one factor a stage.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from trainer.optim import apply_update, make_optimizer
from trainer.plan import duration
from trainer.plan.memory import StepShape, Training
from trainer.plan.rates import Rates
from trainer.plan.shapes import ModelShape, TextShape, VisionShape
from trainer.policy import Captioner, Prompts

LAYERS, VOCABULARY, CAPTION = 2, 4096, 24
_IMAGE, _END = 3, 2  # ids; nothing else is special


class _Words:
    """As much of a tokenizer as a captioner needs: a prompt of a few ids around a chart."""

    eos_token_id, pad_token_id = _END, 0

    def __init__(self, n_text: int, size: int) -> None:
        self._ids, self._size = [5] * (n_text - 1) + [_IMAGE, 5], size

    def __len__(self) -> int:
        return self._size

    def apply_chat_template(self, *_: Any, **__: Any) -> str:
        return ""

    def __call__(self, *_: Any, **__: Any) -> dict[str, list[int]]:
        return {"input_ids": self._ids}


@dataclass
class Probe:
    """Times updates and rollouts of the small captioner; `shape` and `step` are what it plans."""

    shape: ModelShape
    step: StepShape
    update: Callable[[], None]
    rollout: Callable[[], None]

    def factors(self, rates: Rates, training: Training, update_s: float, rollout_s: float) -> Rates:
        """Rates with the factors by which the two stages took longer than planned."""
        plain = replace(rates, update_factor=1.0, rollout_factor=1.0)
        planned = (
            duration.update(self.shape, training, self.step, plain).seconds(plain),
            duration.rollout(self.shape, training, self.step, plain).seconds(plain),
        )
        return replace(
            plain, update_factor=update_s / planned[0], rollout_factor=rollout_s / planned[1]
        )


def build(model: ModelShape, step: StepShape, training: Training) -> Probe:
    """A captioner with the widths of `model`, two layers and 4,096 words, ready to be timed."""
    assert model.vision is not None
    text = replace(model.text, layers=LAYERS, vocabulary=min(VOCABULARY, model.text.vocabulary))
    tower = replace(model.vision, depth=LAYERS, full=min(LAYERS, model.vision.full))
    n_text = max(1, step.prompt_tokens - step.patches // tower.merge**2 - 1)
    length = min(CAPTION, step.longest)
    charts = min(2, step.charts_at_once, step.charts)
    small = replace(
        step, charts=charts, charts_at_once=charts, micro_groups=charts, longest=length,
        captions_per_update=charts * step.group_size, caption_tokens=length,
        max_new_tokens=length,
    )  # fmt: skip
    random = _random_model(text, tower)
    captioner = Captioner(random, _Words(n_text, text.vocabulary), caption_prompt="",
                          compute_dtype=torch.bfloat16 if training.narrow else None)  # fmt: skip
    captioner.eos_ids = frozenset([text.vocabulary])  # no caption ends by itself
    if training.checkpointing:
        random.gradient_checkpointing_enable({"use_reentrant": False})
        random.train()
    parameters = [p for p in random.parameters() if p.requires_grad]
    optimizer = make_optimizer("adamw", parameters, (0.9, 0.95), 0.0)
    prompts = _prompts(captioner, step, tower, charts)
    numbers = torch.rand(charts * step.group_size, length, dtype=torch.float64)
    captions = [[torch.randint(5, text.vocabulary, (length,)) for _ in range(step.group_size)]
                for _ in range(charts)]  # fmt: skip

    def update() -> None:
        captioner.token_logps(prompts, captions)[0].mean().backward()
        apply_update(optimizer, parameters, 1e-9, 1.0)

    def rollout() -> None:
        captioner.generate(
            prompts, group_size=step.group_size, max_new_tokens=length, uniforms=numbers
        )

    return Probe(ModelShape("probe", text, tower, "probe"), small, update, rollout)


def correct(
    rates: Rates, model: ModelShape, step: StepShape, training: Training, *,
    rounds: int = 3, clock: Callable[[], float] = time.process_time,
) -> Rates:  # fmt: skip
    """Rates with the factors of a probe, medians over some rounds after one to warm up."""
    probe = build(model, step, training)
    updates, rollouts = [], []
    for _ in range(rounds + 1):
        updates.append(spent(probe.update, clock))
        rollouts.append(spent(probe.rollout, clock))
    middle = [sorted(times[1:])[rounds // 2] for times in (updates, rollouts)]
    return probe.factors(rates, training, *middle)


def spent(call: Callable[[], Any], clock: Callable[[], float]) -> float:
    """Seconds of a call."""
    started = clock()
    call()
    return clock() - started


def _prompts(captioner: Captioner, step: StepShape, tower: VisionShape, charts: int) -> Prompts:
    """Grey charts of as many patches."""
    import numpy as np

    side = tower.patch * tower.merge
    cells = step.patches // tower.merge**2
    height = max(h for h in range(1, int(cells**0.5) + 1) if cells % h == 0)
    image = np.full((charts, height * side, cells // height * side, 3), 128, np.uint8)
    return captioner.prompts(image)


def _random_model(text: TextShape, tower: VisionShape) -> Any:
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    half = text.head_dim // 2
    sections = [half - 2 * (half // 3), half // 3, half // 3]
    config = Qwen2_5_VLConfig(
        text_config={
            "vocab_size": text.vocabulary,
            "hidden_size": text.hidden,
            "intermediate_size": text.ffn,
            "num_hidden_layers": text.layers,
            "num_attention_heads": text.heads,
            "num_key_value_heads": text.kv_heads,
            "tie_word_embeddings": text.tied,
            "rope_parameters": {
                "rope_type": "default", "rope_theta": 10000.0, "mrope_section": sections,
            },
            "bos_token_id": None,
            "eos_token_id": _END,
            "pad_token_id": 0,
        },
        vision_config={
            "depth": tower.depth,
            "hidden_size": tower.hidden,
            "intermediate_size": tower.ffn,
            "num_heads": tower.heads,
            "out_hidden_size": text.hidden,
            "patch_size": tower.patch,
            "spatial_merge_size": tower.merge,
            "temporal_patch_size": tower.temporal,
            "window_size": tower.window,
            "fullatt_block_indexes": list(range(tower.depth - tower.full, tower.depth)),
        },
        image_token_id=_IMAGE,
        video_token_id=_IMAGE,
        vision_start_token_id=_IMAGE,
        vision_end_token_id=_IMAGE,
        tie_word_embeddings=text.tied,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Qwen2_5_VLForConditionalGeneration(config).eval()
