"""Settings of ``python -m trainer questions``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class QuestionsConfig:
    """A bank of questions about the series of a corpus, every answer verified by code."""

    corpus: Path
    """Folder written by `lineup-fast index`."""
    out: Path = Path("bank.jsonl")
    """Where the questions go (-o)."""
    check: Path | None = None
    """JSONL of questions somebody else wrote, such as a VLM: {"id", "stem", "options", "answer",
    "spec"}. They are verified, no others are made."""
    wrong: Literal["relabel", "drop"] = "relabel"
    """What becomes of a question of --check whose answer is not the right one."""
    per_chart: int = 5
    """Questions per series at most."""
    at_least: int = 2
    """Series with fewer questions are left out."""
    split: Literal["train", "val", "test", "all"] = "all"
    """Whose series."""
    seed: int = 0
    """Decides which questions are tried first, and their wording."""

    def __post_init__(self) -> None:
        for name in ("per_chart", "at_least"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}")
        if self.check is None and self.at_least > self.per_chart:
            raise ValueError(
                f"at_least: expected at most per_chart ({self.per_chart}), got {self.at_least}"
            )
