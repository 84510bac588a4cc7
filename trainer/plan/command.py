"""``python -m trainer plan``: memory and time of a set-up before it is started.

From sizes in config.json alone, no weights loaded. Memory counts the tensors the code keeps; time
is a sum over matmuls, attention, passes over numbers and operations, at the rates of a device.
Measured on a CPU it holds to 15 % (tests/test_plan.py); on GPUs nothing here was measured.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lineup_fast.charts import STYLES
from lineup_fast.cli import one_line
from trainer.config import RlooConfig
from trainer.config import parse as parse_config
from trainer.plan import duration, memory
from trainer.plan.memory import StepShape, Training
from trainer.plan.rates import GPUS, Rates, gpu, measure_cpu
from trainer.plan.reading import ReadTokens, read_corpus, read_tokens
from trainer.plan.shapes import ModelShape, shape_of

NUMBERS_TOKENS = 624.0  # of a candidate, without --data: 96 values of 6.5 tokens (Qwen2.5)
WORD_TOKENS, TEMPLATE_TOKENS = 1.3, 30  # of a caption prompt whose tokenizer is not at hand
LONGEST = 1.6  # longest caption of a batch, in mean lengths


@dataclass(frozen=True)
class Plan:
    """devices: bytes by device, phase and item; seconds by stage; notes: what was assumed."""

    devices: dict[str, dict[str, dict[str, float]]]
    seconds: dict[str, float]
    notes: list[str] = field(default_factory=list)

    def peak(self, device: str) -> float:
        """Bytes of the phase that takes most."""
        return max(sum(items.values()) for items in self.devices[device].values())

    def table(self) -> str:
        """The plan as text; sizes in GB of 10^9 bytes."""
        lines = []
        for device, phases in self.devices.items():
            lines.append(f"{device}: peak {self.peak(device) / 1e9:.3f} GB")
            for phase, items in phases.items():
                lines.append(f"  {phase:10}{sum(items.values()) / 1e9:38.3f} GB")
                lines += [f"    {name:34}{n / 1e9:10.3f}" for name, n in items.items() if n]
        lines.append(f"step: {sum(self.seconds.values()):.1f} s")
        lines += [f"  {stage:36}{seconds:10.2f} s" for stage, seconds in self.seconds.items()]
        return "\n".join([*lines, *(f"- {note}" for note in self.notes)])


def training_of(config: RlooConfig) -> Training:
    """How the settings hold the captioner's weights."""
    return Training(
        narrow=config.compute_dtype == "bfloat16",
        checkpointing=config.gradient_checkpointing,
        optimizer=config.optimizer,
        lora_rank=config.lora_rank,
        lora_modules=config.lora_modules,
        frozen_bytes=2 if config.frozen_dtype == "bfloat16" else 4,
        freeze_vision=config.freeze_vision,
    )


def step_of(
    config: RlooConfig,
    captioner: ModelShape,
    prompt_text_tokens: int,
    caption_tokens: float,
    longest: int,
) -> StepShape:
    """What a step of the settings works on."""
    if captioner.vision is None:
        raise ValueError(f"model: expected a captioner with a vision tower, got {captioner.name}")
    style = STYLES[config.chart_style]
    patches = captioner.vision.patches(style.width, style.height)
    return StepShape(
        prompt_tokens=prompt_text_tokens + patches // captioner.vision.merge**2,
        patches=patches,
        chart_pixels=style.width * style.height,
        caption_tokens=caption_tokens,
        longest=longest,
        charts=config.charts,
        group_size=config.group_size,
        captions_per_update=config.captions_per_update,
        micro_groups=config.micro_groups,
        charts_at_once=config.charts_at_once,
        max_new_tokens=config.max_new_tokens,
        ahead=1 + config.async_depth,
    )


def plan(
    config: RlooConfig,
    captioner: ModelShape,
    verifier: ModelShape,
    step: StepShape,
    read: ReadTokens,
    rates: Rates,
) -> Plan:
    """Memory by device and phase, and seconds by stage."""
    training = training_of(config)
    stays = {
        "weights": memory.weights(captioner, training),
        "optimizer state": memory.optimizer_state(captioner, training),
        "charts and patches": memory.inputs(captioner, step),
    }
    width = 2 if config.verifier_dtype == "bfloat16" else 4
    # captions are sent on as they are finished: a part of the step in one call
    at_once = config.charts_at_once if config.sampler == "transformers" else 1
    share = min(1.0, at_once / config.charts)
    waits, call = memory.verifier(
        verifier, width, share * read.tokens, share * (read.kept + read.copied),
        on_cpu=config.verifier_device == "cpu",
    )  # fmt: skip
    phases = {
        "rollout": stays | memory.rollout(captioner, training, step),
        "update": stays | memory.update(captioner, training, step),
    }
    devices = {config.device: phases}
    if config.verifier_device == config.device:
        devices[config.device] = {
            "rollout": phases["rollout"] | waits,
            "reward": stays | waits | call,
            "update": phases["update"] | waits,
        }
    else:
        devices[config.verifier_device] = {"reward": waits | call}
    stages = {
        "rollout": duration.rollout(captioner, training, step, rates).seconds(rates)
        * rates.rollout_factor,
        "reward": duration.prefill(
            verifier.text, read.tokens, read.context, read.questions, width, rates
        ).seconds(rates),
        "update": duration.update(captioner, training, step, rates).seconds(rates)
        * rates.update_factor,
    }
    return Plan(devices, stages, _notes(captioner, verifier, step, read, rates))


