"""Build the tiny verifier: ``python -m trainer.tiny.build_verifier``; ``--evaluate`` measures one.

Trained straight on the answer letter a network of this size stays at chance. Here every number
of a caption is a question of its own: predict it from the candidates before it, say which
candidate it speaks of after it; and one attention head is shown the value that the number means.
Random candidates first, then look-alikes, then noise.
A step is a pure function of (seed, step), so a stopped run goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.tiny import tokenizer as tokens
from trainer.tiny import turned_data as turned
from trainer.tiny import verifier_data as data
from trainer.tiny.verifier_card import model_card, reader_card
from trainer.tiny.verifier_check import RECIPE, default_corpus, measure, measure_turned, misses
from trainer.tiny.verifier_model import (
    FACTS_AFTER,
    PLACES_AFTER,
    VOTES_AFTER,
    fast_dtype,
    new_heads,
    new_model,
    packed_forward,
)

HERE = Path(__file__).parent
REPORT_EVERY = 20


@dataclass(frozen=True)
class Settings:
    """What decides the weights, besides torch's version and the number of threads."""

    steps: int = 3000
    seed: int = 0
    sets: int = 8  # of 24 steps; twice as many of 12, which cost the same
    captions: int = 8
    matrix_lr: float = 0.01
    other_lr: float = 3e-3
    warmup: int = 100
    real: float = 0.6
    near: float = 0.084  # shares of the run: look-alikes from here on
    noisy: float = 0.30  # full noise from here on
    down: float = 0.62  # learning rates fall from here on, linearly to 2 %
    vocab_size: int = tokens.VOCAB_SIZE
    splits: tuple[str, ...] = ("train",)  # of the packaged data
    turned: float = 1.0  # share of the run from which every second step turns the question round


# The reader that evaluates: nothing of the verifier whose reward trains captioners is in it.
READER = Settings(steps=2000, seed=1, vocab_size=896, splits=("val", "test"), turned=0.3)


def lesson(settings: Settings, step: int) -> data.Lesson:
    """Return what ``step`` teaches."""
    done = step / settings.steps
    near = done >= settings.near
    rising = min(1.0, max(0.0, (done - settings.near) / (settings.noisy - settings.near)))
    readout = 0.6 - 0.4 * min(1.0, done / settings.near)
    odd = 0.08 if near else 0.02
    return data.Lesson(near=near, noise=3.0 * rising, rough=0.15 * rising, odd=odd, readout=readout)


def turns(settings: Settings, step: int) -> bool:
    """Whether ``step`` asks which of four captions describes a series."""
    return step % 2 == 1 and step >= settings.turned * settings.steps


def turned_lesson(settings: Settings, step: int) -> data.Lesson:
    """Return what ``step`` teaches of that question: the same course, begun where it begins."""
    begun = settings.turned * settings.steps
    rest = replace(settings, steps=round(settings.steps - begun))
    return replace(lesson(rest, round(step - begun)), odd=0.03)


def rate(settings: Settings, step: int) -> float:
    """Return the factor on the learning rates: warm-up, flat, then linear."""
    down = (1 - step / settings.steps) / (1 - settings.down)
    return min(1.0, (step + 1) / settings.warmup) * max(0.02, min(1.0, down))


