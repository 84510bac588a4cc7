"""The tiny verifier's network, its start, and a packed forward pass for training it.

The network is a stock ``Qwen2ForCausalLM``. Training runs its weights through ``packed_forward``:
the candidate blocks of a group once, then every caption behind them as if it stood there alone.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Qwen2Config, Qwen2ForCausalLM

from trainer.tiny.tokenizer import number_ids
from trainer.tiny.verifier_data import FACTS

WIDTH, LAYERS, HEADS, MLP_WIDTH = 160, 5, 5, 480
# Layers after which, or in which, training looks inside.
PLACES_AFTER, MATCH_IN, FACTS_AFTER, VOTES_AFTER = 2, 2, 3, 4
MASKED = -1e4


def fast_dtype() -> torch.dtype:
    """Return bfloat16 where the CPU multiplies it in hardware (AMX, AVX-512), else float32."""
    probes = (
        getattr(torch.cpu, f"_is_{unit}_supported", None) for unit in ("amx_tile", "avx512_bf16")
    )
    fast = any(probe is not None and probe() for probe in probes)
    return torch.bfloat16 if fast else torch.float32


def new_model(tokenizer: Any, seed: int) -> Qwen2ForCausalLM:
    """Return the model before training, float32.

    The embeddings of the numbers 0..100 start as a smooth function of the value (random Fourier
    features of many length scales), so that near values look alike from the first step.
    """
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        intermediate_size=MLP_WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    random = torch.Generator().manual_seed(seed)
    model = Qwen2ForCausalLM(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "embed" in name:
                weight.normal_(0, 0.1, generator=random)
            elif weight.dim() == 2:
                # Smaller where a layer writes into the residual stream.
                gain = 0.5 if "o_proj" in name or "down_proj" in name else 1.0
                weight.normal_(0, gain / math.sqrt(weight.shape[1]), generator=random)
        scale = torch.empty(WIDTH).uniform_(math.log(2), math.log(100), generator=random).exp()
        frequency = torch.randn(WIDTH, generator=random) / scale
        phase = 2 * math.pi * torch.rand(WIDTH, generator=random)
        values = torch.arange(101.0)[:, None]
        table = model.get_input_embeddings().weight
        table[torch.tensor(number_ids(tokenizer))] = 0.15 * torch.cos(values * frequency + phase)
    return model


def new_heads(labels: int = 12, steps: int = 24) -> nn.ModuleDict:
    """Return the heads that training reads inside the prompt; they are not exported."""
    return nn.ModuleDict(
        {
            "facts": nn.Linear(WIDTH, FACTS),
            "step": nn.Linear(WIDTH, steps),
            "label": nn.Linear(WIDTH, labels),
            "which": nn.Linear(WIDTH, labels),
            "agrees": nn.Linear(WIDTH, 1),
        }
    )


class _Norm(torch.autograd.Function):
    """RMS norm with one saved activation; plain autograd keeps four."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        normed = wide * scale
        ctx.save_for_backward(normed.to(x.dtype), scale, weight)
        return (normed * weight).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        normed, scale, weight = ctx.saved_tensors
        wide, grad = normed.float(), grads[0].float()
        grad_weight = (grad * wide).flatten(0, -2).sum(0)
        grad = grad * weight
        grad = (grad - wide * (grad * wide).mean(-1, keepdim=True)) * scale
        return grad.to(grads[0].dtype), grad_weight


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


