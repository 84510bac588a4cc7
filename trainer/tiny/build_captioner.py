"""Build the tiny captioner: ``python -m trainer.tiny.build_captioner``.

Three stages. First the image encoder learns to see: a throw-away head regresses the T values, and
more, from the visual tokens. Then it rests, and the language model learns captions: first those
that read out many values, then all kinds. Last it learns the mixture it ships with, which is vague
or partial more often than it is informative.
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from lineup_fast import charts
from trainer.tiny import captioner_data as data
from trainer.tiny import captioner_model as cm
from trainer.tiny import series, tokenizer

Array = NDArray[np.float64]
LENGTHS = data.LENGTHS
MAX_TOKENS = 48
STAGES = ("warm", "captions", "style")
HERE = Path(__file__).parent


@dataclass(frozen=True)
class Settings:
    """What decides the weights, besides torch's version and the number of threads."""

    seed: int = 0
    warm_steps: int = 1200
    warm_charts: int = 32
    warm_lr: float = 2e-3
    steps: int = 3600
    charts: int = 16
    captions: int = 4
    lr: float = 1.5e-3
    real_frac: float = 0.5
    broad_from: float = 0.6  # where in the second stage the broad mixture is reached
    style_steps: int = 400
    style_lr: float = 5e-4
    windows: int = 20000  # real windows of the train split to draw from


