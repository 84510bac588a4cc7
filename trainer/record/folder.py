"""The run folder: config.json, metrics.jsonl, validation/, checkpoints/, best.json, final.json.

Every file but metrics.jsonl is written beside its place and renamed, so that a killed run leaves
whole files only; metrics.jsonl is flushed line by line, and rows past the checkpoint are cut when
a run is resumed.
"""

from __future__ import annotations

import json
import math
import os
from importlib import metadata
from pathlib import Path
from typing import Any

# Where files lie and servers listen, what is shown and kept, and when a run gives up: nothing that
# changes a number.
MAY_CHANGE = {
    "run", "corpus", "data", "resume", "trackers", "sample_every", "keep_last", "keep_every",
    "collapse_window", "collapse_zero_std", "collapse_invalid", "collapse_openings",
    "sampler_url", "verifier_url", "reward_url", "sleep",
}  # fmt: skip
_PACKAGES = ("numpy", "torch", "transformers", "tokenizers", "safetensors")


def check_folder(path: Path, *, resume: bool) -> None:
    """Raises ValueError where a run could not be started or gone on with; makes nothing."""
    exists = (path / "config.json").is_file()
    if exists and not resume:
        raise ValueError(f"run: expected a new folder or --resume, got {path} with a run in it")
    if resume and not exists:
        raise ValueError(f"run: expected a run to resume, got {path} without config.json")


class RunFolder:
    """One run on disk.

    writes: False on the ranks of a run that leave all files to the first one; they hold what they
    are told and check nothing.

    Raises
    ------
    ValueError
        The folder holds a run and `resume` is not set, or the other way round.
    """

    def __init__(self, path: Path, *, resume: bool, writes: bool = True) -> None:
        self.path, self._writes = path, writes
        self.checkpoints = path / "checkpoints"
        if not writes:
            return
        check_folder(path, resume=resume)
        for folder in (path, path / "validation", self.checkpoints):
            folder.mkdir(parents=True, exist_ok=True)

    def write(self, name: str, value: Any) -> None:
        """A JSON file."""
        if self._writes:
            write_json(self.path / name, value)

    def read(self, name: str) -> Any:
        """A JSON file, None where there is none."""
        path = self.path / name
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None

    def write_settings(self, settings: dict[str, Any]) -> None:
        """config.json; a resumed run must have been started with the same settings."""
        if not self._writes:
            return
        before, now = self.read("config.json"), json.loads(json.dumps(_plain(settings)))
        if before is not None:
            old, new = (_comparable(s) for s in (before, now))
            changed = sorted(key for key in {*old, *new} if old.get(key) != new.get(key))
            if changed:
                raise ValueError(
                    f"resume: expected the settings the run was started with, "
                    f"got other {', '.join(changed)}"
                )
        self.write("config.json", settings)

    def append(self, row: dict[str, Any]) -> None:
        """One line of metrics, on disk when this returns."""
        if not self._writes:
            return
        with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(_plain(row)) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def rows(self) -> list[dict[str, Any]]:
        """All whole lines of metrics."""
        path = self.path / "metrics.jsonl"
        if not path.is_file():
            return []
        text = path.read_text(encoding="utf-8")
        whole = text[: text.rfind("\n") + 1]  # a line that was being written is no row
        return [json.loads(line) for line in whole.splitlines()]

    def write_validation(self, name: str, rows: list[dict[str, Any]]) -> None:
        """validation/NAME.jsonl."""
        text = "".join(json.dumps(_plain(row)) + "\n" for row in rows)
        if self._writes:
            _replace(self.path / "validation" / f"{name}.jsonl", text)

    def cut(self, step: int) -> list[dict[str, Any]]:
        """Drops whatever lies past `step`; returns the rows that stay, none where others write."""
        if not self._writes:
            return []
        rows = [row for row in self.rows() if row["step"] <= step]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        _replace(self.path / "metrics.jsonl", text)
        for path in (self.path / "validation").glob("*.jsonl"):
            kind, _, number = path.stem.partition("-")
            if kind != "step" or int(number) > step:
                path.unlink()
        for name in ("best.json", "final.json", "stopped.json"):  # written again
            (self.path / name).unlink(missing_ok=True)
        return rows


class Best:
    """The best validation so far, rebuilt from the rows of a resumed run.

    name: the metric that decides; it rises, unless `falls` (a loss).
    """

    def __init__(
        self,
        folder: RunFolder,
        rows: list[dict[str, Any]],
        name: str = "val/acc",
        *,
        falls: bool = False,
    ) -> None:
        self._folder, self._name, self._falls = folder, name, falls
        self.step, self.value, self.floor = 0, float("inf") if falls else -1.0, None
        for row in rows:
            self.see(row)
        if rows:
            self.write()

    def see(self, row: dict[str, Any]) -> bool:
        """Whether this row's validation beats all before; ties go to the earlier one."""
        if self.floor is None:
            self.floor = row.get("val/floor")
        value = row.get(self._name)
        if value is None or not (value < self.value if self._falls else value > self.value):
            return False
        self.step, self.value = row["step"], value
        return True

    def write(self) -> None:
        """best.json, once the checkpoint it names exists."""
        self._folder.write("best.json", {"step": self.step, self._name: self.value})


def versions() -> dict[str, str]:
    """Versions of the packages that decide numbers."""
    return {name: metadata.version(name) for name in _PACKAGES}


def _comparable(settings: dict[str, Any]) -> dict[str, Any]:
    """What must not change in a run; where its files lie may."""
    chosen = {k: v for k, v in settings["config"].items() if k not in MAY_CHANGE}
    kept = (
        "corpus_fingerprint", "bank_fingerprint", "recipe", "prompt_version", "data_fingerprint",
        "lookalikes_fingerprint",
    )  # fmt: skip
    return chosen | {k: settings[k] for k in kept if k in settings}


def write_json(path: Path, value: Any) -> None:
    """A JSON file that appears whole or not at all; what JSON has no number for becomes null."""
    _replace(path, json.dumps(_plain(value), indent=1) + "\n")


def _replace(path: Path, text: str) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with beside.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def _plain(value: Any) -> Any:
    """JSON values; NaN and infinity, which JSON has not, become null."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
