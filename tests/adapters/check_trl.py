"""TRL's trainer learns from the reward; what its reward call hands over is what we read."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest
import trl_run
from conftest import direct

from lineup_fast.adapters.trl import LineupReward, completion_text
from lineup_fast.client import RewardClient

STEPS = 30


@pytest.mark.timeout(1200)
def test_thirty_steps_raise_the_reward(rows: Path, corpus_folder: Path, tmp_path: Path) -> None:
    log = trl_run.train(
        rows / "trl" / "train.parquet", corpus_folder, tmp_path, steps=STEPS, charts=16
    )
    rewards = [row["rewards/lineup/mean"] for row in log]
    assert len(rewards) == STEPS
    first, last = sum(rewards[:10]) / 10, sum(rewards[-10:]) / 10
    print(f"mean reward of the first ten steps {first:.3f}, of the last ten {last:.3f}")
    assert last > first
    assert all(row["lineup/invalid_frac"] == 0 for row in log)
    assert log[-1]["lineup/acc"] == pytest.approx(rewards[-1] / 2)


def test_messages_and_steps_are_read(server: str, truths: dict[str, str]) -> None:
    items, captions = list(truths)[:2], list(truths.values())[:2]
    completions = [[{"role": "assistant", "content": text}] for text in captions]
    reward = LineupReward(RewardClient(server))
    found = asyncio.run(
        reward(["p"] * 2, completions, uid=items, trainer_state=SimpleNamespace(global_step=5))
    )
    assert found == direct(server, captions, items, 5).reward.tolist()
    assert completion_text([{"content": [{"type": "text", "text": "a"}]}, {"content": "b"}]) == "ab"


def test_a_failure_is_none() -> None:
    metrics: dict[str, float] = {}
    reward = LineupReward(RewardClient("http://127.0.0.1:9", deadline_s=1.0))
    found = asyncio.run(reward(["p"], ["rises"], uid=["x"], log_metric=metrics.__setitem__))
    assert found == [None]
    assert metrics == {"lineup/invalid_frac": 1.0}
