"""Metrics sent on to TensorBoard, Weights & Biases or Trackio, beside metrics.jsonl.

metrics.jsonl stays the record of a run; a tracker shows it. Each is imported when it is asked for.
"""

from __future__ import annotations

import hashlib
import importlib
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

PROJECT = "lineup-fast"
_PACKAGES = {"tensorboard": "tensorboard", "wandb": "wandb", "trackio": "trackio"}


class Tracker(Protocol):
    """One place that shows metrics."""

    def log(self, metrics: dict[str, float], step: int) -> None: ...

    def close(self) -> None: ...


class Trackers:
    """The trackers of a run, all fed the same rows; a context manager.

    names: of tensorboard, wandb, trackio. folder: of the run; its name is the run's name, and its
    path makes the id under which a resumed run goes on. settings: shown beside the curves.
    start: steps of the run done before, nothing of which is sent again.

    Raises:
        ValueError: a tracker is not installed.
    """

    def __init__(
        self, names: Sequence[str], folder: Path, settings: dict[str, Any], start: int
    ) -> None:
        for name in names:
            _import(name)
        self._open = [_START[name](folder, settings, start) for name in dict.fromkeys(names)]

    def __enter__(self) -> Trackers:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for tracker in self._open:
            tracker.close()

    def log(self, row: dict[str, Any]) -> None:
        """Sends one row of metrics."""
        if self._open:
            metrics = flat(row)
            for tracker in self._open:
                tracker.log(metrics, int(row["step"]))


def flat(row: dict[str, Any]) -> dict[str, float]:
    """The finite numbers of a row; those of a list under name/0, name/1, ..."""
    numbers: dict[str, float] = {}
    for name, value in row.items():
        values = value.tolist() if hasattr(value, "tolist") else value
        cells = {name: values}
        if isinstance(values, list):
            cells = {f"{name}/{i}": cell for i, cell in enumerate(values)}
        for key, cell in cells.items():
            if isinstance(cell, (int, float)) and math.isfinite(cell) and key != "step":
                numbers[key] = float(cell)
    return numbers


def _import(name: str) -> Any:
    try:
        module = "torch.utils.tensorboard" if name == "tensorboard" else name
        return importlib.import_module(module)
    except ImportError as error:
        raise ValueError(
            f"trackers: expected {name} to be installed (pip install {_PACKAGES[name]}), "
            f"got {error}"
        ) from error


def run_id(folder: Path) -> str:
    """The same for a run and its resumption."""
    return hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]


class _TensorBoard:
    def __init__(self, folder: Path, settings: dict[str, Any], start: int) -> None:
        del settings  # config.json lies beside the curves
        writer = _import("tensorboard").SummaryWriter
        self._writer = writer(log_dir=str(folder / "tensorboard"), purge_step=start + 1)

    def log(self, metrics: dict[str, float], step: int) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class _Wandb:
    def __init__(self, folder: Path, settings: dict[str, Any], start: int) -> None:
        del start  # the service keeps the first row of a step
        self._run = _import("wandb").init(
            project=PROJECT, name=folder.name, id=run_id(folder), resume="allow",
            dir=str(folder), config=settings,
        )  # fmt: skip

    def log(self, metrics: dict[str, float], step: int) -> None:
        self._run.log(metrics, step=step)

    def close(self) -> None:
        self._run.finish()


class _Trackio:
    def __init__(self, folder: Path, settings: dict[str, Any], start: int) -> None:
        del start
        name = f"{folder.name}-{run_id(folder)}"
        self._run = _import("trackio").init(
            project=PROJECT, name=name, resume="allow", config=settings
        )

    def log(self, metrics: dict[str, float], step: int) -> None:
        self._run.log(metrics, step=step)

    def close(self) -> None:
        self._run.finish()


_START: dict[str, Callable[[Path, dict[str, Any], int], Tracker]] = {
    "tensorboard": _TensorBoard,
    "wandb": _Wandb,
    "trackio": _Trackio,
}