class Builder:
    """The model, its optimizers and the stages."""

    def __init__(self, settings: Settings, work: Path, narrow: bool) -> None:
        torch.manual_seed(settings.seed)
        self.settings, self.work, self.narrow = settings, work, narrow
        self.tokenizer = self._tokenizer()
        self.tokenizer.chat_template = tokenizer.CHAT_TEMPLATE
        self.number_ids = tokenizer.number_ids(self.tokenizer)
        self.data = data.Charts(settings.windows, settings.real_frac, settings.seed)
        self.model = cm.new_model(self.tokenizer)
        sample = series.generate(64, 24, np.random.default_rng(settings.seed))
        cm.start_weights(self.model, data.pixels(list(sample)), self.number_ids)
        style = charts.TINY_STYLE
        grid = (style.height // cm.PATCH, style.width // cm.PATCH)
        self.turn = cm.rotation(self.model.model.visual, grid)
        n_rows, self.columns = (side // cm.MERGE for side in grid)
        n_tokens = n_rows * self.columns
        width = self.model.config.text_config.hidden_size
        self.heads = nn.ModuleDict(
            {str(t): cm.WarmUpHead(self.columns, n_rows, width, t, 9) for t in LENGTHS}
        )
        self.prompt_ids, self.prompt_positions = self._prompt(n_tokens, grid)
        # A reader that knows nothing yet would undo what the image encoder has learned: the
        # encoder rests while captions are learned.
        seeing = [*self.model.model.visual.parameters(), *self.heads.parameters()]
        resting = {id(parameter) for parameter in seeing}
        telling = [p for p in self.model.parameters() if id(p) not in resting]
        self.parameters = {"warm": seeing, "captions": telling, "style": telling}
        self.optimizers = {
            stage: torch.optim.AdamW(group, lr=0.0, betas=(0.9, 0.98), weight_decay=0.01)
            for stage, group in self.parameters.items()
        }
        self.stage, self.step, self.seconds = "warm", 0, 0.0
        self.recent: list[tuple[float, float]] = []  # loss and error of the last steps

    def _tokenizer(self) -> PreTrainedTokenizerFast:
        """The shared tokenizer; a resumed run keeps the one that its weights know."""
        folder = self.work / "tokenizer"
        if not folder.is_dir():
            tokenizer.build().save_pretrained(folder)
        return tokenizer.load(folder)

    def _prompt(self, n_tokens: int, grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
        content = [{"type": "image"}, {"type": "text", "text": cm.CAPTION_PROMPT}]
        text = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
        )
        text = text.replace("<|image_pad|>", "<|image_pad|>" * n_tokens)
        ids = torch.tensor(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        is_image = (ids == self.model.config.image_token_id).int()
        positions, _ = self.model.model.get_rope_index(
            ids[None],
            mm_token_type_ids=is_image[None],
            image_grid_thw=torch.tensor([[1, *grid]]),
        )
        return ids, positions[:, 0]

    def run(self) -> None:
        """All stages, from where the last checkpoint left off."""
        self._load()
        settings = self.settings
        plan = {
            "warm": settings.warm_steps,
            "captions": settings.steps,
            "style": settings.style_steps,
        }
        for stage, total in plan.items():
            if stage != self.stage:
                continue
            begin, last_save = time.monotonic() - self.seconds, time.monotonic()
            while self.step < total:
                loss = getattr(self, f"_{stage}_loss")(self.step / total)
                self._update(loss, self.step, total)
                self.step += 1
                self.seconds = time.monotonic() - begin
                if self.step % 50 == 0 or self.step == total:
                    self._report(total)
                if time.monotonic() - last_save > 60 or self.step == total:
                    self._save()
                    last_save = time.monotonic()
            if stage != "style":
                self.stage, self.step, self.seconds = STAGES[STAGES.index(stage) + 1], 0, 0.0
                self._save()

    def _rng(self) -> np.random.Generator:
        return np.random.default_rng([self.settings.seed, STAGES.index(self.stage), self.step])

    def _seen(self, rows: list[Array]) -> Tensor:
        return cm.encode(self.model.model.visual, data.pixels(rows), self.turn)

    def _head_loss(self, seen: Tensor, drawn: dict[int, Array]) -> tuple[Tensor, float]:
        """Loss of the throw-away heads, and the mean error of the T values in units."""
        parts = seen.split([len(rows) for rows in drawn.values()])
        losses, errors = [], []
        for part, (length, rows) in zip(parts, drawn.items(), strict=True):
            targets = data.warm_up_targets(rows, self.columns)
            loss, error = self.heads[str(length)].loss(part, *targets)
            losses.append(loss)
            errors.append(50 * float(error))
        return torch.stack(losses).mean(), sum(errors) / len(errors)

    def _warm_loss(self, progress: float) -> Tensor:
        rng, count = self._rng(), self.settings.warm_charts // len(LENGTHS)
        drawn = {length: self.data.draw(length, count, rng) for length in LENGTHS}
        with self._autocast():
            seen = self._seen([row for rows in drawn.values() for row in rows])
            loss, error = self._head_loss(seen, drawn)
        self.recent.append((float(loss.detach()), error))
        return loss

    def _captions_loss(self, progress: float) -> Tensor:
        share = min(1.0, progress / self.settings.broad_from)
        # Numbers near the right one are nearly right, less and less so as training goes on.
        return self._told_loss({"broad": share, "reading": 1 - share}, 3.0 * (1 - progress) ** 2)

    def _style_loss(self, progress: float) -> Tensor:
        return self._told_loss({"shipped": 1.0}, 0.0)

    def _told_loss(self, mixtures: dict[str, float], blur: float) -> Tensor:
        rng, count = self._rng(), self.settings.charts // len(LENGTHS)
        drawn = {length: self.data.draw(length, count, rng) for length in LENGTHS}
        rows = [row for group in drawn.values() for row in group]
        groups = [self._encoded(row, rng, mixtures) for row in rows]
        packed = cm.pack(self.prompt_ids, self.prompt_positions, groups)
        with self._autocast():
            with torch.no_grad():
                seen = self._seen(rows)
            logits = cm.caption_logits(self.model, seen, packed)
        loss, error = caption_loss(logits, packed.targets, self.number_ids, blur + 0.4)
        self.recent.append((float(loss.detach()), error))
        return loss

    def _encoded(
        self, row: Array, rng: np.random.Generator, mixtures: dict[str, float]
    ) -> list[list[int]]:
        """Token ids of C captions, each ended and at most MAX_TOKENS long."""
        found: list[list[int]] = []
        while len(found) < self.settings.captions:
            mixture = str(rng.choice(list(mixtures), p=list(mixtures.values())))
            text = data.told(row, rng, mixture)
            ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
            if len(ids) < MAX_TOKENS:
                found.append([*ids, self.tokenizer.eos_token_id])
        return found

    def _update(self, loss: Tensor, step: int, total: int) -> None:
        loss.backward()
        settings = self.settings
        peak = {"warm": settings.warm_lr, "captions": settings.lr, "style": settings.style_lr}[
            self.stage
        ]
        shape = 0.03 + 0.97 * 0.5 * (1 + math.cos(math.pi * step / total))
        optimizer = self.optimizers[self.stage]
        for group in optimizer.param_groups:
            group["lr"] = peak * min(1.0, (step + 1) / 50) * shape
        nn.utils.clip_grad_norm_(self.parameters[self.stage], 1.0)
        optimizer.step()
        optimizer.zero_grad()

    def _autocast(self) -> Any:
        return torch.autocast("cpu", torch.bfloat16, enabled=self.narrow)

    # ------------------------------------------------------------------------------ bookkeeping

    def _report(self, total: int) -> None:
        left = self.seconds / self.step * (total - self.step)
        loss, error = np.mean(self.recent, axis=0)
        self.recent.clear()
        what = "values read by the head" if self.stage == "warm" else "numbers in captions"
        print(
            f"{self.stage:8s} {self.step:5d}/{total}  loss {loss:.3f}  {what} {error:.2f} off  "
            f"{self.seconds:.0f} s, {left:.0f} s left",
            flush=True,
        )

    def _save(self) -> None:
        self.work.mkdir(parents=True, exist_ok=True)
        state = {
            "model": self.model.state_dict(),
            "heads": self.heads.state_dict(),
            "optimizers": {name: o.state_dict() for name, o in self.optimizers.items()},
            "stage": self.stage,
            "step": self.step,
            "seconds": self.seconds,
        }
        torch.save(state, self.work / "state.tmp")
        (self.work / "state.tmp").replace(self.work / "state.pt")

    def _load(self) -> None:
        path = self.work / "state.pt"
        if not path.is_file():
            return
        state = torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.heads.load_state_dict(state["heads"])
        for name, optimizer in self.optimizers.items():
            if name in state["optimizers"]:
                optimizer.load_state_dict(state["optimizers"][name])
        self.stage, self.step, self.seconds = state["stage"], state["step"], state["seconds"]
        print(f"going on from {path}: {self.stage}, step {self.step}", flush=True)

    def export(self, folder: Path) -> None:
        """Weights in float16, config and tokenizer, as ``from_pretrained`` reads them."""
        self.model.half().save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)


def caption_loss(
    logits: Tensor, targets: Tensor, number_ids: list[int], spread: float
) -> tuple[Tensor, float]:
    """Mean cross-entropy, where a number counts as a bell of σ ``spread`` over the numbers.

    Also returns the mean error of the likeliest number where a number is due.
    """
    logp = logits.log_softmax(-1)
    columns = torch.tensor(number_ids)
    value_of = torch.full((logits.shape[1],), -1)
    value_of[columns] = torch.arange(len(number_ids))
    values = value_of[targets]
    is_number = values >= 0
    plain = -logp[~is_number].gather(1, targets[~is_number][:, None]).sum()
    logp_of, values = logp[is_number][:, columns], values[is_number]
    distance = torch.arange(len(number_ids)) - values[:, None]
    bell = torch.softmax(-0.5 * (distance / spread) ** 2, -1)
    error = float((logp_of.argmax(1) - values).abs().float().mean())
    return (plain - (bell * logp_of).sum()) / len(targets), error


def main(arguments: list[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m trainer.tiny.build_captioner")
    parser.add_argument("--out", type=Path, default=HERE / "captioner", help="where to write it")
    parser.add_argument("--work", type=Path, default=Path("runs/tiny-captioner"),
                        help="checkpoints; a run in it is resumed")  # fmt: skip
    parser.add_argument("--threads", type=int, default=2, help="CPU threads of torch")
    parser.add_argument("--steps", type=int, default=Settings.steps, help="of the second stage")
    parser.add_argument("--warm-steps", type=int, default=Settings.warm_steps)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    # bfloat16 pays only where the CPU multiplies it in tiles.
    narrow = bool(torch.cpu._is_amx_tile_supported())
    settings = Settings(steps=options.steps, warm_steps=options.warm_steps)
    builder = Builder(settings, options.work, narrow)
    builder.run()
    builder.export(options.out)
    print(f"wrote {options.out}", flush=True)


if __name__ == "__main__":
    main()