class Course:
    """Model, heads, optimizers and data of a run; saves and resumes itself."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.settings, self.folder = settings, folder
        self.tokenizer = tokens.build(
            settings.vocab_size, seed=settings.seed, both_ways=settings.turned < 1
        )
        torch.manual_seed(settings.seed)
        self.model = new_model(self.tokenizer, settings.seed)
        self.heads = new_heads()
        self.dtype = fast_dtype()
        self.layout = data.Layout(self.tokenizer, RECIPE.k)
        self.turned_layout = turned.TurnedLayout(self.tokenizer, self.layout)
        number_row = torch.full((len(self.tokenizer),), -1)
        number_row[torch.tensor(self.layout.numbers)] = torch.arange(101)
        self.number_row = number_row
        matrices = [
            weight
            for name, weight in self.model.named_parameters()
            if weight.dim() == 2 and "embed" not in name
        ]
        known = {id(weight) for weight in matrices}
        every = [*self.model.parameters(), *self.heads.parameters()]
        self.weights = every
        # Muon makes orthogonal steps in the matrices: several times fewer steps than Adam alone.
        self.optimizers: list[torch.optim.Optimizer] = [
            torch.optim.Muon(
                matrices, lr=settings.matrix_lr, weight_decay=0.01,
                adjust_lr_fn="match_rms_adamw",
            ),
            torch.optim.AdamW(
                [weight for weight in every if id(weight) not in known],
                lr=settings.other_lr, betas=(0.9, 0.98), weight_decay=0.01,
            ),
        ]  # fmt: skip
        self.step, self.seconds = 0, 0.0
        self.pools: list[dict[int, data.Pool]] = []

    def load_data(self) -> None:
        """Make the series to train on: real train windows and generated ones."""
        made = data.generated_pools(12000, np.random.default_rng(self.settings.seed + 1))
        self.pools = [data.corpus_pools(default_corpus(), self.settings.splits), made]

    def batch(self) -> data.Batch | turned.TurnedBatch:
        """Return the batch of the current step."""
        settings, step = self.settings, self.step
        rng = np.random.default_rng([settings.seed, step])
        length = int(rng.choice(data.series.LENGTHS))
        pool = self.pools[0 if rng.random() < settings.real else 1][length]
        if turns(settings, step):
            return turned.make_turned_batch(
                self.tokenizer, self.turned_layout, pool, turned_lesson(settings, step),
                sets=settings.sets, lists_per_set=settings.captions // 2, rng=rng,
            )  # fmt: skip
        return data.make_batch(
            self.tokenizer, self.layout, pool, lesson(settings, step),
            sets=settings.sets * 24 // length, captions_per_set=settings.captions, rng=rng,
        )  # fmt: skip

    def losses(self, batch: data.Batch) -> dict[str, Tensor]:
        """Return the parts of the loss, and the share of right answers, of one batch."""
        prefix, caption = torch.from_numpy(batch.prefix), torch.from_numpy(batch.caption)
        seen = packed_forward(self.model, prefix, caption, self.dtype)
        target, blind = torch.from_numpy(batch.target), torch.from_numpy(batch.blind)
        layout, (_, k, length) = self.layout, batch.sets.shape
        table = self.model.get_input_embeddings().weight
        rows = torch.arange(len(target))
        final = seen.behind[-1][rows, torch.from_numpy(batch.last)].float()
        letters = torch.log_softmax(final @ table.T, -1)[:, torch.tensor(layout.answers)]
        # A caption that tells nothing has no right answer: any certainty would be a bias.
        answer = torch.where(blind, -letters.mean(1), -letters[rows, target]).mean()
        steps = torch.from_numpy(batch.steps)
        steps = torch.where(blind[:, None], -2, steps)
        row, at = (steps > -2).nonzero(as_tuple=True)
        told = seen.behind[-1][row, at - 1].float() @ table[torch.tensor(layout.numbers)].T
        which = self.heads["which"](seen.behind[VOTES_AFTER - 1][row, at].float())[:, :k]
        values = seen.before[PLACES_AFTER - 1][:, torch.from_numpy(batch.value_at)].float()
        places = torch.arange(length).expand(len(prefix), k, length)
        labels = torch.arange(k)[:, None].expand(len(prefix), k, length)
        ends = seen.before[FACTS_AFTER - 1][:, torch.from_numpy(batch.end_at)].float()
        true = torch.from_numpy(data.facts(batch.sets)).float()
        # The matching head should stand on the value that the number speaks of.
        found, place = (steps >= 0).nonzero(as_tuple=True)
        aim = torch.from_numpy(batch.value_at)[target[found], steps[found, place]]
        match = -torch.log(seen.look[found, place, aim].float() + 1e-4).mean()
        return {
            "answer": answer,
            "number": F.cross_entropy(told, self.number_row[caption[row, at]]),
            "which": F.cross_entropy(which, target[row]),
            "match": match,
            "facts": F.mse_loss(self.heads["facts"](ends), true),
            "place": F.cross_entropy(self.heads["step"](values).flatten(0, 2), places.flatten()),
            "label": F.cross_entropy(self.heads["label"](values).flatten(0, 2), labels.flatten()),
            "right": (letters.argmax(1) == target)[~blind].float().mean(),
        }

    def turned_losses(self, batch: turned.TurnedBatch) -> dict[str, Tensor]:
        """The same of a batch that asks which caption describes a series.

        Every number is to be found in the series, whether or not the caption speaks of it; then
        the number says whether it agrees, and which place its caption has in the list.
        """
        prefix, lists = torch.from_numpy(batch.prefix), torch.from_numpy(batch.lists)
        seen = packed_forward(self.model, prefix, lists, self.dtype)
        target, blind = torch.from_numpy(batch.target), torch.from_numpy(batch.blind)
        table = self.model.get_input_embeddings().weight
        rows = torch.arange(len(target))
        final = seen.behind[-1][rows, torch.from_numpy(batch.last)].float()
        letters = torch.log_softmax(final @ table.T, -1)[:, torch.tensor(self.layout.answers)]
        answer = torch.where(blind, -letters.mean(1), -letters[rows, target]).mean()
        steps, whose = torch.from_numpy(batch.steps), torch.from_numpy(batch.whose)
        true = whose == target[:, None]
        row, at = (true & ~blind[:, None]).nonzero(as_tuple=True)
        told = seen.behind[-1][row, at - 1].float() @ table[torch.tensor(self.layout.numbers)].T
        number = F.cross_entropy(told, self.number_row[lists[row, at]])
        row, at = ((whose >= 0) & ~blind[:, None]).nonzero(as_tuple=True)
        agrees = self.heads["agrees"](seen.behind[VOTES_AFTER - 1][row, at].float())[:, 0]
        places = self.heads["label"](seen.behind[PLACES_AFTER - 1][row, at].float())
        values = seen.before[PLACES_AFTER - 1][:, torch.from_numpy(batch.value_at)].float()
        sought = torch.arange(values.shape[1]).expand(len(prefix), -1)
        end = seen.before[FACTS_AFTER - 1][:, batch.end_at].float()
        found, place = (steps >= 0).nonzero(as_tuple=True)
        aim = torch.from_numpy(batch.value_at)[steps[found, place]]
        match = -torch.log(seen.look[found, place, aim].float() + 1e-4).mean()
        facts = torch.from_numpy(data.facts(batch.series)).float()
        return {
            "answer": answer,
            "number": number,
            "which": F.binary_cross_entropy_with_logits(agrees, true[row, at].float()),
            "match": match,
            "facts": F.mse_loss(self.heads["facts"](end), facts),
            "place": F.cross_entropy(self.heads["step"](values).flatten(0, 1), sought.flatten()),
            "label": F.cross_entropy(places, whose[row, at]),
            "right": (letters.argmax(1) == target)[~blind].float().mean(),
        }

    def update(self) -> dict[str, float]:
        """Make one training step; return the parts of the loss."""
        factor = rate(self.settings, self.step)
        for optimizer, base in zip(
            self.optimizers, (self.settings.matrix_lr, self.settings.other_lr), strict=True
        ):
            optimizer.zero_grad()
            for group in optimizer.param_groups:
                group["lr"] = base * factor
        batch = self.batch()
        if isinstance(batch, turned.TurnedBatch):
            parts, sign = self.turned_losses(batch), "turned "
        else:
            parts, sign = self.losses(batch), ""
        inside = 1.0 - 0.8 * self.step / self.settings.steps
        total = parts["answer"] + parts["which"] + 0.1 * parts["number"]
        places = 0.3 * (parts["place"] + parts["label"])
        total = total + inside * (0.5 * parts["match"] + 2.0 * parts["facts"] + places)
        total.backward()
        nn.utils.clip_grad_norm_(self.weights, 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
        self.step += 1
        return {sign + name: float(value.detach()) for name, value in parts.items()}

    def save(self) -> None:
        """Write the state of the run, all or nothing."""
        state = {
            "settings": asdict(self.settings),
            "step": self.step,
            "seconds": self.seconds,
            "model": self.model.state_dict(),
            "heads": self.heads.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        torch.save(state, self.folder / "state.writing")
        (self.folder / "state.writing").replace(self.folder / "state.pt")

    def resume(self) -> bool:
        """Go on from the folder's state; False where there is none.

        Raises ValueError if it was made with other settings.
        """
        if not (self.folder / "state.pt").is_file():
            return False
        state = torch.load(self.folder / "state.pt", weights_only=True)
        if state["settings"] != asdict(self.settings):
            raise ValueError(
                f"{self.folder}: made with other settings, remove it: {state['settings']}"
            )
        self.step, self.seconds = state["step"], state["seconds"]
        self.model.load_state_dict(state["model"])
        self.heads.load_state_dict(state["heads"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        return True


def train(course: Course, minutes: float) -> bool:
    """Train to the end or until ``minutes`` have passed; True at the end."""
    begun, mean = time.monotonic(), dict[str, float]()
    first, before = course.step, course.seconds
    while course.step < course.settings.steps:
        for name, value in course.update().items():
            mean[name] = value if name not in mean else 0.97 * mean[name] + 0.03 * value
        passed = time.monotonic() - begun
        course.seconds = before + passed
        if course.step % REPORT_EVERY == 0:
            left = passed / (course.step - first) * (course.settings.steps - course.step)
            row: dict[str, float] = {"step": course.step}
            row |= {name: round(value, 3) for name, value in mean.items()}
            words = " ".join(f"{name} {value}" for name, value in row.items())
            print(f"{words}  ({passed / 60:.1f} min, {left / 60:.1f} left)", flush=True)
            with (course.folder / "log.jsonl").open("a", encoding="utf-8") as log:
                log.write(json.dumps(row) + "\n")
        if course.step % 200 == 0 or passed > minutes * 60:
            course.save()
        if passed > minutes * 60:
            return False
    course.save()
    return True


def export(course: Course, target: Path) -> None:
    """Write weights in 16 bit and the tokenizer, as ``from_pretrained`` reads them."""
    target.mkdir(parents=True, exist_ok=True)
    half = new_model(course.tokenizer, course.settings.seed)
    half.load_state_dict(course.model.state_dict())
    half.to(torch.bfloat16).save_pretrained(target)
    course.tokenizer.save_pretrained(target)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m trainer.tiny.build_verifier", description=__doc__
    )
    parser.add_argument("--reader", action="store_true", help="the second one, that evaluates")
    parser.add_argument("--out", type=Path, help="where the model goes")
    parser.add_argument("--work", type=Path, help="state and log of the run")
    parser.add_argument("--minutes", type=float, default=math.inf, help="stop after; resumable")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--items", type=int, default=1000, help="held-out items to measure with")
    parser.add_argument("--evaluate", action="store_true", help="only measure the model in --out")
    parser.add_argument("--export", action="store_true", help="only write the state as a model")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    settings = READER if arguments.reader else Settings()
    told = {"steps": arguments.steps, "seed": arguments.seed}
    settings = replace(settings, **{name: n for name, n in told.items() if n is not None})
    name = "reader" if arguments.reader else "verifier"
    out = arguments.out or HERE / name
    if not arguments.evaluate:
        course = Course(settings, arguments.work or Path(f"runs/tiny-{name}"))
        resumed = course.resume()
        if not arguments.export:
            course.folder.mkdir(parents=True, exist_ok=True)
            course.load_data()
            print(f"training {settings.steps} steps from {course.step if resumed else 0}")
            if not train(course, arguments.minutes):
                print("stopped; the same command goes on")
                return
        export(course, out)
    card = describe(out, arguments.items, reader=arguments.reader)
    if not arguments.evaluate:
        (out / "README.md").write_text(card(facts(course)), encoding="utf-8")


def describe(folder: Path, n_items: int, *, reader: bool) -> Callable[[dict[str, Any]], str]:
    """Measure a model and print what it reaches; return its card as a function of its facts."""
    figures = measure(folder, n_items, split="train" if reader else "test")
    print(json.dumps(figures, indent=1), *misses(figures), sep="\n")
    if not reader:
        return partial(model_card, figures)
    both = measure_turned(folder, n_items, split="train")
    print("which description:", json.dumps(both, indent=1))
    return partial(reader_card, figures, both)


def facts(course: Course) -> dict[str, Any]:
    """Return what the model card says of the model and of its training."""
    config = course.model.config
    dtype = str(course.dtype).removeprefix("torch.")
    return {
        "vocabulary": len(course.tokenizer),
        "parameters": sum(weight.numel() for weight in course.model.parameters()),
        "width": config.hidden_size,
        "layers": config.num_hidden_layers,
        "steps": course.step,
        "trained": f"{course.seconds / 60:.0f} minutes, {dtype} activations, float32 weights",
    }


if __name__ == "__main__":
    main()
