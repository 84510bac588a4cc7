"""AdamW, where its moments live, and its learning rate: warm-up, then cosine to a floor."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import torch
from torch import Tensor

from trainer.world import full, laid_out_as

OPTIMIZERS = ("adamw", "adamw8bit", "adamw-offload")


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


class OffloadedAdamW:
    """AdamW with weights and moments in the host's memory, on which its fused CPU form steps.

    The device holds weights and gradients only. Exactly AdamW: gradients travel after clipping,
    one tensor at a time (torchao's CPUOffloadOptimizer copies them before they can be clipped;
    bitsandbytes' paged optimizers need CUDA to exist).
    """

    def __init__(
        self, parameters: Iterable[Tensor], betas: tuple[float, float], weight_decay: float
    ) -> None:
        self._host = {p: self._host_copy(p) for p in parameters}
        self.inner = adamw(self._host.values(), betas, weight_decay)
        self.param_groups = self.inner.param_groups

    def state_of(self, parameter: Tensor) -> dict[str, Tensor]:
        """Moments, in host memory, of the device's parameter; {} before a step and if frozen."""
        host = self._host.get(parameter)
        return {} if host is None else self.inner.state.get(host, {})

    @torch.no_grad()
    def step(self) -> None:
        """One step; device weights become the host's."""
        for parameter, host in self._host.items():
            if parameter.grad is not None:
                host.grad = parameter.grad.to("cpu", host.dtype)
        self.inner.step()
        for parameter, host in self._host.items():
            if host.grad is not None:
                parameter.copy_(host)
                host.grad = None

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops the device's gradients."""
        for parameter in self._host:
            if set_to_none:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.zero_()

    def restore(self, parameter: Tensor, state: dict[str, Tensor]) -> None:
        """Puts saved moments back; the host's weights are the device's of this moment."""
        self.inner.state[self._host[parameter]] = state

    @staticmethod
    def _host_copy(parameter: Tensor) -> Tensor:
        copy = parameter.detach().to("cpu", torch.promote_types(parameter.dtype, torch.float32))
        return torch.nn.Parameter(copy.clone())


def make_optimizer(
    kind: str, parameters: Iterable[Tensor], betas: tuple[float, float], weight_decay: float
) -> Any:
    """adamw, adamw8bit (bitsandbytes: moments in 8 bits, blocks of 256) or adamw-offload.

    Raises:
        ValueError: another kind, or its package is missing; names the pip command.
    """
    if kind == "adamw":
        return adamw(parameters, betas, weight_decay)
    if kind == "adamw-offload":
        return OffloadedAdamW(parameters, betas, weight_decay)
    if kind != "adamw8bit":
        raise ValueError(f"optimizer: expected {', '.join(OPTIMIZERS)}, got {kind!r}")
    found, why = usable(kind)
    if not found:
        raise ValueError(f"optimizer: expected one that is installed, got adamw8bit ({why})")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its remarks about kernels it does not need here
        from bitsandbytes.optim import AdamW8bit
    return AdamW8bit(list(parameters), lr=0.0, betas=betas, weight_decay=weight_decay)


def usable(kind: str) -> tuple[bool, str]:
    """Whether an optimizer can be used here, and why or how to get it; imports nothing."""
    if kind != "adamw8bit":
        return True, f"torch {torch.__version__}"
    try:
        return True, f"bitsandbytes {metadata.version('bitsandbytes')}"
    except metadata.PackageNotFoundError:
        return False, "pip install 'bitsandbytes>=0.50'"


def state_of(optimizer: Any, parameter: Tensor) -> dict[str, Tensor]:
    """What the optimizer remembers of a parameter, as tensors; {} before a step."""
    if isinstance(optimizer, OffloadedAdamW):
        state: dict[str, Any] = dict(optimizer.state_of(parameter))
    else:
        state = optimizer.state.get(parameter) or {}
    return {
        kind: torch.tensor(value)
        if isinstance(value, int)
        else value.clone()
        if kind.startswith("qmap")  # one tensor for all parameters
        else value
        for kind, value in state.items()
    }


def restore(optimizer: Any, parameter: Tensor, saved: dict[str, Tensor]) -> None:
    """Puts back what :func:`state_of` gave."""
    if isinstance(optimizer, OffloadedAdamW):
        optimizer.restore(parameter, saved)
        return
    # the fused optimizer keeps its counters where the weights are; bitsandbytes counts in ints
    state: dict[str, Any] = {}
    for kind, value in saved.items():
        if value.dtype == torch.int64:
            state[kind] = int(value)
        elif value.dim() and value.shape == parameter.shape:
            state[kind] = laid_out_as(parameter, value)
        else:
            state[kind] = value.to(parameter.device)
    optimizer.state[parameter] = state


def apply_update(optimizer: Any, parameters: list[Tensor], lr: float, clip_norm: float) -> float:
    """One optimizer step with clipped gradients, which are cleared; returns the norm before."""
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
