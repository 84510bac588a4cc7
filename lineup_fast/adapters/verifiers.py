"""verifiers (0.4, its v1 task sets) and prime-rl: a task set over an exported corpus.

``lineup-fast export corpus/ --to verifiers -o set/`` writes its rows; the reward is asked of a
server. verifiers finds task sets by names without dots: a module ``lineup`` that imports
``LineupTaskset`` and names it in ``__all__`` makes ``id = "lineup"`` work (docs/embed.md).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from lineup_fast.client import RewardClient
from lineup_fast.verifiers.base import BackendError

__all__ = ["LineupTaskset"]  # noqa: F822  made when it is asked for: its base class is the host's


@cache
def _client(urls: str) -> RewardClient:
    return RewardClient(urls.split(","))


async def _reward(urls: str, caption: str, uid: str) -> float:
    """Reward of one caption; raises where there is no answer, which marks the trace errored."""
    batch = await _client(urls).ascore([caption], [uid])
    if not batch.valid[0]:
        raise BackendError(f"reward: expected an answer, got none ({batch.reason[0]})")
    return float(batch.reward[0])


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """prompt and uid of every row. Raises: ValueError naming file and line of one that is none."""
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
                yield {"prompt": row["prompt"], "uid": row["uid"]}
            except (ValueError, KeyError, TypeError) as error:
                said = f"{path}:{number}: expected prompt and uid ({error})"
                raise ValueError(said) from error


@cache
def _taskset() -> type:
    import verifiers.v1 as vf

    class LineupData(vf.TaskData):
        """One item: its chart and instruction as ``prompt``, and its id."""

        uid: str

    class LineupTaskConfig(vf.TaskConfig):
        """url: reward servers, separated by commas; the token comes from LINEUP_TOKEN."""

        url: str = "http://127.0.0.1:8900"

    class LineupTask(vf.Task[LineupData, vf.State, LineupTaskConfig]):
        """Rewards the last reply as a caption of the item."""

        @vf.reward(weight=1.0)
        async def lineup(self, trace: Any) -> float:
            """Reward of the caption."""
            return await _reward(self.config.url, trace.last_reply or "", self.data.uid)

        @vf.metric
        async def caption_chars(self, trace: Any) -> float:
            """Characters of the caption."""
            return float(len(trace.last_reply or ""))

    class LineupTasksetConfig(vf.TasksetConfig):
        """file: JSONL written by ``lineup-fast export --to verifiers``."""

        file: str = "train.jsonl"
        task: LineupTaskConfig = LineupTaskConfig()

    class LineupTaskset(vf.Taskset[LineupTask, LineupTasksetConfig]):
        """The rows of an exported file as tasks."""

        def load(self) -> Iterator[LineupTask]:
            """One task per row."""
            for row in read_rows(Path(self.config.file)):
                yield LineupTask(LineupData(**row), self.config.task)

    return LineupTaskset


def __getattr__(name: str) -> Any:
    if name == "LineupTaskset":
        return _taskset()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