def _notes(
    captioner: ModelShape, verifier: ModelShape, step: StepShape, read: ReadTokens, rates: Rates
) -> list[str]:
    notes = [
        f"{role} {model.name}: {model.parameters / 1e9:.3f} billion weights ({model.source})"
        for role, model in (("captioner", captioner), ("verifier", verifier))
    ]
    return [
        *notes,
        f"prompt {step.prompt_tokens} tokens; captions {step.caption_tokens:.0f} on average, "
        f"{step.longest} at most; {step.packed_rows:.0f} rows in a pack",
        f"the verifier reads {read.tokens:,.0f} tokens a step ({read.source})",
        f"rates of {rates.name}: {rates.source}",
        "not counted: what allocators and libraries add, the CUDA context, sharding over ranks",
    ]


def main(arguments: Sequence[str]) -> int:
    """Runs the command; returns the exit status."""
    options, rest = _parser().parse_known_args(arguments)
    config = parse_config(rest)
    try:
        print(_planned(options, config).table())
    except (ValueError, OSError) as error:
        print(f"python -m trainer plan: {one_line(error)}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m trainer plan",
        allow_abbrev=False,
        description="Peak memory per device, itemised, and seconds of a step by stage. Besides "
        "these flags it takes --preset and all flags of `python -m trainer rloo`.",
    )
    parser.add_argument("--data", type=Path, metavar="CORPUS",
                        help="count the verifier's tokens in this corpus")  # fmt: skip
    parser.add_argument(
        "--caption-tokens", type=float, help="mean length; default 180 or the limit"
    )
    parser.add_argument("--longest", type=int, help=f"longest caption; default {LONGEST} x mean")
    parser.add_argument("--prompt-tokens", type=int, help="of the prompt, without the chart's")
    parser.add_argument("--numbers-tokens", type=float, default=NUMBERS_TOKENS,
                        help="of a candidate's numbers, without --data")  # fmt: skip
    parser.add_argument("--rates", choices=("cpu", *GPUS),
                        help="device; default cpu where --device is, else h100")  # fmt: skip
    parser.add_argument("--flops", type=float, help="FLOP/s that matmuls reach on the GPU")
    parser.add_argument("--bandwidth", type=float, help="bytes/s that the GPU reads")
    return parser


def _planned(options: argparse.Namespace, config: RlooConfig) -> Plan:
    captioner, verifier = shape_of(config.model), shape_of(config.verifier)
    mean = options.caption_tokens or min(180.0, config.max_new_tokens)
    if not 1 <= mean <= config.max_new_tokens:
        raise ValueError(f"caption_tokens: expected 1 to {config.max_new_tokens}, got {mean}")
    longest = options.longest or min(config.max_new_tokens, round(LONGEST * mean))
    around = options.prompt_tokens or _prompt_tokens(config)
    step = step_of(config, captioner, around, mean, longest)
    read = read_tokens(config, mean, options.numbers_tokens)
    if options.data is not None:
        read = read_corpus(dataclasses.replace(config, corpus=options.data), mean)
    name = options.rates or ("cpu" if config.device == "cpu" else "h100")
    if name == "cpu":
        rates = _measured(config, captioner, step)
    else:
        rates = gpu(name, options.flops, options.bandwidth)
    return plan(config, captioner, verifier, step, read, rates)


def _measured(config: RlooConfig, captioner: ModelShape, step: StepShape) -> Rates:
    import time

    import torch

    from trainer.plan import probe

    if config.threads:
        torch.set_num_threads(config.threads)
    # several threads share the work: what counts is how long it takes
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    text = captioner.text
    rates = measure_cpu(text.hidden, text.ffn, text.head_dim, text.linear_weights, clock=clock)
    return probe.correct(rates, captioner, step, training_of(config), clock=clock)


def _prompt_tokens(config: RlooConfig) -> int:
    """Tokens around the chart: by the tokenizer where it is on disk, else about as many."""
    from transformers import AutoTokenizer

    content: list[dict[str, Any]] = [
        {"type": "image"}, {"type": "text", "text": config.caption_prompt}
    ]  # fmt: skip
    try:
        tokenizer = AutoTokenizer.from_pretrained(config.model, local_files_only=True)
    except (OSError, ValueError):
        return TEMPLATE_TOKENS + round(WORD_TOKENS * len(config.caption_prompt.split()))
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
    )
    return len(tokenizer(text, add_special_tokens=False)["input_ids"]) - 1
