"""Decoding of G captions per chart behind one encoding of chart and prompt.

The prompt of every chart is encoded once; its keys and values are read by all G captions (folded
into the query length), and each caption keeps keys and values of its own tokens only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from trainer.attention import Between, Heads, Spans, Varlen, choice

_LEAST_LOGP = -1e9  # stands for log 0 where it is multiplied by 0
_FIRST_ROOM = 64  # caption tokens that the own cache holds before it first grows


class Decoder(Protocol):
    """What decoding needs of a captioner."""

    eos_ids: frozenset[int]
    pad_id: int

    def prefill(self, cache: SharedPrefixCache) -> Tensor:
        """Hidden state [B, D] of the last prompt token, keys and values left in the cache."""

    def step(self, token_ids: Tensor, index: int, cache: SharedPrefixCache) -> Tensor:
        """Hidden state [R, D] after feeding caption token `index` of every row."""

    def logits(self, hidden: Tensor) -> Tensor:
        """[R, D] -> float32 [R, V], banned ids at -inf."""


@dataclass(frozen=True)
class Decoded:
    """R = B * G captions, chart by chart.

    token_ids: one int64 tensor per caption, the end token included if the caption reached it.
    finished: whether the caption ended by itself (else it was cut at the limit).
    token_logps: float32 tensor per caption, log-probability of each token when it was drawn.
    entropy: mean entropy (nats) of the distributions the tokens were drawn from.
    """

    token_ids: list[Tensor]
    finished: list[bool]
    token_logps: list[Tensor]
    entropy: float


class SharedPrefixCache:
    """Keys and values of B prompts, and of the G captions behind each.

    Passed to the attention layers in place of a mask; the first call of a layer is the prompt.
    """

    def __init__(self, mask: Tensor, group_size: int, max_new_tokens: int) -> None:
        """mask: bool [B, P], False in the left padding."""
        self.group_size = group_size
        self.max_new_tokens = max_new_tokens
        self.length = 0  # caption tokens seen before the current one
        self._mask = mask
        self._padding = None
        self._packed: tuple[Tensor, Spans] | None = None  # rows without padding
        if not bool(mask.all()):
            if not bool(mask[:, -1].all()):
                raise ValueError(
                    "mask: expected left padding, got a prompt with padding at its end"
                )
            self._padding = ~mask
        self._prefix: dict[int, tuple[Tensor, Tensor]] = {}
        self._own: dict[int, tuple[Tensor, Tensor]] = {}

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """q [n, Hq, L, D], k and v [n, Hkv, L, D] -> [n, L, Hq, D]; n = B prompts or R rows."""
        q, k = q.to(v.dtype), k.to(v.dtype)
        if layer not in self._prefix:
            self._prefix[layer] = (k, v)
            op = choice.choose(Heads(str(v.device), v.dtype, q.shape[1], k.shape[1], q.shape[3])).op
            if isinstance(op, Varlen):
                return self._attend_packed_prompt(q, k, v, scale, op)
            return self._attend_prompt(q, k, v, scale)
        return self._attend_caption(layer, q, k, v, scale)

    def _attend_packed_prompt(
        self, q: Tensor, k: Tensor, v: Tensor, scale: float, op: Varlen
    ) -> Tensor:
        """Without the rows of the padding, whose output is 0."""
        if self._packed is None:
            lengths = self._mask.sum(-1)
            bounds = F.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)
            rows = self._mask.flatten().nonzero()[:, 0]
            self._packed = (rows, Spans(bounds, int(lengths.max())))
        rows, spans = self._packed
        q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (q, k, v))  # [B * P, H, D]
        out = torch.zeros_like(q)
        q, k, v = (x.index_select(0, rows) for x in (q, k, v))
        out[rows] = op.attend(q, k, v, Between(spans, spans, causal=True, scale=scale))[0]
        return out.view(*self._mask.shape, *out.shape[1:])

    def _attend_prompt(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        mask = None
        if self._padding is not None:
            length = q.shape[2]
            past = torch.ones(length, length, dtype=torch.bool, device=q.device).tril()
            # padded queries see themselves, so that no row is empty (NaN); nobody reads them
            alone = torch.eye(length, dtype=torch.bool, device=q.device)
            mask = (past & ~self._padding[:, None, None, :]) | alone
        repeats = q.shape[1] // k.shape[1]
        if repeats > 1:
            k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
        out = F.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None, scale=scale)
        return out.transpose(1, 2)

    def _attend_caption(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        kp, vp = self._prefix[layer]
        ko, vo = self._store(layer, k, v)
        n_prompts, heads, length, dim = kp.shape
        size, repeats = self.group_size, q.shape[1] // heads
        folded = q.view(n_prompts, size, heads, repeats, dim).transpose(1, 2)
        folded = folded.reshape(n_prompts, heads, size * repeats, dim) * scale
        to_prefix = folded @ kp.mT  # [B, Hkv, G * repeats, P]
        if self._padding is not None:
            to_prefix = to_prefix.masked_fill(self._padding[:, None, None, :], -torch.inf)
        rows = q.view(-1, heads, repeats, dim) * scale
        to_own = rows @ ko.mT  # [R, Hkv, repeats, t + 1]
        to_own = to_own.view(n_prompts, size, heads, repeats, -1).transpose(1, 2)
        to_own = to_own.reshape(n_prompts, heads, size * repeats, -1)
        weights = torch.cat([to_prefix, to_own], -1).softmax(-1, dtype=torch.float32).to(v.dtype)
        out = weights[..., :length] @ vp
        own = weights[..., length:].view(n_prompts, heads, size, repeats, -1).transpose(1, 2)
        own = own.reshape(-1, heads, repeats, ko.shape[2]) @ vo
        out = out.view(n_prompts, heads, size, repeats, dim).transpose(1, 2)
        return out.reshape(-1, 1, heads * repeats, dim) + own.view(-1, 1, heads * repeats, dim)

    def _store(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Appends one token per row; returns all of the caption so far, [R, Hkv, t + 1, D]."""
        end = self.length + 1
        if layer not in self._own:
            self._own[layer] = (self._grown(k[:, :, :0]), self._grown(v[:, :, :0]))
        keys, values = self._own[layer]
        if end > keys.shape[2]:
            keys, values = self._grown(keys), self._grown(values)
            self._own[layer] = (keys, values)
        keys[:, :, self.length] = k[:, :, 0]
        values[:, :, self.length] = v[:, :, 0]
        return keys[:, :, :end], values[:, :, :end]

    def _grown(self, x: Tensor) -> Tensor:
        room = min(max(_FIRST_ROOM, 2 * x.shape[2]), self.max_new_tokens)
        out = x.new_empty(*x.shape[:2], room, x.shape[3])
        out[:, :, : x.shape[2]] = x
        return out


