"""`python -m trainer export`: what it writes loads, and says only what is on record."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, Qwen2_5_VLForConditionalGeneration

from tests.random_vlm import byte_tokenizer, random_images, random_model
from tests.scripted_run import FewSeries, ScriptedReward, settings, vowels
from trainer import export
from trainer.__main__ import main
from trainer.policy import Captioner
from trainer.record.console import Console
from trainer.rloo import train

CAPTIONS = [[torch.arange(40, 47)]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run with adapters and one without, of two steps each."""
    folder = tmp_path_factory.mktemp("runs")
    random_model().save_pretrained(folder / "model")
    byte_tokenizer().save_pretrained(folder / "model")
    (folder / "model" / "preprocessor_config.json").write_text('{"patch_size": 14}')
    reward, quiet = ScriptedReward(vowels), Console("", 2, enabled=False)
    for name, rank in (("adapted", 2), ("full", 0)):
        run = folder / name
        config = settings(folder / "model", run, steps=2, lora_rank=rank, lr=0.02)
        assert train(config, FewSeries(), reward, console=quiet)
    return {"adapted": folder / "adapted", "full": folder / "full"}


@pytest.mark.parametrize("kind", ["adapted", "full"])
def test_an_exported_folder_is_the_checkpoint(
    kind: str, runs: dict[str, Path], tmp_path: Path
) -> None:
    checkpoint, to = runs[kind] / "checkpoints" / "step-000002", tmp_path / "out"
    assert main(["export", "--checkpoint", str(checkpoint), "--to", str(to)]) == 0
    names = {path.name for path in to.iterdir()}
    assert names >= {"model.safetensors", "config.json", "generation_config.json", "README.md"}
    assert names >= {"tokenizer.json", "tokenizer_config.json", "preprocessor_config.json"}
    assert not {name for name in names if name.startswith(("trainer", "adapter"))}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(to, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(to, padding_side="left")
    theirs = Captioner(model, tokenizer, caption_prompt="Describe.")
    ours = Captioner.load(checkpoint, caption_prompt="Describe.")
    start = Captioner.load(runs[kind].parent / "model", caption_prompt="Describe.")
    with torch.no_grad():
        logps = [
            captioner.token_logps(captioner.prompts(random_images(1)), CAPTIONS)[0]
            for captioner in (theirs, ours, start)
        ]
    assert (logps[0] - logps[1]).abs().max() < 1e-5
    assert (logps[0] - logps[2]).abs().max() > 1e-3  # two steps have changed something
    with pytest.raises(ValueError, match="to: expected a new folder"):
        export.export(checkpoint, to)


def test_the_card_says_what_is_on_record(runs: dict[str, Path], tmp_path: Path) -> None:
    run = runs["adapted"]
    export.export(run / "checkpoints" / "step-000002", tmp_path / "narrow", dtype="bfloat16")
    card = (tmp_path / "narrow" / "README.md").read_text()
    written = json.loads((run / "config.json").read_text())
    best = json.loads((run / "best.json").read_text())
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert f"accuracy of the run: {best['val/acc']:.4f} at step {best['step']}" in card
    assert f"This checkpoint: accuracy {rows[2]['val/acc']:.4f}" in card
    for text in (written["recipe"], written["corpus_fingerprint"], written["config"]["model"]):
        assert f"`{text}`" in card
    assert "adapters of rank 2 on q_proj" in card
    assert "Weights here: bfloat16" in card
    assert "base_model" not in card  # a folder is no hub id
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(tmp_path / "narrow")
    assert model.dtype == torch.bfloat16
    (run / "best.json").rename(run / "kept.json")
    (run / "final.json").unlink()
    bare = export.model_card(run, written, Path("step-000009"), adapted=False, dtype="float32")
    assert bare.split("## Validation")[1].strip() == "None on record."
    (run / "kept.json").rename(run / "best.json")


@pytest.mark.parametrize(
    ("reward", "told"),
    [
        ("identification", "pick the series out of look-alikes"),
        ("answerability", "answer questions about the series"),
        ("judge", "grades of a frozen judge"),
    ],
)
def test_the_card_names_the_reward(runs: dict[str, Path], reward: str, told: str) -> None:
    written = json.loads((runs["full"] / "config.json").read_text())
    written["config"]["reward"] = reward
    card = export.model_card(
        runs["full"], written, Path("step-000002"), adapted=False, dtype="float32"
    )
    assert told in card
    assert ("identification" in card) == (reward == "identification")


def test_wrong_calls_write_nothing(
    runs: dict[str, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    to = str(tmp_path / "out")
    assert main(["export", "--checkpoint", str(runs["full"]), "--to", to]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("python -m trainer export: checkpoint: expected RUN/checkpoints/step-")
    monkeypatch.setattr(export, "TOLERANCE", 0.0)  # no float32 sum is that exact
    checkpoint = runs["adapted"] / "checkpoints" / "step-000002"
    with pytest.raises(ValueError, match="logits: expected a change of at most 0"):
        export.export(checkpoint, tmp_path / "out")
    assert not list(tmp_path.iterdir())