@lru_cache(maxsize=64)
def _tables(
    prefix: int, count: int, width: int, head_dim: int, theta: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return rotary cosines and sines [P+M·C,1,h/2] and the causal masks [P,P] and [C,C]."""
    behind = (prefix + torch.arange(width)).repeat(count)
    places = torch.cat([torch.arange(prefix), behind]).float()
    angle = places[:, None] * theta ** (-torch.arange(0, head_dim, 2).float() / head_dim)
    masks = [torch.full((n, n), MASKED).triu(1).to(dtype) for n in (prefix, width)]
    return angle.cos()[:, None].to(dtype), angle.sin()[:, None].to(dtype), masks[0], masks[1]


def _attend(
    q: Tensor, k: Tensor, v: Tensor, prefix: int, count: int, masks: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Attention [B,H,P+M·C,h]: the prefix causally, each caption over prefix and itself.

    Also the weights [B,H,M·C,P] of the captions on the prefix.
    """
    batch, heads, total, dim = q.shape
    width = (total - prefix) // count
    (q1, q2), (k1, k2), (v1, v2) = (x.split([prefix, total - prefix], 2) for x in (q, k, v))
    flat = [x.reshape(batch * heads, prefix, dim) for x in (q1, k1, v1)]
    weights = torch.softmax(torch.baddbmm(masks[0], flat[0], flat[1].transpose(1, 2)), -1)
    first = torch.bmm(weights, flat[2]).view(batch, heads, prefix, dim)
    own = [x.reshape(batch * heads * count, width, dim) for x in (q2, k2, v2)]
    scores = torch.cat(
        [
            (q2 @ k1.transpose(-1, -2)).view(-1, width, prefix),
            torch.baddbmm(masks[1], own[0], own[1].transpose(1, 2)),
        ],
        -1,
    )
    to_prefix, to_own = torch.softmax(scores, -1).split([prefix, width], -1)
    to_prefix = to_prefix.reshape(batch, heads, -1, prefix)
    second = to_prefix @ v1
    second = second + torch.bmm(to_own, own[2]).view(batch, heads, -1, dim)
    return torch.cat([first, second], 2), to_prefix


class Inside(NamedTuple):
    """What training reads of a forward pass.

    before: hidden states f32[B,P,d] of the prefix after each layer; behind: f32[n,C,d] of the
    captions after each layer, the last entry after the final norm; look f32[n,C,P]: weights of the
    first head of layer MATCH_IN on the prefix.
    """

    before: list[Tensor]
    behind: list[Tensor]
    look: Tensor


def packed_forward(
    model: Qwen2ForCausalLM, prefix: Tensor, caption: Tensor, dtype: torch.dtype
) -> Inside:
    """Return hidden states of prefix and captions, and where one head of the captions looks.

    prefix i64[B,P]; caption i64[n,C], n a multiple of B, right-padded. Activations are kept in
    ``dtype``, weights stay float32. Equal to running prefix + caption alone, one by one.
    """
    config = model.config
    heads, head_dim = config.num_attention_heads, config.hidden_size // config.num_attention_heads
    (batch, size), width = prefix.shape, caption.shape[1]
    count = caption.shape[0] // batch
    total = size + count * width
    theta = float(config.rope_parameters["rope_theta"])
    cos, sin, own, across = _tables(size, count, width, head_dim, theta, dtype)
    masks = (own, across)
    scale = head_dim**-0.5
    ids = torch.cat([prefix, caption.view(batch, count * width)], 1)
    x = F.embedding(ids, model.get_input_embeddings().weight).to(dtype)

    def linear(values: Tensor, layer: nn.Linear) -> Tensor:
        bias = None if layer.bias is None else layer.bias.to(dtype)
        return F.linear(values, layer.weight.to(dtype), bias)

    before, behind, look = list[Tensor](), list[Tensor](), torch.empty(0)

    def keep(values: Tensor) -> None:
        first, second = values.split([size, count * width], 1)
        before.append(first)
        behind.append(second.reshape(batch * count, width, -1))

    for number, layer in enumerate(model.model.layers):
        attention, mlp = layer.self_attn, layer.mlp
        h = _Norm.apply(x, layer.input_layernorm.weight)
        shape = (batch, total, heads, head_dim)
        q, k, v = (
            linear(h, projection).view(shape)
            for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        q, k = _rotate(q, cos * scale, sin * scale), _rotate(k, cos, sin)
        out, weights = _attend(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), size, count, masks
        )
        if number == MATCH_IN:
            look = weights[:, 0].reshape(batch * count, width, size)
        x = x + linear(out.transpose(1, 2).reshape(batch, total, -1), attention.o_proj)
        h = _Norm.apply(x, layer.post_attention_layernorm.weight)
        x = x + linear(F.silu(linear(h, mlp.gate_proj)) * linear(h, mlp.up_proj), mlp.down_proj)
        keep(x)
    keep(_Norm.apply(x, model.model.norm.weight))
    return Inside(before, behind, look)
