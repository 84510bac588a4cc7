"""Rollouts ahead of their updates: what overlaps, what is weighed, what a resumed run repeats."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.random_vlm import byte_tokenizer, random_model
from tests.scripted_run import FewSeries, ScriptedReward, settings, vowels
from tests.test_checkpoint import program, without_times
from trainer import checkpoint, rloo
from trainer.config import RlooConfig
from trainer.policy import Prompts
from trainer.record.console import Console, stopped
from trainer.rloo import furthest, train
from trainer.rollouts import Part, TransformersSampler


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random captioner on disk."""
    folder = tmp_path_factory.mktemp("model")
    random_model().save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def watched(monkeypatch: pytest.MonkeyPatch, began: dict[int, threading.Event]) -> None:
    """Samplers set the event of a step when its captions begin to be drawn."""

    class Watched(TransformersSampler):
        def sample(self, prompts: Prompts, ids: Sequence[str], step: int) -> Iterator[Part]:
            began[step].set()
            return super().sample(prompts, ids, step)

    monkeypatch.setattr("trainer.loading.TransformersSampler", Watched)


@pytest.mark.parametrize("depth", [0, 1])
def test_the_next_rollout_begins_before_the_reward_is_back_only_with_a_depth(
    depth: int, model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = {step: threading.Event() for step in range(1, 5)}
    watched(monkeypatch, began)
    ahead: list[bool] = []

    def answer(index: int | None) -> None:  # in the thread that scores
        if index == 1:  # not answered before the next step is being written
            ahead.append(began[2].wait(60 if depth else 0))

    config = settings(model_folder, tmp_path / "run", steps=2, async_depth=depth,
                      charts_at_once=4, captions_per_update=16)  # fmt: skip
    train(config, FewSeries(), ScriptedReward(vowels, before=answer), console=quiet())
    assert ahead == [depth == 1]
    rows = without_times(config.run)
    assert [row["step"] for row in rows] == [0, 1, 2]
    weighed = [key for key in rows[2] if key.startswith("mismatch/")]
    assert len(weighed) == 4 * depth
    if depth:
        assert rows[1]["mismatch/ratio_max"] == pytest.approx(1.0, abs=1e-4)  # nothing moved yet
        assert rows[2]["mismatch/logp_gap_mean"] > 1e-3  # drawn before the first update


def quiet() -> Console:
    return Console("", 6, enabled=False)


def test_nothing_is_drawn_past_a_validation_or_checkpoint() -> None:
    config = RlooConfig(async_depth=2, eval_every=5, checkpoint_every=4)
    found = [furthest(config, step, 11) for step in range(1, 12)]
    assert found == [3, 4, 4, 4, 5, 8, 8, 8, 10, 10, 11]


def test_resume_after_kill_is_bit_equal_with_a_depth(model_folder: Path, tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    reward = ScriptedReward(vowels, lambda caption: caption.startswith("x"))
    config = settings(model_folder, whole, async_depth=1, eval_every=3, checkpoint_every=3)
    train(config, FewSeries(), reward, console=quiet())
    depth = ("--async-depth", 1, "--every", 3)
    assert program(model_folder, broken, 6, "--kill-at", 5, *depth) == -signal.SIGKILL
    assert checkpoint.steps(broken / "checkpoints") == [3]
    assert program(model_folder, broken, 6, "--resume", *depth) == 0
    assert without_times(broken) == without_times(whole)
    assert any(row.get("mismatch/logp_gap_mean", 0) > 1e-4 for row in without_times(whole))
    last = Path("checkpoints") / "step-000006"
    for name in ("model.safetensors", "trainer.safetensors"):
        one, other = load_file(whole / last / name), load_file(broken / last / name)
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in one)


def test_interrupt_with_captions_ahead_goes_back_to_the_last_checkpoint(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings(model_folder, tmp_path / "run", async_depth=2, eval_every=3,
                      checkpoint_every=3, charts_at_once=4)  # fmt: skip
    said: list[str] = []
    console = quiet()
    monkeypatch.setattr(console, "say", said.append)

    def interrupt(index: int | None) -> None:
        if index == 4:
            os.kill(os.getpid(), signal.SIGINT)

    assert not train(config, FewSeries(), ScriptedReward(vowels, before=interrupt), console=console)
    assert checkpoint.steps(config.run / "checkpoints") == [3]
    assert said == [stopped(4, [3])]
    assert "--resume goes on from step 3" in said[0]
    assert stopped(4, [3, 4]) == "stopped at step 4; go on with --resume"
    assert "from step 0" in stopped(2, [])


def test_metrics_are_valid_json(model_folder: Path, tmp_path: Path) -> None:
    config = settings(model_folder, tmp_path / "run", steps=1, async_depth=1)
    flat = ScriptedReward(lambda caption: 0.5)  # no advantage anywhere: nothing is weighed
    rloo.train(config, FewSeries(), flat, console=quiet())
    row = [json.loads(line) for line in (config.run / "metrics.jsonl").read_text().splitlines()][1]
    assert row["mismatch/ratio_mean"] is None
