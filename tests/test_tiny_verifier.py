"""The tiny tokenizer and verifier: reading any text, packed training, the shipped weights."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from lineup_fast.prompt_tokens import PromptBuilder
from lineup_fast.prompts import SYSTEM
from trainer.tiny import build_verifier, captions, series, tokenizer, verifier_check
from trainer.tiny import verifier_data as data
from trainer.tiny.verifier_model import new_model, packed_forward

SHIPPED = Path(verifier_check.__file__).parent / "verifier"
TOKENIZER = tokenizer.build()
LAYOUTS = {k: data.Layout(TOKENIZER, k) for k in (2, 4)}
LESSON = data.Lesson(near=True, noise=2.0, rough=0.1, odd=0.1, readout=0.2)


def _ids(text: str) -> list[int]:
    return list(TOKENIZER.encode(text, add_special_tokens=False))


@given(st.text(max_size=80))
@hypothesis_settings(max_examples=300, deadline=None)
def test_any_text_round_trips(text: str) -> None:
    text = text.encode("utf-8", "ignore").decode("utf-8")
    assert TOKENIZER.decode(_ids(text)) == text


def test_texts_of_the_prompt_are_few_tokens_and_seams_hold() -> None:
    assert len(tokenizer.number_ids(TOKENIZER)) == len(set(tokenizer.number_ids(TOKENIZER))) == 101
    assert len(_ids(SYSTEM)) == 1
    for letter in tokenizer.LETTERS:
        assert len(_ids(letter)) == len(_ids(f" {letter}")) == len(_ids(f"{letter}) [")) == 1
    assert len(LAYOUTS[4].tail) <= 6
    assert _ids('"""\n') + _ids("Peaks at 7") == _ids('"""\nPeaks at 7')
    assert len(TOKENIZER) <= 1500


@pytest.mark.parametrize("k", [2, 4])
def test_training_prompts_are_those_of_the_reward(k: int) -> None:
    recipe = verifier_check.Recipe(k=k, layout="candidates_first", decimals=0)
    builder = PromptBuilder(TOKENIZER, recipe)
    rng = np.random.default_rng(0)
    sets = rng.integers(0, 101, (1, k, 12))
    text = "Starts at 7; ends at 100."
    mine = [*LAYOUTS[k].prefix(sets)[0][0], *_ids(text), *LAYOUTS[k].tail]
    assert mine == _ids(builder.text(sets[0].astype(float), 0, text, 0))
    names = [TOKENIZER.decode([token]).strip() for token in LAYOUTS[k].answers]
    assert names == list(builder.labels.names)
    assert all(LAYOUTS[k].answers[i] in builder.labels.ids[i] for i in range(k))


def _batch() -> data.Batch:
    pool = data.generated_pools(200, np.random.default_rng(1))[12]
    rng = np.random.default_rng(2)
    return data.make_batch(TOKENIZER, LAYOUTS[4], pool, LESSON, sets=3, captions_per_set=8, rng=rng)


def test_batches_are_balanced_and_point_at_what_is_told() -> None:
    batch = _batch()
    assert np.bincount(batch.target, minlength=4).tolist() == [6, 6, 6, 6]
    assert batch.blind.any() or LESSON.odd < 0.05
    values = {token: value for value, token in enumerate(tokenizer.number_ids(TOKENIZER))}
    close = 0
    told = np.argwhere((batch.steps >= 0) & ~batch.blind[:, None])
    for row, place in told:
        target, step = batch.target[row], batch.steps[row, place]
        own = batch.sets[row // 8, target, step]
        assert batch.prefix[row // 8, batch.value_at[target, step]] in values
        assert values[batch.prefix[row // 8, batch.value_at[target, step]]] == own
        close += abs(values[batch.caption[row, place]] - own) <= 12
    # The rest are steps told after their value, and values of rough captions.
    assert close > 0.6 * len(told)


def test_packed_forward_equals_one_prompt_at_a_time() -> None:
    batch, model = _batch(), new_model(TOKENIZER, 0).eval()
    with torch.no_grad():
        packed = packed_forward(
            model, torch.from_numpy(batch.prefix), torch.from_numpy(batch.caption), torch.float32
        )
        for row in range(0, 24, 5):
            ids = np.concatenate(
                [batch.prefix[row // 8], batch.caption[row, : batch.last[row] + 1]]
            )
            alone = model.model(torch.from_numpy(ids)[None]).last_hidden_state[0]
            behind = packed.behind[-1][row, : batch.last[row] + 1]
            assert torch.allclose(alone[batch.prefix.shape[1] :], behind, atol=1e-4)


@pytest.mark.parametrize("kind", [build_verifier.Settings(), build_verifier.READER])
def test_a_stopped_run_goes_on_where_it_was(kind: build_verifier.Settings, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    chosen = replace(kind, steps=4, sets=1, captions=4)
    pools = [data.generated_pools(60, np.random.default_rng(5))] * 2
    rows = []
    for folder, stops in (("once", [4]), ("twice", [2, 4])):
        for stop in stops:
            course = build_verifier.Course(chosen, tmp_path / folder)
            course.resume()
            course.pools = pools
            while course.step < stop:
                last = course.update()
            course.save()
        rows.append(last)
    assert rows[0] == rows[1]
    assert all(name.startswith("turned ") for name in last) == build_verifier.turns(chosen, 3)
    other = build_verifier.Course(replace(chosen, steps=5), tmp_path / "once")
    with pytest.raises(ValueError, match="other settings"):
        other.resume()


def test_shipped_files_are_small_16_bit_and_read_by_the_same_tokenizer() -> None:
    assert (SHIPPED / "model.safetensors").stat().st_size < 7_000_000
    config = json.loads((SHIPPED / "config.json").read_text())
    assert config["dtype"] in ("bfloat16", "float16")
    # Not AutoTokenizer: for this model type it replaces the splitting rules by its own.
    shipped = tokenizer.load(SHIPPED)
    rng = np.random.default_rng(0)
    texts = [captions.full(series.generate(1, 12, rng)[0], rng) for _ in range(20)]
    assert shipped(texts)["input_ids"] == TOKENIZER(texts)["input_ids"]


def test_shipped_verifier_meets_the_bars_on_a_sample() -> None:
    torch.set_num_threads(1)
    try:
        kinds = ("exact", "noise_2", "empty", "stranger")
        figures = verifier_check.measure(SHIPPED, 100, kinds=kinds, seed=1)
    except ImportError as error:  # the packaged data are an extra
        pytest.skip(str(error))
    margin = 0.08  # two standard errors of 100 items at the bar
    assert figures["exact"]["accuracy"] >= 0.80 - margin
    assert figures["noise_2"]["accuracy"] >= 0.65 - margin
    assert figures["empty"]["accuracy"] <= 0.33
    assert figures["stranger"]["accuracy"] <= 0.35 + margin
    for name in ("exact", "noise_2"):
        for place in figures[name]["by_position"]:
            assert abs(place - figures[name]["accuracy"]) <= 0.05 + margin
        assert figures[name]["label_mass"] > 0.95
