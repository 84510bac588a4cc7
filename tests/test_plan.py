"""The plan of a set-up: sizes, what autograd keeps, tokens, the command."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from tests.random_vlm import byte_tokenizer, random_images, random_model
from tests.test_rewards import made_corpus
from tests.toy_tokenizers import tokenizer
from trainer import lora
from trainer.__main__ import main
from trainer.config import RlooConfig, load_preset
from trainer.plan import command, duration, memory
from trainer.plan.memory import StepShape, Training
from trainer.plan.rates import Rates, gpu
from trainer.plan.shapes import LAYERS, from_config, shape_of
from trainer.policy import Captioner

ROOT = Path(__file__).parents[1]
SIMPLE = Rates("simple", ((1.0, 1e9), (100.0, 3e9)), 1e9, ((1.0, 1e9),), 1e9, 1e-6, False, "test")


@pytest.mark.parametrize("name", ["captioner", "verifier"])
def test_sizes_are_those_of_the_weights(name: str) -> None:
    folder = ROOT / "trainer" / "tiny" / name
    with safe_open(folder / "model.safetensors", "pt") as file:
        keys = list(file.keys())
        stored = sum(math.prod(file.get_slice(key).get_shape()) for key in keys)
    assert shape_of(str(folder)).parameters == stored


def test_sizes_of_other_models() -> None:
    for heads, kv_heads in ((4, 2), (2, 1)):
        model = random_model(heads=heads, kv_heads=kv_heads)
        shape = from_config("random", json.loads(model.config.to_json_string()))
        assert shape.parameters == sum(p.numel() for p in model.parameters())
        lora.wrap(model, lora.LoraSettings(3, 6.0, ("q_proj", "down_proj")))
        learning = sum(p.numel() for p in model.parameters() if p.requires_grad)
        training = Training(lora_rank=3, lora_modules=("q_proj", "down_proj"))
        assert training.trainable(shape) == learning
    # the weights that the model cards state, in billions
    for name, billions in (("Qwen2.5-VL-3B", 3.75), ("Qwen2.5-14B", 14.77), ("Qwen2.5-3B", 3.09)):
        shape = shape_of(f"Qwen/{name}-Instruct")
        assert round(shape.parameters / 1e9, 2) == billions
    with pytest.raises(ValueError, match="model: expected a folder or cached hub id"):
        shape_of("nobody/nothing")
    with pytest.raises(ValueError, match="expected the sizes of a Qwen-like model"):
        from_config("odd", {"hidden_size": 8})


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("rank", [0, 4])
@pytest.mark.parametrize("narrow", [False, True])
def test_activations_are_what_autograd_keeps(
    *, narrow: bool, rank: int, checkpointing: bool
) -> None:
    model = random_model()
    if rank:
        lora.wrap(model, lora.LoraSettings(rank, 8.0, LAYERS))
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train()
    captioner = Captioner(
        model, byte_tokenizer(), caption_prompt="Describe.",
        compute_dtype=torch.bfloat16 if narrow else None,
    )  # fmt: skip
    prompts = captioner.prompts(random_images(2, 112, 224))
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    captions = [[torch.arange(40, 240)] * 8] * 2
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        captioner.token_logps(prompts, captions)
    measured = sum(
        tensor.untyped_storage().nbytes() for place, tensor in kept.items() if place not in weights
    )
    shape = from_config("random", json.loads(model.config.to_json_string()))
    step = step_shape(prompt_tokens=prompts.input_ids.shape[1], caption_tokens=200)
    training = Training(narrow=narrow, checkpointing=checkpointing, lora_rank=rank,
                        lora_modules=LAYERS)  # fmt: skip
    items = memory.activations(shape, training, step)
    del items["one layer's backward"]  # weights' narrow copies, rotary tables: small on real widths
    kept.clear()  # no need to print it
    assert sum(items.values()) == pytest.approx(measured, rel=0.12)


def step_shape(**changes: float) -> StepShape:
    values = {
        "prompt_tokens": 62, "patches": 128, "chart_pixels": 25088, "caption_tokens": 40,
        "longest": 40, "charts": 2, "group_size": 8, "captions_per_update": 16, "micro_groups": 2,
        "charts_at_once": 2, "max_new_tokens": 200,
    }  # fmt: skip
    return StepShape(**(values | changes))  # type: ignore[arg-type]


def test_less_memory_where_less_is_kept() -> None:
    captioner, step = shape_of("Qwen/Qwen2.5-VL-3B-Instruct"), step_shape(micro_groups=1)
    full = Training(narrow=True)

    def peak(training: Training) -> float:
        stays = memory.weights(captioner, training)
        stays += memory.optimizer_state(captioner, training)
        return stays + sum(memory.update(captioner, training, step).values())

    n = captioner.parameters
    assert memory.weights(captioner, full) == 4 * n
    assert memory.optimizer_state(captioner, full) == 8 * n
    small = replace(full, optimizer="adamw8bit")
    assert peak(full) - peak(small) == pytest.approx(6 * n, rel=0.02)
    assert peak(full) - peak(replace(full, optimizer="adamw-offload")) == 8 * n
    recomputed = replace(full, checkpointing=True)
    assert peak(recomputed) < peak(full)
    adapters = replace(recomputed, lora_rank=16, lora_modules=LAYERS, frozen_bytes=2)
    assert peak(adapters) < peak(recomputed) / 4
    assert memory.own_room(30, 200) == 64
    assert memory.own_room(66, 200) == 128
    assert memory.own_room(500, 100) == 100


def test_time_grows_as_the_work_does() -> None:
    assert SIMPLE.matmul_s(1, 1e6, 4) == pytest.approx(4e-3)  # reading the weights
    assert SIMPLE.matmul_s(10, 1e6, 4) == pytest.approx(2e7 / 2e9)  # half way in log rows
    assert SIMPLE.matmul_s(1000, 1e6, 4) == pytest.approx(2e9 / 3e9)
    shape, step = shape_of("Qwen/Qwen2.5-VL-3B-Instruct"), step_shape()
    once = duration.update(shape, Training(), step, SIMPLE).seconds(SIMPLE)
    recomputed = duration.update(shape, Training(checkpointing=True), step, SIMPLE)
    assert 1.2 < recomputed.seconds(SIMPLE) / once < 1.4
    twice = replace(step, charts=4)
    assert duration.update(shape, Training(), twice, SIMPLE).seconds(SIMPLE) == 2 * once
    long = duration.rollout(shape, Training(), replace(step, longest=80), SIMPLE)
    short = duration.rollout(shape, Training(), step, SIMPLE)
    assert 1.5 < long.seconds(SIMPLE) / short.seconds(SIMPLE) < 2.1
    queued = replace(SIMPLE, overlaps=True)
    assert short.seconds(queued) == max(
        short.operations, short.matmul + short.attention + short.passes
    )
    assert gpu("h100", 5e14, 3e12).source == "as given"
    with pytest.raises(ValueError, match="device: expected cpu, a100"):
        gpu("tpu")


@pytest.mark.parametrize("layout", ["caption_first", "candidates_first"])
@pytest.mark.parametrize("positions", [None, 1])
def test_the_formula_is_near_the_count(
    layout: str, positions: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_corpus().save(tmp_path / "corpus")
    monkeypatch.setattr("lineup_fast.hub.load_tokenizer", lambda name: tokenizer("qwen2"))
    config = RlooConfig(
        corpus=tmp_path / "corpus", charts=3, group_size=4, captions_per_update=12,
        layout=layout, positions=positions,
    )  # type: ignore[arg-type]  # fmt: skip
    counted = command.read_corpus(config, 50.0)
    from lineup_fast.token_plan import plan_step

    numbers = plan_step(
        made_corpus(), tokenizer("qwen2"), config.recipe(), batch=3, group=4, caption_tokens=50
    ).numbers_tokens
    rough = command.read_tokens(config, 50.0, numbers)
    assert rough.tokens == pytest.approx(counted.tokens, rel=0.35)
    assert counted.questions == (12 if positions == 1 else 48)


@pytest.mark.parametrize("preset", ["one-gpu", "paper"])
def test_the_command_needs_no_network(
    preset: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert main(["plan", "--preset", preset, "--rates", "h200", "--lora-rank", "16"]) == 0
    shown = capsys.readouterr().out
    assert "cuda:0: peak" in shown
    assert "table of published sizes, no config.json on disk" in shown
    for item in (
        "weights", "gradients", "activations, decoder", "keys and values, captions",
        "logits and sampling", "verifier: weights", "head", "optimizer state",
    ):  # fmt: skip
        assert f"    {item} " in shown
    for stage in ("rollout", "reward", "update"):
        assert f"  {stage:36}" in shown
    assert main(["plan", "--preset", preset, "--model", "nobody/nothing"]) == 2
    assert "python -m trainer plan: model: expected" in capsys.readouterr().err
    assert main(["plan", "--preset", preset, "--caption-tokens", "9999"]) == 2
    assert "caption_tokens: expected 1 to" in capsys.readouterr().err


def test_devices_are_planned_apart() -> None:
    config = replace(load_preset("one-gpu"), verifier_device="cuda:1")
    captioner, verifier = shape_of(config.model), shape_of(config.verifier)
    step = command.step_of(config, captioner, 90, 180.0, 288)
    assert (step.prompt_tokens, step.patches) == (90 + 231, 924)
    read = command.read_tokens(config, 180.0, 600.0)
    apart = command.plan(config, captioner, verifier, step, read, gpu("h100"))
    same = replace(config, verifier_device=config.device)
    together = command.plan(same, captioner, verifier, step, read, gpu("h100"))
    assert set(apart.devices) == {"cuda:0", "cuda:1"}
    weights = 2.0 * verifier.parameters
    assert together.peak("cuda:0") == apart.peak("cuda:0") + weights
    assert apart.seconds == together.seconds
    with pytest.raises(ValueError, match="vision tower"):
        command.step_of(config, verifier, 90, 180.0, 288)


def test_help_does_not_import_torch() -> None:
    code = (
        "import sys\nfrom trainer.__main__ import main\n"
        "try: main(['plan', '--help'])\nexcept SystemExit: pass\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "--caption-tokens" in done.stdout
