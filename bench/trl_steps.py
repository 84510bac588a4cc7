"""Steps of TRL's RLOOTrainer, measured; runs in TRL's environment, away from the checkout.

python bench/trl_steps.py SET/train.parquet OUT --steps N
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "tests" / "adapters")]

import torch  # noqa: E402
from datasets import load_dataset  # noqa: E402
from step_meter import Meter  # noqa: E402
from transformers import Qwen2_5_VLForConditionalGeneration  # noqa: E402
from trl import RLOOConfig, RLOOTrainer  # noqa: E402
from trl_run import GROUP, TINY, processor  # noqa: E402


def timed(trainer: Any, method: str, meter: Meter) -> None:
    """Adds up the seconds that a method of the trainer takes, from the fourth call on."""
    inner, calls = getattr(trainer, method), [0]

    def outer(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        result = inner(*args, **kwargs)
        calls[0] += 1
        if calls[0] > 3:
            meter.stage(method, time.perf_counter() - began)
        return result

    setattr(trainer, method, outer)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("rows", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--charts", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-6)
    args = parser.parse_args()
    torch.set_num_threads(1)
    meter = Meter()

    def lineup(completions: list[Any], **_: Any) -> list[float]:
        return meter.rewards([turns[0]["content"] for turns in completions])

    with tempfile.TemporaryDirectory() as folder:
        data = load_dataset("parquet", data_files=str(args.rows), split="train", cache_dir=folder)
        model = Qwen2_5_VLForConditionalGeneration.from_pretrained(
            TINY / "captioner", dtype=torch.float32
        )
        model.model.visual.requires_grad_(False)
        meter.model_is_loaded()
        options = RLOOConfig(
            output_dir=folder, max_steps=args.steps,
            per_device_train_batch_size=args.charts * GROUP, num_generations=GROUP,
            max_completion_length=48, learning_rate=args.lr,
            lr_scheduler_type="constant_with_warmup", warmup_steps=5, beta=0.0, temperature=1.0,
            bf16=False, use_cpu=True, seed=0, logging_steps=10**6, save_strategy="no",
            report_to="none", disable_tqdm=True, gradient_checkpointing=False,
        )  # fmt: skip
        trainer = RLOOTrainer(
            model=model, reward_funcs=lineup, args=options, train_dataset=data,
            processing_class=processor(),
        )  # fmt: skip
        for method in (
            "_generate", "_generate_and_score_completions", "_get_per_token_logps_and_entropies",
            "training_step",
        ):  # fmt: skip
            timed(trainer, method, meter)
        trainer.train()
    meter.write(args.out)


if __name__ == "__main__":
    main()
