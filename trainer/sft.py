"""Supervised fine-tuning on teacher captions: the baseline, and a start for RLOO.

The loss is the mean negative log-probability of caption tokens and end token; chart and prompt are
context only. Captions of one chart are packed behind it once, as in RLOO.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lineup_fast import counters
from lineup_fast.cli import one_line
from trainer import checkpoint
from trainer.ahead import Ahead
from trainer.checkpoint import Counters
from trainer.loading import load_captioner, settings
from trainer.optim import Schedule, adamw, apply_update
from trainer.policy import Captioner, Prompts
from trainer.record import Best, RunFolder, check_folder
from trainer.record.console import Console, stop_requested
from trainer.record.trackers import Trackers
from trainer.teacher import Teacher, TeacherCaption, read_teacher, split
from trainer.validate import Series, chart_prompts
from trainer.world import ALONE, World

if TYPE_CHECKING:
    from trainer.sft_config import SftConfig


@dataclass(frozen=True)
class Lesson:
    """Charts with the prompt, and the captions to be learned behind each.

    completions: int64 [L] per caption, the end token included, by chart.
    """

    prompts: Prompts
    completions: list[list[Tensor]]

    @property
    def n_tokens(self) -> int:
        """Caption tokens, end tokens included."""
        return sum(len(ids) for group in self.completions for ids in group)


def token_losses(captioner: Captioner, lesson: Lesson) -> Tensor:
    """-log p of every caption token, [N]."""
    logp, _ = captioner.token_logps(lesson.prompts, lesson.completions)
    return -logp


def update(
    captioner: Captioner,
    optimizer: torch.optim.AdamW,
    lessons: Sequence[Lesson],
    lr: float,
    clip_norm: float,
    world: World = ALONE,
) -> tuple[float, float]:
    """One optimizer step on the mean loss over all tokens; returns loss and gradient norm.

    lessons: of this rank, equally many on all ranks.
    """
    n_tokens, total = world.sum(sum(lesson.n_tokens for lesson in lessons)), 0.0
    for n, lesson in enumerate(lessons):
        world.last_pass(captioner, n == len(lessons) - 1)
        loss = token_losses(captioner, lesson).sum() / n_tokens
        loss.backward()
        total += float(loss.detach())
    parameters = [p for p in captioner.model.parameters() if p.requires_grad]
    return world.sum(total), apply_update(optimizer, parameters, lr, clip_norm)


@torch.no_grad()
def mean_loss(captioner: Captioner, lessons: Sequence[Lesson], world: World = ALONE) -> float:
    """Mean loss per token over the lessons of all ranks, nats."""
    total = sum(float(token_losses(captioner, lesson).sum()) for lesson in lessons)
    return world.sum(total) / world.sum(sum(lesson.n_tokens for lesson in lessons))


def caption_tokens(captioner: Captioner, text: str) -> Tensor:
    """A caption as the captioner would have written it: its tokens, then the end token."""
    ids = captioner.tokenizer(text, add_special_tokens=False)["input_ids"]
    return torch.tensor([*ids, captioner.tokenizer.eos_token_id], device=captioner.device)


def fitting(
    captioner: Captioner, teacher: Teacher, max_tokens: int
) -> dict[TeacherCaption, Tensor]:
    """Tokens of the captions the captioner can write: short enough, none that it never samples.

    The others are taken out of `teacher` and counted there.
    """
    banned = set(captioner.banned.tolist())
    tokens = {}
    for caption in teacher.captions:
        ids = caption_tokens(captioner, caption.text)
        if len(ids) > max_tokens:
            teacher.dropped["too long"] += 1
        elif banned & set(ids.tolist()) or captioner.eos_ids & set(ids[:-1].tolist()):
            teacher.dropped["special tokens"] += 1
        else:
            tokens[caption] = ids
    teacher.captions = list(tokens)
    return tokens


def update_captions(
    captions: Sequence[TeacherCaption], per_update: int, seed: int, number: int
) -> list[TeacherCaption]:
    """Captions of update 1, 2, ...: every epoch in a new order, its last partial batch dropped."""
    per_epoch = len(captions) // per_update
    epoch, place = divmod(number - 1, per_epoch)
    order = counters.order(len(captions), "sft", seed, epoch)
    return [captions[row] for row in order[place * per_update : (place + 1) * per_update]]


def train(
    config: SftConfig,
    corpus: Series,
    teacher: Teacher,
    *,
    console: Console | None = None,
    world: World = ALONE,
) -> bool:
    """Trains until the last update; False if it was interrupted (a checkpoint is there).

    world: the ranks that train together; each takes its share of the captions of every update.

    Raises:
        ValueError: run folder, captions or model do not fit the settings.
    """
    if config.captions_per_update % world.size:
        raise ValueError(
            f"captions_per_update: expected a multiple of {world.size} ranks, "
            f"got {config.captions_per_update}"
        )
    world.check_alike(
        config.as_dict()
        | {"corpus_fingerprint": corpus.fingerprint, "data_fingerprint": teacher.fingerprint}
    )
    folder = RunFolder(config.run, resume=config.resume, writes=world.first)
    if config.threads:
        torch.set_num_threads(config.threads)
    done = world.same(checkpoint.steps(folder.checkpoints))
    start = checkpoint.folder(folder.checkpoints, done[-1]) if done else config.model
    captioner = load_captioner(config, start, world)
    tokens = fitting(captioner, teacher, config.max_tokens)
    learned, held_out = _sets(config, corpus, list(tokens))
    per_epoch = len(learned) // config.captions_per_update
    n_updates = config.updates or max(1, int(config.epochs * per_epoch))
    schedule = Schedule(config.lr, int(config.warmup_frac * n_updates), n_updates, 0.0)
    learner = world.learner(captioner)
    parameters = [p for p in learner.model.parameters() if p.requires_grad]
    optimizer = adamw(parameters, config.betas, config.weight_decay)
    counts = checkpoint.load(Path(start), learner, optimizer) if done else Counters()
    folder.write_settings(
        settings("sft", config, corpus)
        | {"teacher": teacher.summary(), "data_fingerprint": teacher.fingerprint}
        | {"ranks": world.size}
    )
    history = world.same(folder.cut(counts.step if done else -1))
    best = Best(folder, history, "val/loss", falls=True)
    console = console or Console(config.run.name, n_updates, enabled=None if world.first else False)
    lessons = _teach(captioner, corpus, tokens, config)

    def prepare(number: int) -> list[Lesson]:
        captions = update_captions(learned, config.captions_per_update, config.seed, number)
        return lessons(world.deal(captions))

    def held_out_loss() -> float:
        console.note("validating")
        with world.whole(learner, captioner):
            return mean_loss(captioner, lessons(world.deal(held_out)), world)

    def write(row: dict[str, Any]) -> None:
        folder.append(row)
        trackers.log(row)
        console.row(row)

    with (
        console,
        stop_requested() as stop,
        Ahead(prepare, n_updates) as ahead,
        Trackers(
            config.trackers if world.first else (), folder.path, config.as_dict(), counts.step
        ) as trackers,
    ):
        if not done:
            row: dict[str, Any] = {"step": 0, "val/loss": held_out_loss()}
            best.see(row)
            write(row)
        stopping = world.any(stop())
        while counts.step < n_updates and not stopping:
            counts.step += 1
            counts.update += 1
            started, lr = time.perf_counter(), schedule.lr(counts.step - 1)
            batch = ahead.take(counts.step)
            loss, norm = update(learner, optimizer, batch, lr, config.clip_norm, world)
            counts.tokens += world.sum(sum(lesson.n_tokens for lesson in batch))
            row = {"step": counts.step, "loss": loss, "grad_norm": norm, "lr": lr}
            row |= {"num_tokens": counts.tokens, "step_time": time.perf_counter() - started}
            stopping = world.any(stop())
            due = counts.step % config.eval_every == 0 or counts.step == n_updates
            if due:
                row["val/loss"] = held_out_loss()
                best.see(row)
            write(row)
            if due or stopping:
                checkpoint.save(
                    folder.checkpoints, captioner, optimizer, counts, learner=learner, world=world
                )
                best.write()
                if world.first:
                    checkpoint.prune(folder.checkpoints, config.keep_last, best.step)
        if counts.step < n_updates:
            console.say(f"stopped at update {counts.step}; go on with --resume")
            return False
        folder.write("final.json", {"best_step": best.step, "best_loss": best.value})
        console.say(f"best validation loss {best.value:.4f} nats a token, at update {best.step}")
    return True


def _sets(
    config: SftConfig, corpus: Series, captions: Sequence[TeacherCaption]
) -> tuple[list[TeacherCaption], list[TeacherCaption]]:
    """Captions to learn from, and those of the validation, in an order of its own."""
    learned, held_out = split(captions, set(corpus.ids("train")), set(corpus.ids("val")))
    for name, found, least in (
        ("train", learned, config.captions_per_update), ("val", held_out, 1)
    ):  # fmt: skip
        if len(found) < least:
            raise ValueError(f"data: expected {least} captions of {name} items, got {len(found)}")
    order = counters.order(len(held_out), "sft validation")[: config.n_val]
    return learned, [held_out[row] for row in order]


def _teach(
    captioner: Captioner,
    corpus: Series,
    tokens: dict[TeacherCaption, Tensor],
    config: SftConfig,
) -> Callable[[Sequence[TeacherCaption]], list[Lesson]]:
    """Turns captions into micro-batches: charts drawn, captions of one chart together."""

    def lessons(captions: Sequence[TeacherCaption]) -> list[Lesson]:
        made = []
        for start in range(0, len(captions), config.micro_captions):
            groups: dict[str, list[Tensor]] = {}
            for caption in captions[start : start + config.micro_captions]:
                groups.setdefault(caption.id, []).append(tokens[caption])
            prompts = chart_prompts(captioner, corpus, list(groups), config)
            made.append(Lesson(prompts, list(groups.values())))
        return made

    return lessons


def run(config: SftConfig) -> int:
    """`python -m trainer sft`: corpus and captions from the settings, then `train`."""
    from lineup_fast.corpus import Corpus

    try:
        world = World.join(config.device)
        if world.first:
            check_folder(config.run, resume=config.resume)
        corpus = Corpus.load(config.corpus)
        teacher = read_teacher(config.data, set(corpus.ids()), min_characters=config.min_characters)
        finished = train(config, corpus, teacher, world=world)
        world.leave()
        return 0 if finished else 130
    except (ValueError, OSError) as error:
        print(f"python -m trainer sft: {one_line(error)}", file=sys.stderr)
        return 2
