"""Adapters: who learns, exact gradients through packed attention, checkpoints, merging."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import peft
import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import rms_norm

from tests.random_vlm import byte_tokenizer, random_captioner, random_images, random_model
from tests.scripted_run import FewSeries, ScriptedReward, settings, vowels
from tests.test_checkpoint import program, without_times
from trainer import checkpoint, lora
from trainer.config import RlooConfig, load_preset
from trainer.lora import LoraSettings
from trainer.policy import Captioner
from trainer.record.console import Console
from trainer.rloo import train

SETTINGS = LoraSettings(rank=3, alpha=6.0, modules=("q_proj", "v_proj", "o_proj", "down_proj"))
CAPTIONS = [[torch.arange(40, 47), torch.arange(60, 63)], [torch.arange(90, 95)]]


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random captioner on disk."""
    folder = tmp_path_factory.mktemp("model")
    random_model().save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def adapted(*, double: bool = False) -> Captioner:
    """A captioner whose adapters do something."""
    captioner = random_captioner(double=double)
    lora.wrap(captioner.model, SETTINGS)
    generator = torch.Generator().manual_seed(1)
    for name, parameter in captioner.model.named_parameters():
        if ".lora_B" in name:
            parameter.data.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    return captioner


def test_only_adapters_of_the_language_model_learn() -> None:
    plain, captioner = random_captioner(), random_captioner()
    lora.wrap(captioner.model, SETTINGS)
    names = [name for name, p in captioner.model.named_parameters() if p.requires_grad]
    assert len(names) == 2 * 2 * len(SETTINGS.modules)  # A and B, two layers
    assert all("language_model" in name and ".lora_" in name for name in names)
    prompts = plain.prompts(random_images(2))
    with torch.no_grad():  # B is zero: nothing has changed yet
        assert torch.equal(
            plain.token_logps(prompts, CAPTIONS)[0], captioner.token_logps(prompts, CAPTIONS)[0]
        )
    again = random_captioner()
    state = torch.random.get_rng_state()
    lora.wrap(again.model, SETTINGS)
    assert torch.equal(state, torch.random.get_rng_state())
    for one, other in zip(captioner.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, other)
    with pytest.raises(ValueError, match="lora_modules: expected layers of the model, got qproj"):
        lora.wrap(random_model(), LoraSettings(2, 2.0, ("qproj", "v_proj")))


def test_gradients_through_packed_groups_are_exact() -> None:
    captioner = adapted(double=True)
    for norm in captioner.model.modules():  # the family's own norms round to float32
        if type(norm).__name__.endswith("RMSNorm"):
            sizes = {"normalized_shape": norm.weight.shape, "eps": norm.variance_epsilon}
            norm.forward = partial(rms_norm, weight=norm.weight, **sizes)
    prompts = captioner.prompts(random_images(2))
    parameters = [p for p in captioner.model.parameters() if p.requires_grad]
    weights = torch.linspace(-1.0, 1.0, 15, dtype=torch.float64)

    def packed() -> torch.Tensor:
        return (captioner.token_logps(prompts, CAPTIONS)[0] * weights).sum()

    grads = torch.autograd.grad(packed(), parameters)
    one_by_one = []
    for row, group in enumerate(CAPTIONS):
        one_by_one += [captioner.token_logps(prompts.select([row]), [[c]])[0] for c in group]
    expected = torch.autograd.grad((torch.cat(one_by_one) * weights).sum(), parameters)
    for got, want in zip(grads, expected, strict=True):
        assert (got - want).abs().max() < 1e-10 * max(1.0, float(want.abs().max()))
    directions = [torch.randn(p.shape, dtype=p.dtype, generator=torch.Generator().manual_seed(i))
                  for i, p in enumerate(parameters)]  # fmt: skip
    slope = sum(float((g * d).sum()) for g, d in zip(grads, directions, strict=True))
    values = []
    for sign in (1e-5, -2e-5):
        for parameter, direction in zip(parameters, directions, strict=True):
            parameter.data += sign * direction
        values.append(float(packed().detach()))
    assert abs((values[0] - values[1]) / 2e-5 - slope) < 1e-6 * max(1.0, abs(slope))
    assert captioner.model.get_output_embeddings().weight.grad is None


