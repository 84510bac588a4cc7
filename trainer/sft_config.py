"""Settings of ``python -m trainer sft``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lineup_fast.charts import STYLES
from lineup_fast.prompts import CAPTION_PROMPT
from trainer.config import check_adapters, plain


@dataclass(frozen=True)
class SftConfig:
    """Supervised training on teacher captions, loss on the caption only.

    Source: the paper's SFT baseline (5 epochs, lr 1e-5, cosine, 5 % warm-up, 64 captions an
    update, best validation loss kept); the reference's loss also counts prompt and image tokens,
    ours does not.
    """

    run: Path = Path("runs/sft")
    """Folder of the run; must be new, unless --resume."""
    corpus: Path = Path("corpus")
    """Folder written by `lineup-fast index`."""
    data: Path = Path("captions.jsonl")
    """Teacher captions: JSONL with "id" and "caption", as `python -m trainer caption` writes it."""
    model: str = "Qwen/Qwen2.5-VL-3B-Instruct"
    """Captioner to start from: folder or hub id of the Qwen2.5-VL family."""
    resume: bool = False
    """Go on from the last checkpoint in the run folder."""
    seed: int = 0
    """Decides the order of the captions."""

    epochs: float = 5.0
    """Passes over the captions, unless --updates is given."""
    updates: int | None = None
    """Optimizer steps, in place of --epochs."""
    captions_per_update: int = 64
    """Captions behind one optimizer step, of all ranks together."""
    micro_captions: int = 4
    """Captions in one forward and backward pass; memory only."""
    max_tokens: int = 1024
    """Longer captions are left out, and counted."""
    min_characters: int = 80
    """Shorter captions are left out, and counted."""
    caption_prompt: str = CAPTION_PROMPT
    """What stands behind the chart in the captioner's prompt."""
    chart_style: str = "default"
    """How charts are drawn: default, paper or tiny."""

    lr: float = 1e-5
    """Highest learning rate."""
    warmup_frac: float = 0.05
    """Share of the updates with rising learning rate; a cosine to 0 follows."""
    betas: tuple[float, float] = (0.9, 0.95)
    """AdamW's two decay rates."""
    weight_decay: float = 0.0
    """AdamW's decoupled weight decay."""
    clip_norm: float = 1.0
    """Largest norm of the gradient of an update."""
    lora_rank: int = 0
    """Rank of low-rank adapters on the language model (peft), the only weights that then learn;
    0 = all weights learn."""
    lora_alpha: float = 32.0
    """Adapters are scaled by this / rank."""
    lora_modules: tuple[str, ...] = (
        "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
    )  # fmt: skip
    """Linear layers of the language model that get adapters."""
    frozen_dtype: Literal["float32", "bfloat16"] = "float32"
    """Weights under the adapters; bfloat16 needs --compute-dtype bfloat16."""

    eval_every: int = 50
    """Updates between validations, each with a checkpoint; the last update has both."""
    n_val: int = 500
    """Validation captions at most."""
    keep_last: int = 2
    """Latest checkpoints kept besides the best one."""
    trackers: tuple[Literal["tensorboard", "wandb", "trackio"], ...] = ()
    """Where metrics are shown besides metrics.jsonl; each has to be installed."""

    device: str = "cpu"
    """Device of the captioner; with several ranks cuda is each one's own GPU."""
    compute_dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Matmuls of the captioner; weights and optimizer stay float32."""
    gradient_checkpointing: bool = True
    """Recompute activations in the backward pass: less memory, about a third more time."""
    freeze_vision: bool = False
    """Keep the vision tower as it is."""
    threads: int = 0
    """CPU threads, 0 = all cores; a resumed run must use the same number to be bit-equal."""

    def __post_init__(self) -> None:
        for name in ("captions_per_update", "micro_captions", "max_tokens", "eval_every", "n_val",
                     "keep_last"):  # fmt: skip
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}")
        for name in ("threads", "min_characters", "weight_decay"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name}: expected at least 0, got {getattr(self, name)}")
        for name in ("epochs", "lr", "clip_norm"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name}: expected a number above 0, got {getattr(self, name)}")
        if not 0 <= self.warmup_frac < 1:
            raise ValueError(f"warmup_frac: expected 0 to below 1, got {self.warmup_frac}")
        if self.updates is not None and self.updates < 1:
            raise ValueError(f"updates: expected at least 1, got {self.updates}")
        check_adapters(self)
        if self.chart_style not in STYLES:
            raise ValueError(f"chart_style: expected {', '.join(STYLES)}, got {self.chart_style!r}")

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return plain(self)
