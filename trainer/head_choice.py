"""Which code computes the log-probabilities of chosen tokens: Liger's where it fits, else ours.

Liger's per-token fused linear cross entropy (`liger_kernel.ops`, 0.8.5) gives what the loss needs:
one value per token with its own gradient, and the entropy. Its kernel is for Hopper alone; on other
devices it falls back to sums in plain torch, with more passes over a chunk of logits than ours, so
there ours runs. Liger's other losses do not fit: the fused linear cross entropy fixes one gradient
per token before its weight is known, the GRPO losses want padded [B, L] and know no banned ids.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import util
from typing import Any

import torch
from torch import Tensor

from trainer.choice import Candidate, Choice, UnfitError, first_right, module
from trainer.logprobs import chosen_logprobs

Head = Callable[..., tuple[Tensor, Tensor]]  # with the arguments of `chosen_logprobs`
_MODULE = "liger_kernel.ops.fused_linear_scaled_cross_entropy"
_HOPPER = (9, 0)
_TOLERANCE = 2e-2  # of the largest value: bfloat16 throughout


@functools.cache
def choose_head(device: str, dtype: torch.dtype) -> Choice[Head]:
    """What computes log-probabilities from hidden states of this dtype on this device."""
    liger: Candidate[Head] = Candidate("liger", lambda: _liger_on(torch.device(device), dtype))
    ours: Candidate[Head] = Candidate("chunked, recomputed", lambda: chosen_logprobs)
    with ThreadPoolExecutor(1) as thread:  # no_grad and autocast of the caller stay outside
        checked = functools.partial(check_head, device=device, dtype=dtype)
        return thread.submit(first_right, [liger], checked, ours).result()


def _liger_on(device: torch.device, dtype: torch.dtype) -> Head:
    if util.find_spec("liger_kernel") is None:
        raise UnfitError("liger_kernel is not installed")
    if device.type != "cuda" or torch.cuda.get_device_capability(device) != _HOPPER:
        raise UnfitError(
            "its kernel needs compute capability 9.0; elsewhere it is plain torch, as ours"
        )
    if dtype != torch.bfloat16:
        raise UnfitError(f"takes bfloat16, not {str(dtype).removeprefix('torch.')}")
    return liger_head()


def liger_head() -> Head:
    """Liger's fused linear cross entropy per token; raises :class:`UnfitError` without it."""
    return functools.partial(_liger_logprobs, module(_MODULE))


def _liger_logprobs(
    library: Any,
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    banned: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`chosen_logprobs`, with the head held once more, without the rows of banned ids.

    banned: ascending. The gradient of the weight is summed up in the dtype of `hidden`.
    """
    head, forbidden = weight.to(hidden.dtype), None
    if banned is not None and len(banned):
        kept = torch.ones(len(head), dtype=torch.bool, device=head.device)
        kept[banned] = False
        head = head[kept]
        forbidden = torch.isin(targets, banned)
        targets = targets - torch.searchsorted(banned, targets)
        targets = targets.masked_fill(forbidden, 0)
    function = library.LigerFusedLinearScaledCrossEntropyFunction
    nll, entropy = function.apply(hidden, head, targets, return_entropy=True)
    logp = -nll if forbidden is None else (-nll).masked_fill(forbidden, -torch.inf)
    return logp, entropy.detach().float()


def check_head(head: Head, device: str, dtype: torch.dtype) -> None:
    """Compares with full logits, on more tokens than one chunk; raises ValueError."""
    random = torch.Generator().manual_seed(0)
    n, width, n_ids = 1100, 64, 517
    hidden, weight, scales = (
        torch.randn(*shape, generator=random).to(device)
        for shape in ((n, width), (n_ids, width), (n,))
    )
    hidden = (hidden * width**-0.5).to(dtype)
    banned = torch.tensor([0, 7, 200, *range(510, n_ids)])
    weight[banned] *= 4  # they would take a good part of the probability
    allowed = torch.tensor(sorted(set(range(n_ids)) - set(banned.tolist())))
    targets = allowed[torch.randint(len(allowed), (n,), generator=random)].to(device)
    banned = banned.to(device)
    inputs = [hidden.requires_grad_(), weight.requires_grad_()]
    logp, entropy = head(*inputs, targets, banned=banned)
    found = [logp, entropy, *torch.autograd.grad((logp * scales).sum(), inputs)]

    narrow = [hidden.detach().float(), weight.detach().to(dtype).float()]
    exact = [x.requires_grad_() for x in narrow]
    logits = (exact[0] @ exact[1].T).index_fill(1, banned, -torch.inf)
    full = logits.log_softmax(-1)
    right = full.gather(1, targets[:, None])[:, 0]
    gradients = torch.autograd.grad((right * scales).sum(), exact, retain_graph=True)
    expected = [right, -torch.special.xlogy(full.exp(), full.exp()).sum(-1), *gradients]
    names = ("log-probability", "entropy", "gradient of hidden", "gradient of weight")
    for name, ours, wanted in zip(names, found, expected, strict=True):
        off = float(
            (ours.detach().float() - wanted.detach()).abs().max() / wanted.detach().abs().max()
        )
        if not off <= _TOLERANCE:  # NaN is wrong, too
            raise ValueError(
                f"{name}: expected the formula's within {_TOLERANCE:g}, off by {off:.2g}"
            )
