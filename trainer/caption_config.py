"""Settings of ``python -m trainer caption``."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from lineup_fast.charts import STYLES
from lineup_fast.prompts import CAPTION_PROMPT

_OF_THE_RUN = ("caption_prompt", "chart_style", "max_new_tokens")
_DEFAULTS = {"caption_prompt": CAPTION_PROMPT, "chart_style": "default", "max_new_tokens": 1024}


@dataclass(frozen=True)
class CaptionConfig:
    """Greedy captions of the items of a corpus, by any captioner, into a JSONL file."""

    checkpoint: str
    """The captioner: a checkpoint of a run, any folder, or a hub id. Vision-language models read
    the chart, language models the digits."""
    data: Path
    """Folder written by `lineup-fast index`."""
    out: Path = Path("captions.jsonl")
    """Where the captions go; a file that is there is gone on with."""
    split: Literal["train", "val", "test", "all"] = "test"
    """Whose items."""
    n: int | None = None
    """Items at most, in the order of the fixed sets; None = all."""
    caption_prompt: str | None = None
    """The instruction; None = that of the checkpoint's run, else the default one."""
    chart_style: str | None = None
    """default, paper or tiny; None = that of the checkpoint's run, else default."""
    max_new_tokens: int | None = None
    """Longest caption in tokens; None = that of the checkpoint's run, else 1024."""
    at_once: int = 16
    """Captions written together; memory only."""
    device: str = "cpu"
    """Device of the captioner."""
    compute_dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Matmuls of the captioner."""
    threads: int = 0
    """CPU threads, 0 = all cores."""

    def __post_init__(self) -> None:
        for name in ("n", "max_new_tokens", "at_once"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}: expected at least 1, got {value}")
        if self.threads < 0:
            raise ValueError(f"threads: expected at least 0, got {self.threads}")
        if self.chart_style is not None and self.chart_style not in STYLES:
            raise ValueError(f"chart_style: expected {', '.join(STYLES)}, got {self.chart_style!r}")


def resolved(config: CaptionConfig) -> CaptionConfig:
    """Settings with nothing left open: prompt, style and length are those of the training run.

    Raises:
        ValueError: the run's config.json cannot be read.
    """
    trained = Path(config.checkpoint).resolve().parent.parent / "config.json"
    values = dict(_DEFAULTS)
    if Path(config.checkpoint).parent.name == "checkpoints" and trained.is_file():
        try:
            of_the_run = json.loads(trained.read_text(encoding="utf-8"))["config"]
        except (ValueError, KeyError) as error:
            raise ValueError(f"checkpoint: expected settings in {trained}, got {error}") from None
        of_the_run.setdefault("max_new_tokens", of_the_run.get("max_tokens", 1024))
        values |= {name: of_the_run[name] for name in _OF_THE_RUN if name in of_the_run}
    open_ones = {name: values[name] for name in _OF_THE_RUN if getattr(config, name) is None}
    return replace(config, **open_ones)  # type: ignore[arg-type]
