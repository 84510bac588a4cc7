"""Supervised training: loss on the caption only, a run that learns and can be resumed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.random_vlm import byte_tokenizer, random_captioner, random_images, random_model
from tests.scripted_run import FewSeries
from trainer import checkpoint
from trainer.record.console import Console
from trainer.report.panels import Levels, learning
from trainer.report.run import read_run
from trainer.sft import (
    Lesson,
    caption_tokens,
    fitting,
    mean_loss,
    token_losses,
    train,
    update_captions,
)
from trainer.sft_config import SftConfig
from trainer.teacher import Teacher, TeacherCaption
from trainer.world import World


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    random_model().save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def settings(model: Path, run: Path, **changes: object) -> SftConfig:
    values: dict[str, object] = {
        "run": run, "model": str(model), "updates": 6, "captions_per_update": 4,
        "micro_captions": 3, "max_tokens": 40, "caption_prompt": "Describe.",
        "chart_style": "tiny", "lr": 1e-2, "eval_every": 2, "compute_dtype": "float32",
        "gradient_checkpointing": False, "threads": 1,
    }  # fmt: skip
    return SftConfig(**(values | changes))  # type: ignore[arg-type]


def teacher() -> Teacher:
    texts = ("It rises.", "It falls, then rises.")
    return Teacher([TeacherCaption(id_, text) for id_ in FewSeries().ids() for text in texts])


def quiet() -> Console:
    return Console("", 6, enabled=False)


def test_loss_is_that_of_the_caption_and_its_end_alone() -> None:
    """Against the stock model on the whole unpacked sequence, chart and prompt included."""
    captioner = random_captioner()
    prompts = captioner.prompts(random_images(1))
    ids = caption_tokens(captioner, "It rises.")
    assert ids[-1].item() in captioner.eos_ids
    assert captioner.tokenizer.decode(ids[:-1]) == "It rises."
    stock = random_model()
    full = torch.cat([prompts.input_ids[0], ids])[None]
    kinds = (full == stock.config.image_token_id).int()
    with torch.no_grad():
        logits = stock(
            input_ids=full, mm_token_type_ids=kinds, pixel_values=prompts.pixel_values,
            image_grid_thw=prompts.grid, attention_mask=torch.ones_like(full),
        ).logits[0]  # fmt: skip
    logits[:, captioner.banned] = -torch.inf
    logp = logits.log_softmax(-1)[prompts.input_ids.shape[1] - 1 : -1]
    expected = -logp.gather(1, ids[:, None])[:, 0]
    lesson = Lesson(prompts, [[ids]])
    with torch.no_grad():
        torch.testing.assert_close(token_losses(captioner, lesson), expected, atol=1e-4, rtol=1e-4)
    assert mean_loss(captioner, [lesson]) == pytest.approx(expected.mean().item(), abs=1e-4)


def test_captions_that_cannot_be_written_are_counted() -> None:
    captioner = random_captioner()
    some = Teacher([
        TeacherCaption("a", "Fits."),
        TeacherCaption("a", "x" * 50 + "."),
        TeacherCaption("b", "An <|image_pad|>."),
        TeacherCaption("b", "Ends <|im_end|> early."),
    ])  # fmt: skip
    tokens = fitting(captioner, some, max_tokens=30)
    assert [caption.text for caption in tokens] == ["Fits."]
    assert some.captions == list(tokens)
    assert some.dropped == {"too long": 1, "special tokens": 2}


def test_every_epoch_has_its_own_order() -> None:
    captions = [TeacherCaption(str(i), "x") for i in range(10)]
    epochs = [
        [c for n in range(3) for c in update_captions(captions, 3, 0, 3 * epoch + n + 1)]
        for epoch in range(2)
    ]
    for epoch in epochs:
        assert len(set(epoch)) == 9  # the last partial batch is dropped
    assert epochs[0] != epochs[1]


@pytest.mark.parametrize(("lora_rank", "lr", "least"), [(0, 1e-2, 1.0), (4, 5e-2, 0.3)])
def test_a_run_learns_keeps_the_best_and_resumes_bit_equal(
    model_folder: Path, tmp_path: Path, lora_rank: int, lr: float, least: float
) -> None:
    whole = settings(model_folder, tmp_path / "whole", lora_rank=lora_rank, lr=lr)
    assert train(whole, FewSeries(), teacher(), console=quiet())
    rows = [json.loads(x) for x in (whole.run / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(7))
    losses = {row["step"]: row["val/loss"] for row in rows if "val/loss" in row}
    assert sorted(losses) == [0, 2, 4, 6]
    assert losses[6] < losses[0] - least
    best = json.loads((whole.run / "best.json").read_text())
    assert best == {"step": min(losses, key=losses.__getitem__), "val/loss": min(losses.values())}
    recorded = json.loads((whole.run / "config.json").read_text())
    assert recorded["command"] == "sft"
    assert recorded["teacher"]["kept"] == len(teacher().captions)

    broken = replace(whole, run=tmp_path / "broken")

    class Stopping(FewSeries):
        def series(self, item: str):  # type: ignore[no-untyped-def]
            if checkpoint.steps(broken.run / "checkpoints"):
                raise KeyboardInterrupt
            return super().series(item)

    with pytest.raises(KeyboardInterrupt):
        train(broken, Stopping(), teacher(), console=quiet())
    assert checkpoint.steps(broken.run / "checkpoints")
    assert 6 not in checkpoint.steps(broken.run / "checkpoints")
    assert train(replace(broken, resume=True), FewSeries(), teacher(), console=quiet())
    files = {p.name for p in (whole.run / "checkpoints/step-000006").glob("*model.safetensors")}
    assert files == {"adapter_model.safetensors" if lora_rank else "model.safetensors"}
    name = f"checkpoints/step-000006/{files.pop()}"
    one, other = load_file(whole.run / name), load_file(broken.run / name)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[key], other[key]) for key in one)


def test_adapters_are_asked_for_as_in_rloo(tmp_path: Path) -> None:
    for wrong, words in (
        ({"lora_rank": -1}, "lora_rank: expected at least 0, got -1"),
        ({"lora_rank": 2, "lora_alpha": 0.0}, "lora_alpha, lora_modules: expected"),
        ({"frozen_dtype": "bfloat16"}, "frozen_dtype: expected float32, unless --lora-rank"),
    ):
        with pytest.raises(ValueError, match=words):
            settings(tmp_path, tmp_path / "run", **wrong)


def test_captions_that_ranks_cannot_share_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="captions_per_update: expected a multiple of 3 ranks"):
        train(settings(tmp_path, tmp_path / "run"), FewSeries(), teacher(), world=World(0, 3))


def test_too_few_captions_are_refused(model_folder: Path, tmp_path: Path) -> None:
    config = settings(model_folder, tmp_path / "run", captions_per_update=64)
    with pytest.raises(ValueError, match="data: expected 64 captions of train items, got 16"):
        train(config, FewSeries(), teacher(), console=quiet())


def test_the_report_shows_the_loss(model_folder: Path, tmp_path: Path) -> None:
    config = settings(model_folder, tmp_path / "run", updates=2)
    assert train(config, FewSeries(), teacher(), console=quiet())
    run = read_run(config.run)
    levels = Levels(None, None, 2.0)
    assert [figure.name for figure in learning(run, levels)] == ["loss"]
