"""The task set under verifiers' own loader, tasks scored as its harness scores them."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
import verifiers.v1 as vf
from conftest import direct
from verifiers.v1.utils.loaders import taskset_config_type

from lineup_fast.adapters import verifiers as adapter


@pytest.fixture(autouse=True, scope="session")
def lineup_module(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The file that docs/embed.md asks for: task sets are found by names without dots."""
    folder = tmp_path_factory.mktemp("modules")
    (folder / "lineup.py").write_text(
        "from lineup_fast.adapters.verifiers import LineupTaskset\n__all__ = ['LineupTaskset']\n"
    )
    sys.path.insert(0, str(folder))


def _tasks(file: Path, server: str) -> list[Any]:
    """Loaded as verifiers loads them: by the name of a module, settings as plain data."""
    settings = {"id": "lineup", "file": str(file), "task": {"url": server}}
    config = taskset_config_type("lineup").model_validate(settings)
    return list(vf.load_taskset(config))


def _score(task: Any, caption: str) -> Any:
    trace = vf.Trace.model_construct(
        task=task.data, root_reply=caption, rewards={}, metrics={}, errors=[], nodes=[]
    )
    asyncio.run(task.score(trace))
    return trace


def test_one_task_set_is_exported() -> None:
    assert adapter.__all__ == ["LineupTaskset"]
    assert issubclass(adapter.LineupTaskset, vf.Taskset)


def test_tasks_carry_chart_and_item(rows: Path, server: str) -> None:
    tasks = _tasks(rows / "verifiers" / "train.jsonl", server)
    assert len({task.data.uid for task in tasks}) == len(tasks) > 4
    content = tasks[0].data.prompt[0].content
    kinds = [part["type"] if isinstance(part, dict) else part.type for part in content]
    assert kinds == ["image_url", "text"]


def test_rewards_and_metrics_are_recorded(rows: Path, server: str, truths: dict[str, str]) -> None:
    task = _tasks(rows / "verifiers" / "train.jsonl", server)[0]
    caption = truths[task.data.uid]
    trace = _score(task, caption)
    expected = {float(direct(server, [caption], [task.data.uid], i).reward[0]) for i in range(4)}
    assert trace.reward in expected
    assert trace.metrics["caption_chars"] == len(caption)


def test_a_failure_is_an_error_of_the_trace(rows: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lineup_fast.client import RewardClient

    gone = RewardClient("http://127.0.0.1:9", deadline_s=1.0)
    monkeypatch.setattr(adapter, "_client", lambda _: gone)
    task = _tasks(rows / "verifiers" / "train.jsonl", "http://127.0.0.1:9")[0]
    with pytest.raises(Exception, match="expected an answer, got none"):
        _score(task, "rises")


def test_a_row_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"prompt": []}\n', encoding="utf-8")
    with pytest.raises(ValueError, match=r"rows\.jsonl:1: expected prompt and uid"):
        _tasks(tmp_path / "rows.jsonl", "http://127.0.0.1:9")
