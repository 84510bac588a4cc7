"""Trackers: TensorBoard for real; the hosted ones through modules that answer like them."""

from __future__ import annotations

import math
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainer.record.trackers import Trackers, flat, run_id

ROW = {
    "step": 3,
    "reward": 1.25,
    "lineup/acc_by_position": np.array([0.5, 0.25]),
    "nothing": None,
    "entropy": math.nan,
}


def test_a_row_becomes_finite_numbers() -> None:
    assert flat(ROW) == {
        "reward": 1.25,
        "lineup/acc_by_position/0": 0.5,
        "lineup/acc_by_position/1": 0.25,
    }


def test_no_tracker_is_nothing(tmp_path: Path) -> None:
    with Trackers((), tmp_path / "run", {}, 0) as trackers:
        trackers.log(ROW)
    assert not (tmp_path / "run").exists()


def test_tensorboard_shows_what_was_logged_and_forgets_rows_past_a_resume(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for start, rewards in ((0, {1: 0.1, 2: 0.2, 3: 0.9}), (2, {3: 0.3})):
        with Trackers(("tensorboard",), tmp_path, {}, start) as trackers:
            for step, reward in rewards.items():
                trackers.log({"step": step, "reward": reward})
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    shown = [(event.step, round(event.value, 6)) for event in events.Scalars("reward")]
    assert shown == [(1, 0.1), (2, 0.2), (3, 0.3)]


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_standin_of_a_hosted_tracker_gets_the_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, Any]] = []

    class Run:
        def log(self, metrics: dict[str, float], step: int) -> None:
            calls.append(("log", (metrics, step)))

        def finish(self) -> None:
            calls.append(("finish", None))

    def init(*, project: str, name: str, config: dict[str, Any], resume: str, **more: Any) -> Run:
        calls.append(("init", {"project": project, "name": name, "resume": resume} | more))
        return Run()

    module = types.ModuleType(name)
    module.init = init  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, name, module)
    folder = tmp_path / "run-7"
    with Trackers((name,), folder, {"lr": 1.0}, 0) as trackers:
        trackers.log(ROW)
    assert [kind for kind, _ in calls] == ["init", "log", "finish"]
    assert calls[0][1]["resume"] == "allow"
    assert run_id(folder) in str(calls[0][1])
    assert calls[1][1] == (flat(ROW), 3)


def test_a_missing_tracker_is_refused_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ValueError, match=r"trackers: expected wandb .*pip install wandb"):
        Trackers(("tensorboard", "wandb"), tmp_path, {}, 0)
    assert not list(tmp_path.iterdir())
