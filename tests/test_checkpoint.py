"""A killed and resumed run equals an uninterrupted one, bit by bit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.random_vlm import byte_tokenizer, random_model
from tests.scripted_run import FewSeries, ScriptedReward, settings, vowels
from trainer import checkpoint
from trainer.checkpoint import Counters
from trainer.optim import adamw, apply_update
from trainer.policy import Captioner
from trainer.record import RunFolder
from trainer.record.console import Console
from trainer.rloo import train

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random captioner on disk."""
    folder = tmp_path_factory.mktemp("model")
    random_model().save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def program(*arguments: object) -> int:
    """Runs `scripted_run.py`; returns its exit status."""
    environment = os.environ | {"PYTHONPATH": str(HERE.parent), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(HERE / "scripted_run.py"), *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, check=False).returncode


def without_times(run: Path) -> list[dict[str, object]]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [
        {k: v for k, v in row.items() if not k.startswith("time/") and k != "step_time"}
        for row in rows
    ]


def test_resume_after_kill_is_bit_equal(model_folder: Path, tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    reward = ScriptedReward(vowels, lambda caption: caption.startswith("x"))
    train(settings(model_folder, whole), FewSeries(), reward, console=Console("", 6, enabled=False))
    assert program(model_folder, broken, 6, "--kill-at", 4) == -signal.SIGKILL
    assert [row["step"] for row in without_times(broken)] == [0, 1, 2, 3]  # 3 lies past the cut
    assert checkpoint.steps(broken / "checkpoints") == [2]
    assert program(model_folder, broken, 6, "--resume") == 0
    assert without_times(broken) == without_times(whole)
    for name in ("best.json", "final.json"):
        assert json.loads((broken / name).read_text()) == json.loads((whole / name).read_text())
    files = sorted(path.name for path in (whole / "validation").iterdir())
    assert files == sorted(path.name for path in (broken / "validation").iterdir())
    for name in files:
        assert (whole / "validation" / name).read_text() == (
            broken / "validation" / name
        ).read_text()
    last = Path("checkpoints") / "step-000006"
    for name in ("model.safetensors", "trainer.safetensors"):
        one, other = load_file(whole / last / name), load_file(broken / last / name)
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in one)


def test_interrupt_stops_at_a_step_with_a_checkpoint(model_folder: Path, tmp_path: Path) -> None:
    config = settings(model_folder, tmp_path / "run", checkpoint_every=100, eval_every=100)
    asked: list[int | None] = []

    def interrupt(index: int | None) -> None:
        asked.append(index)
        if asked.count(3) == 1 and index == 3:  # the step is asked about in two parts
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    reward = ScriptedReward(vowels, before=interrupt)
    quiet = Console("", 6, enabled=False)
    assert not train(config, FewSeries(), reward, console=quiet)
    assert signal.getsignal(signal.SIGINT) is before
    assert checkpoint.steps(config.run / "checkpoints") == [3]
    assert [row["step"] for row in without_times(config.run)] == [0, 1, 2, 3]
    assert not (config.run / "final.json").exists()


def test_a_run_folder_is_not_used_twice(model_folder: Path, tmp_path: Path) -> None:
    config = settings(model_folder, tmp_path / "run", steps=1)
    reward, quiet = ScriptedReward(vowels), Console("", 1, enabled=False)
    with pytest.raises(ValueError, match="resume"):
        RunFolder(config.run, resume=True)
    mistyped = settings(tmp_path / "nothing", config.run, steps=1)
    with pytest.raises(ValueError, match="model: expected a folder or hub id"):
        train(mistyped, FewSeries(), reward, console=quiet)  # and the folder stays free
    train(config, FewSeries(), reward, console=quiet)
    with pytest.raises(ValueError, match="new folder"):
        train(config, FewSeries(), reward, console=quiet)
    changed = settings(model_folder, config.run, steps=1, lr=1.0, resume=True)
    with pytest.raises(ValueError, match="lr"):
        train(changed, FewSeries(), reward, console=quiet)


def test_optimizer_state_survives(model_folder: Path, tmp_path: Path) -> None:
    captioner = Captioner.load(model_folder, caption_prompt="Describe.")
    parameters = list(captioner.model.parameters())
    optimizer = adamw(parameters, (0.9, 0.95), 0.0)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    apply_update(optimizer, parameters, 1e-3, 1.0)
    path = checkpoint.save(tmp_path, captioner, optimizer, Counters(step=7, update=1, tokens=5))

    again = Captioner.load(path, caption_prompt="Describe.")
    fresh = adamw(again.model.parameters(), (0.9, 0.95), 0.0)
    assert checkpoint.load(path, again, fresh) == Counters(step=7, update=1, tokens=5)
    for model, opt in ((captioner.model, optimizer), (again.model, fresh)):
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, 0.5)
        apply_update(opt, list(model.parameters()), 1e-3, 1.0)
    for one, other in zip(captioner.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_pruning_keeps_the_latest_and_the_best(tmp_path: Path) -> None:
    for step in (0, 10, 20, 30, 40):
        checkpoint.folder(tmp_path, step).mkdir()
    (tmp_path / ".partial-000050").mkdir()  # of a run killed while saving
    checkpoint.prune(tmp_path, keep_last=2, best=10)
    assert checkpoint.steps(tmp_path) == [10, 30, 40]


def test_a_torn_last_line_is_no_row(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run", resume=False)
    for step in range(3):
        folder.append({"step": step, "value": float("nan")})
    with (folder.path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "val')
    assert [row["step"] for row in folder.rows()] == [0, 1, 2]
    assert [row["step"] for row in folder.cut(1)] == [0, 1]
    assert (folder.path / "metrics.jsonl").read_text().count("\n") == 2
    assert folder.rows()[0]["value"] is None