def test_narrow_base_keeps_float32_adapters(model_folder: Path) -> None:
    narrow = Captioner.load(
        model_folder,
        caption_prompt="Describe.",
        compute_dtype=torch.bfloat16,
        adapters=SETTINGS,
        dtype=torch.bfloat16,
    )
    kinds = {p.requires_grad: p.dtype for p in narrow.model.parameters()}
    assert kinds == {True: torch.float32, False: torch.bfloat16}
    prompts = narrow.prompts(random_images(2))
    logps, _ = narrow.token_logps(prompts, CAPTIONS)
    logps.sum().backward()
    assert all(p.grad is not None for p in narrow.model.parameters() if p.requires_grad)
    exact = Captioner.load(model_folder, caption_prompt="Describe.", adapters=SETTINGS)
    assert (exact.token_logps(prompts, CAPTIONS)[0] - logps).abs().max() < 0.2
    decoded = narrow.generate(prompts, group_size=2, max_new_tokens=4)
    assert len(decoded.token_ids) == 4
    for wrong in ({"lora_rank": 0}, {"lora_rank": 8, "compute_dtype": "float32"}):
        with pytest.raises(ValueError, match="frozen_dtype: expected float32"):
            RlooConfig(frozen_dtype="bfloat16", **wrong)  # type: ignore[arg-type]


def test_settings_from_flags_and_files(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("lora_rank = 4\nlora_modules = ['q_proj']\n")
    assert load_preset(str(file)).lora_modules == ("q_proj",)
    with pytest.raises(ValueError, match="lora_rank: expected at least 0, got -1"):
        RlooConfig(lora_rank=-1)
    with pytest.raises(ValueError, match="lora_alpha"):
        RlooConfig(lora_rank=2, lora_alpha=0.0)


def test_resume_after_kill_is_bit_equal(model_folder: Path, tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    reward = ScriptedReward(vowels, lambda caption: caption.startswith("x"))
    config = settings(model_folder, whole, lora_rank=2, lr=0.02)
    assert train(config, FewSeries(), reward, console=Console("", 6, enabled=False))
    flags = ("--set", "lora_rank=2", "--set", "lr=0.02")
    assert program(model_folder, broken, 6, "--kill-at", 4, *flags) < 0
    assert program(model_folder, broken, 6, "--resume", *flags) == 0
    assert without_times(broken) == without_times(whole)
    last = Path("checkpoints") / "step-000006"
    for name in ("adapter_model.safetensors", "trainer.safetensors"):
        one, other = load_file(whole / last / name), load_file(broken / last / name)
        assert one.keys() == other.keys()
        assert all(".lora_" in key and torch.equal(one[key], other[key]) for key in one)
    assert not (whole / last / "model.safetensors").exists()


def test_peft_reads_a_checkpoint(model_folder: Path, tmp_path: Path) -> None:
    captioner = Captioner.load(model_folder, caption_prompt="Describe.", adapters=SETTINGS)
    for name, parameter in captioner.model.named_parameters():
        if ".lora_B" in name:
            parameter.data.normal_()
    captioner.save(tmp_path)
    theirs = peft.PeftModel.from_pretrained(random_model(), tmp_path)
    own = dict(captioner.model.named_parameters())
    read = {k.removeprefix("base_model.model."): p for k, p in theirs.named_parameters()}
    assert {k for k in own if ".lora_" in k} == {k for k in read if ".lora_" in k}
    assert all(torch.equal(own[k], read[k]) for k in own if ".lora_" in k)
    ours = Captioner.load(tmp_path, caption_prompt="Describe.")  # no settings needed
    assert all(torch.equal(p, own[n]) for n, p in ours.model.named_parameters())


def test_merging_changes_no_logits() -> None:
    captioner = adapted()
    prompts = captioner.prompts(random_images(2))
    sent = dict(lora.merged_weights(captioner.model))
    with torch.no_grad():
        before = captioner.token_logps(prompts, CAPTIONS)[0]
        plain = random_captioner()
        assert (before - plain.token_logps(prompts, CAPTIONS)[0]).abs().max() > 0.1
        lora.merge(captioner.model)
        assert not lora.is_wrapped(captioner.model)
        assert (captioner.token_logps(prompts, CAPTIONS)[0] - before).abs().max() < 1e-5
    merged = dict(captioner.model.named_parameters())
    assert merged.keys() == sent.keys() == dict(plain.model.named_parameters()).keys()
    assert all(torch.equal(sent[name], merged[name]) for name in merged)
    narrow = adapted()
    narrow.model.to(torch.bfloat16)
    with pytest.raises(ValueError, match="expected float32 weights to merge"):
        lora.merge(narrow.model)


def test_broken_adapters_are_refused(model_folder: Path, tmp_path: Path) -> None:
    captioner = Captioner.load(model_folder, caption_prompt="Describe.", adapters=SETTINGS)
    captioner.save(tmp_path)
    config = tmp_path / "adapter_config.json"
    config.write_text(config.read_text().replace('"down_proj', '"up_proj').replace(
        "down_proj", "up_proj"))  # fmt: skip
    with pytest.raises(ValueError, match=r"adapter_model.safetensors: expected the model's"):
        Captioner.load(tmp_path, caption_prompt="Describe.")
    config.write_text("{}")
    with pytest.raises(ValueError, match="base_model_name_or_path"):
        lora.base_of(tmp_path)
    assert checkpoint.steps(tmp_path) == []
