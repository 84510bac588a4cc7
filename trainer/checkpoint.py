"""Checkpoints: the captioner as `from_pretrained` reads it, optimizer and counters beside it.

With adapters (LoRA) the checkpoint holds them alone, in place of the captioner's weights.

A checkpoint folder appears by one rename, so a folder named ``step-NNNNNN`` is always whole.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from trainer.optim import restore, state_of
from trainer.policy import Captioner
from trainer.world import ALONE, World, full

_STATE = "trainer.json"
_TENSORS = "trainer.safetensors"


@dataclass
class Counters:
    """Everything a run counts; with the weights and moments, all of its state.

    step: rollout steps done; update: optimizer steps done; tokens: prompt and caption tokens seen.
    """

    step: int = 0
    update: int = 0
    tokens: int = 0


def folder(checkpoints: Path, step: int) -> Path:
    """Where the checkpoint of a step lies."""
    return checkpoints / f"step-{step:06d}"


def steps(checkpoints: Path) -> list[int]:
    """Steps with a checkpoint, rising."""
    found = (re.fullmatch(r"step-(\d+)", path.name) for path in checkpoints.glob("step-*"))
    return sorted(int(match[1]) for match in found if match)


def save(
    checkpoints: Path,
    captioner: Captioner,
    optimizer: Any,
    counters: Counters,
    *,
    learner: Captioner | None = None,
    world: World = ALONE,
) -> Path:
    """Writes the checkpoint of `counters.step`, whole or not at all.

    learner: holds weights and moments where they are sharded. Rank 0 writes all of them, so that
    a run can be resumed with any number of ranks; the others wait.
    """
    learner = captioner if learner is None else learner
    final = folder(checkpoints, counters.step)
    if world.same(final.exists()):  # written by the same deterministic run before it was resumed
        return final
    moments = _moments(learner, optimizer, world)
    with world.whole(learner, captioner):
        if world.first:
            _write(checkpoints, final, captioner, moments, counters)
        world.same(None)  # nobody goes on before it is there
    return final


def _moments(learner: Captioner, optimizer: Any, world: World) -> dict[str, torch.Tensor]:
    """All moments and counts by name, on the CPU of rank 0; nothing on the others."""
    tensors: dict[str, torch.Tensor] = {}
    for name, parameter in learner.model.named_parameters():
        for kind, value in state_of(optimizer, parameter).items():
            moment = full(value)
            if world.first:
                tensors[f"{kind}.{name}"] = moment.cpu()
    return tensors


def _write(
    checkpoints: Path,
    final: Path,
    captioner: Captioner,
    moments: dict[str, torch.Tensor],
    counters: Counters,
) -> None:
    for left in checkpoints.glob(".partial-*"):  # of a run that was killed while saving
        shutil.rmtree(left)
    partial = checkpoints / f".partial-{counters.step:06d}"
    partial.mkdir()
    captioner.save(partial)
    save_file(moments, partial / _TENSORS)
    (partial / _STATE).write_text(json.dumps(asdict(counters)), encoding="utf-8")
    for path in partial.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    partial.rename(final)


def load(path: Path, captioner: Captioner, optimizer: Any) -> Counters:
    """Puts moments back into the optimizer of a captioner loaded from `path`."""
    saved: dict[str, dict[str, torch.Tensor]] = {}
    for key, value in load_file(path / _TENSORS).items():
        kind, _, name = key.partition(".")
        saved.setdefault(name, {})[kind] = value
    for name, parameter in captioner.model.named_parameters():
        if name in saved:
            restore(optimizer, parameter, saved[name])
    return Counters(**json.loads((path / _STATE).read_text(encoding="utf-8")))


def prune(checkpoints: Path, keep_last: int, best: int | None, keep_every: int = 0) -> None:
    """Deletes all checkpoints but the latest ones, the best one and those of every n-th step."""
    found = steps(checkpoints)
    for step in found[:-keep_last]:
        if step != best and not (keep_every and step % keep_every == 0):
            doomed = checkpoints / f".partial-old-{step:06d}"
            folder(checkpoints, step).rename(doomed)  # killed here, no half checkpoint has a name
            shutil.rmtree(doomed)