@torch.no_grad()
def decode(decoder: Decoder, cache: SharedPrefixCache, uniforms: Tensor | None = None) -> Decoded:
    """Captions behind the prompts of `decoder`.

    Args:
        decoder: a captioner bound to its prompts.
        cache: empty cache; says how many captions per prompt and how long they may get.
        uniforms: float64 [R, max_new_tokens] in [0, 1), one number per token: sampling at
            temperature 1 from the whole distribution. None: greedy, first of equals.
    """
    hidden = decoder.prefill(cache).repeat_interleave(cache.group_size, 0)
    n_rows, limit = hidden.shape[0], cache.max_new_tokens
    ends = torch.tensor(sorted(decoder.eos_ids), device=hidden.device)
    tokens = torch.full((limit, n_rows), decoder.pad_id, device=hidden.device)
    logps = torch.zeros(limit, n_rows, device=hidden.device)
    entropies = torch.zeros(limit, n_rows, device=hidden.device)
    lengths = torch.full((n_rows,), limit, device=hidden.device)
    done = torch.zeros(n_rows, dtype=torch.bool, device=hidden.device)
    for t in range(limit):
        logps_t = decoder.logits(hidden).log_softmax(-1)
        probs = logps_t.exp()
        picked = logps_t.argmax(-1) if uniforms is None else draw(probs, uniforms[:, t])
        tokens[t] = picked.masked_fill(done, decoder.pad_id)
        logps[t] = logps_t.gather(1, picked[:, None])[:, 0]
        entropies[t] = -(probs * logps_t.clamp_min(_LEAST_LOGP)).sum(-1)
        ended = torch.isin(picked, ends) & ~done
        lengths[ended] = t + 1
        done |= ended
        if t + 1 == limit or bool(done.all()):
            break
        cache.length = t
        hidden = decoder.step(tokens[t], t, cache)
    sizes, finished = lengths.tolist(), done.tolist()
    alive = torch.arange(limit, device=hidden.device)[:, None] < lengths
    return Decoded(
        token_ids=[tokens[:n, row].clone() for row, n in enumerate(sizes)],
        finished=finished,
        token_logps=[logps[:n, row].clone() for row, n in enumerate(sizes)],
        entropy=float((entropies * alive).sum() / alive.sum()),
    )


def draw(probs: Tensor, uniforms: Tensor) -> Tensor:
    """Index whose slice of the cumulated probabilities holds the uniform number.

    Args:
        probs: [R, V], rows sum to about 1; an entry of 0 is never drawn.
        uniforms: float64 [R], multiples of 2^-32 below 1.
    """
    ladder = probs.double().cumsum(-1)
    # u <= 1 - 2^-32, so that u * total < total and the search ends at an entry above 0
    wanted = uniforms[:, None] * ladder[:, -1:]
    return torch.searchsorted(ladder, wanted, right=True)[:, 0]
