"""TRL's RLOOTrainer on the tiny captioner with the identification reward: a run to copy from.

    python tests/adapters/trl_run.py SET/train.parquet CORPUS --steps 30 --out RUN

SET comes from ``lineup-fast export CORPUS --to trl --style tiny --prompt "Describe the chart."``.
The tiny captioner has no processor file, so one is put together here; a captioner from the hub
brings its own.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from datasets import load_dataset
from transformers import AutoTokenizer, Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLProcessor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.processing_utils import ProcessorMixin
from trl import RLOOConfig, RLOOTrainer

from lineup_fast import Corpus, IdentificationReward, Recipe, TransformersVerifier
from lineup_fast.adapters.trl import LineupReward
from lineup_fast.client import RewardClient

TINY = Path(__file__).parents[2] / "trainer" / "tiny"
GROUP = 8


class ChartProcessor(Qwen2_5_VLProcessor):  # type: ignore[misc]
    """Qwen2.5-VL's processor for images alone: its video part needs torchvision."""

    def __init__(self, image_processor: Any, tokenizer: Any, chat_template: str) -> None:
        self.image_token, self.video_token = "<|image_pad|>", "<|video_pad|>"
        self.image_token_id = tokenizer.convert_tokens_to_ids(self.image_token)
        self.video_token_id = -1
        ProcessorMixin.__init__(self, image_processor, tokenizer, chat_template=chat_template)

    @classmethod
    def get_attributes(cls) -> list[str]:
        """The parts that it has."""
        return ["image_processor", "tokenizer"]


def processor() -> ChartProcessor:
    """Tokenizer of the tiny captioner, charts taken as they are."""
    tokenizer = AutoTokenizer.from_pretrained(TINY / "captioner", padding_side="left")
    images = Qwen2VLImageProcessorPil(min_pixels=28 * 28)
    return ChartProcessor(images, tokenizer, tokenizer.chat_template)


def train(
    rows: Path, corpus: Path, out: Path, *, steps: int, charts: int, lr: float = 1e-4
) -> list[dict[str, Any]]:
    """Run the trainer; returns what it logged."""
    torch.set_num_threads(1)
    verifier = TransformersVerifier(TINY / "verifier")
    recipe = Recipe(layout="candidates_first", decimals=0)
    reward = IdentificationReward(Corpus.load(corpus), verifier, recipe)
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(
        TINY / "captioner", dtype=torch.float32
    )
    model.model.visual.requires_grad_(False)
    options = RLOOConfig(
        output_dir=str(out),
        max_steps=steps,
        per_device_train_batch_size=charts * GROUP,
        num_generations=GROUP,
        max_completion_length=48,
        learning_rate=lr,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=5,
        beta=0.0,
        temperature=1.0,
        bf16=False,
        use_cpu=True,
        seed=0,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        gradient_checkpointing=False,
    )
    data = load_dataset(
        "parquet", data_files=str(rows), split="train", cache_dir=str(out / "cache")
    )
    trainer = RLOOTrainer(
        model=model,
        reward_funcs=LineupReward(RewardClient(reward)),
        args=options,
        train_dataset=data,
        processing_class=processor(),
    )
    trainer.train()
    return [row for row in trainer.state.log_history if "rewards/lineup/mean" in row]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("rows", type=Path, metavar="SET/train.parquet")
    parser.add_argument("corpus", type=Path, metavar="CORPUS")
    parser.add_argument("--out", type=Path, required=True, metavar="RUN")
    parser.add_argument("--steps", type=int, default=30, metavar="N")
    parser.add_argument("--charts", type=int, default=16, metavar="B", help="charts a step")
    parser.add_argument("--lr", type=float, default=1e-4, metavar="X")
    args = parser.parse_args()
    rows = train(args.rows, args.corpus, args.out, steps=args.steps, charts=args.charts, lr=args.lr)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "log.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
