"""Log-probabilities of chosen tokens without a [tokens, vocabulary] matrix.

The head's logits exist for one chunk of tokens at a time, in the forward and again (recomputed) in
the backward pass, so peak memory is O(chunk x vocabulary) whatever the number of tokens.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

CHUNK = 1024


def chosen_logprobs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    banned: Tensor | None = None,
    chunk: int = CHUNK,
) -> tuple[Tensor, Tensor]:
    """log softmax(hidden @ weight.T)[targets], and the entropy of each distribution.

    Args:
        hidden: [N, D] hidden states; matmuls run in this dtype, the softmax in float32 or wider.
        weight: [V, D] output embedding.
        targets: int64 [N].
        banned: int64 [M], ids that sampling never produces; excluded from the softmax, so that
            these are the log-probabilities of the distribution the captions were drawn from.
    Returns:
        log-probabilities [N] (differentiable in hidden and weight), entropies [N] in nats (not).
    """
    if not hidden.shape[0] == targets.shape[0]:
        raise ValueError(f"targets: expected {hidden.shape[0]} ids, got {targets.shape[0]}")
    logp, entropy = _ChosenLogprobs.apply(hidden, weight, targets, banned, chunk)
    return logp, entropy


def _logits(hidden: Tensor, weight: Tensor, banned: Tensor | None) -> Tensor:
    logits = hidden @ weight.to(hidden.dtype).T
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()
    if banned is not None:
        logits[:, banned] = -torch.inf
    return logits


class _ChosenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        banned: Tensor | None,
        chunk: int,
    ) -> tuple[Tensor, Tensor]:
        dtype = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        logp = torch.empty(hidden.shape[0], dtype=dtype, device=hidden.device)
        entropy, normaliser = torch.empty_like(logp), torch.empty_like(logp)
        for start in range(0, hidden.shape[0], chunk):
            rows = slice(start, start + chunk)
            logits = _logits(hidden[rows], weight, banned)
            lse = torch.logsumexp(logits, -1)
            normaliser[rows] = lse
            logp[rows] = logits.gather(1, targets[rows, None])[:, 0] - lse
            p = (logits - lse[:, None]).exp_()
            if banned is not None:
                logits[:, banned] = 0.0  # 0 * -inf
            entropy[rows] = lse - p.mul_(logits).sum(-1)
        ctx.save_for_backward(hidden, weight, targets, banned, normaliser)
        ctx.chunk = chunk
        ctx.mark_non_differentiable(entropy)
        return logp, entropy

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> Any:
        hidden, weight, targets, banned, normaliser = ctx.saved_tensors
        d_hidden = torch.empty_like(hidden)
        d_weight = None
        if ctx.needs_input_grad[1]:  # not where the head is frozen
            wide = torch.float64 if weight.dtype == torch.float64 else torch.float32
            d_weight = torch.zeros(weight.shape, dtype=wide, device=weight.device)
        head = weight.to(hidden.dtype)
        for start in range(0, hidden.shape[0], ctx.chunk):
            rows = slice(start, start + ctx.chunk)
            logits = _logits(hidden[rows], weight, banned)
            d_logits = logits.sub_(normaliser[rows, None]).exp_().mul_(-grad[rows, None])
            d_logits.scatter_add_(1, targets[rows, None], grad[rows, None].to(d_logits.dtype))
            d_logits = d_logits.to(hidden.dtype)
            torch.mm(d_logits, head, out=d_hidden[rows])
            if d_weight is not None:
                d_weight += d_logits.T @ hidden[rows]
        if d_weight is not None:
            d_weight = d_weight.to(weight.dtype)
        return d_hidden, d_weight, None, None, None
