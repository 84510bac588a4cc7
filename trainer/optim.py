"""AdamW and its learning rate: linear warm-up, then cosine to a floor."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.world import full


@dataclass(frozen=True)
class Schedule:
    """Learning rate of every update, a pure function of the update counter.

    peak: highest rate; warmup: updates until it is reached; total: updates of the run;
    floor_frac: where the cosine ends, as a fraction of the peak.

    Source: warm-up 20 updates, cosine with floor 10 % (reference training script).
    """

    peak: float
    warmup: int
    total: int
    floor_frac: float

    def lr(self, update: int) -> float:
        """Rate of update 0, 1, 2, …; the first one is already above zero."""
        if update < self.warmup:
            return self.peak * (update + 1) / self.warmup
        progress = (update - self.warmup) / max(1, self.total - self.warmup)
        cosine = 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress)))
        return self.peak * (self.floor_frac + (1.0 - self.floor_frac) * cosine)


def adamw(
    parameters: Iterable[Tensor], betas: tuple[float, float], weight_decay: float
) -> torch.optim.AdamW:
    """The optimizer, in its fused form; the rate is set before every step."""
    return torch.optim.AdamW(
        list(parameters), lr=0.0, betas=betas, weight_decay=weight_decay, fused=True
    )


def apply_update(
    optimizer: torch.optim.AdamW, parameters: list[Tensor], lr: float, clip_norm: float
) -> float:
    """One optimizer step with clipped gradients, which are cleared; returns the norm before.

    The norm is that of all ranks' shards together.
    """
    for parameter in parameters:
        if parameter.grad is None:  # nothing to learn from is a zero gradient, not no update
            parameter.grad = torch.zeros_like(parameter)
    total = full(torch.nn.utils.get_total_norm([p.grad for p in parameters]))
    torch.nn.utils.clip_grads_with_norm_(parameters, clip_norm, total)
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return float(total)
