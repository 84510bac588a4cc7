"""The tiny captioner that ships with the checkout: format, reading of charts, captions."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from transformers import AutoTokenizer, Qwen2_5_VLForConditionalGeneration

from lineup_fast import charts
from trainer.policy import Captioner
from trainer.tiny import build_captioner as build
from trainer.tiny import captioner_data as data
from trainer.tiny import captioner_model as cm
from trainer.tiny import measure_captioner, series, tokenizer

FOLDER = Path(build.HERE) / "captioner"


@pytest.fixture(scope="module")
def captioner():
    torch.set_num_threads(2)
    return Captioner.load(FOLDER, caption_prompt=cm.CAPTION_PROMPT)


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(12345)  # no seed of the recipe
    return [row for length in (12, 24) for row in series.generate(60, length, rng)]


@pytest.fixture(scope="module")
def sampled(captioner, rows):
    return measure_captioner.describe(captioner, rows, sampled=4)


def test_folder_is_small_and_holds_a_qwen_vl_in_16_bit():
    weights = FOLDER / "model.safetensors"
    assert sum(f.stat().st_size for f in FOLDER.iterdir()) <= 7e6
    with safe_open(weights, "pt") as opened:
        kinds = {opened.get_slice(name).get_dtype() for name in opened.keys()}  # noqa: SIM118
    assert kinds == {"F16"}
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(FOLDER)
    assert sum(p.numel() for p in model.parameters()) <= 3_000_000
    assert model.lm_head.weight is model.get_input_embeddings().weight
    assert json.loads((FOLDER / "config.json").read_text())["model_type"] == "qwen2_5_vl"


def test_tokenizer_reads_any_text():
    ours = AutoTokenizer.from_pretrained(FOLDER)
    text = "Starts at 51. Peak 97 at step 6 – naïve 🙂\n"
    assert ours.decode(ours(text)["input_ids"]) == text
    assert len(ours("Starts at 51.")["input_ids"]) <= 3


def test_fast_training_pass_equals_the_trainers_log_probs(captioner, rows):
    picked = [rows[0], rows[70]]
    told = [["Starts at 51.", "It goes up, low 3 at step 7."], ["No clear trend."] * 2]
    ids = [
        [[*captioner.tokenizer(text)["input_ids"], captioner.tokenizer.eos_token_id] for text in g]
        for g in told
    ]
    prompts = captioner.prompts(charts.render(picked, charts.TINY_STYLE))
    with torch.no_grad():
        packed = cm.pack(prompts.input_ids[0], prompts.positions[:, 0], ids)
        visual = captioner.model.model.visual
        seen = cm.encode(visual, data.pixels(picked), cm.rotation(visual, (8, 16)))
        logits = cm.caption_logits(captioner.model, seen, packed)
        logits[:, captioner.banned] = -torch.inf
        fast = logits.log_softmax(-1).gather(1, packed.targets[:, None])[:, 0]
        full, _ = captioner.token_logps(prompts, [[torch.tensor(i) for i in g] for g in ids])
    assert float((fast - full).abs().max()) < 1e-3


def test_reads_values_and_steps_of_new_charts(sampled, rows):
    result = measure_captioner.summary(sampled, rows)
    assert result["values_per_caption"] > 0.5
    assert result["value_error"] < 6.0
    assert result["step_error"] < 3.5


def test_captions_are_language_and_varied(sampled, rows):
    result = measure_captioner.summary(sampled, rows)
    assert result["well_formed"] > 0.9
    assert result["openings"] >= 10
    assert result["distinct"] > 0.5


def test_captions_end_by_themselves(captioner, rows):
    prompts = captioner.prompts(charts.render(rows[:40], charts.TINY_STYLE))
    decoded = captioner.generate(prompts, max_new_tokens=measure_captioner.MAX_TOKENS)
    assert np.mean(decoded.finished) > 0.95


def test_reading_compares_what_is_told_with_the_series():
    values = np.array([10, 20, 30, 40, 50, 60, 70, 80.0])
    found = measure_captioner.read("Starts at 13; peak 79 at step 5; at 2: 30.", values)
    assert sorted(found.value_errors) == [0, 1, 3]
    assert found.step_errors == [2]
    assert found.well_formed
    assert measure_captioner.read("From step 6: 70, 80, 90.", values).value_errors == [0, 0, 100]
    assert not measure_captioner.read("Starts at 13; something else.", values).well_formed


def test_every_caption_of_the_recipe_reads_back_as_true():
    rng = np.random.default_rng(3)
    for _ in range(200):
        row = series.generate(1, 24, rng)[0]
        text = data.told(row, rng, list(data.MIXTURES)[int(rng.integers(3))])
        found = measure_captioner.read(text, row)
        assert found.well_formed, text
        assert max([*found.value_errors, *found.step_errors], default=0) <= 0.5, text


def test_number_loss_prefers_near_numbers():
    names = tokenizer.number_ids(tokenizer.load(FOLDER))
    logits = torch.zeros(2, 1024)
    logits[0, names[51]], logits[1, names[80]] = 9.0, 9.0
    target = torch.tensor([names[50]])
    near, error = build.caption_loss(logits[:1], target, names, 2.0)
    far, _ = build.caption_loss(logits[1:], target, names, 2.0)
    assert near < far
    assert error == 1
