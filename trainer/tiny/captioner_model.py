"""The tiny captioner: its size, its start weights, and a fast forward pass for training it.

The forward pass here is that of the Hugging Face classes for charts of one size, with the captions
of a chart packed behind it; a test compares it with what the trainer computes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import (
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
)
from transformers.vision_utils import get_vision_position_ids

CAPTION_PROMPT = "Describe the chart."
PATCH, MERGE, TEMPORAL = 14, 2, 2
HEIGHTS = 6  # places in a column of visual tokens where the warm-up asks for the line's height


def new_model(tokenizer: PreTrainedTokenizerFast) -> Qwen2_5_VLForConditionalGeneration:
    """A captioner of 2.0M parameters with random weights (torch's generator decides)."""
    ids = {name: tokenizer.convert_tokens_to_ids(f"<|{name}|>") for name in
           ("image_pad", "vision_start", "vision_end")}  # fmt: skip
    config = Qwen2_5_VLConfig(
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": 160,
            "intermediate_size": 432,
            "num_hidden_layers": 4,
            "num_attention_heads": 5,
            "num_key_value_heads": 5,
            "max_position_embeddings": 512,
            # A small base and few frequencies for time: columns of the chart are 8 tokens apart.
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 100.0,
                "mrope_section": [2, 7, 7],
            },
            "bos_token_id": None,
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
        },
        vision_config={
            "depth": 3,
            "hidden_size": 96,
            "intermediate_size": 192,
            "num_heads": 3,
            "patch_size": PATCH,
            "spatial_merge_size": MERGE,
            "temporal_patch_size": TEMPORAL,
            "window_size": 8 * PATCH,
            "fullatt_block_indexes": [0, 1, 2],
            "out_hidden_size": 160,
        },
        image_token_id=ids["image_pad"],
        video_token_id=ids["vision_end"],  # in no prompt; SGLang wants another than the image's
        vision_start_token_id=ids["vision_start"],
        vision_end_token_id=ids["vision_end"],
        tie_word_embeddings=True,
    )
    model = Qwen2_5_VLForConditionalGeneration(config)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    return model


@torch.no_grad()
def start_weights(
    model: Qwen2_5_VLForConditionalGeneration, pixel_values: Tensor, number_ids: list[int]
) -> None:
    """Set start weights that a model of this size learns from quickly.

    Linear layers get std 1/sqrt(fan-in), the first layer low-frequency cosine filters of unit
    variance on the sample ``pixel_values`` f32[n, 1176], and the numbers 0..100 embeddings that
    are a smooth function of the value.
    """
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and name != "lm_head":
            module.weight.normal_(0.0, module.in_features**-0.5)
            if module.bias is not None:
                module.bias.zero_()
            if name.endswith(("o_proj", "down_proj", "attn.proj")):
                module.weight.mul_(0.5)  # so that depth does not blow up the residual stream
    weight = model.model.visual.patch_embed.proj.weight
    filters = _cosine_filters(weight.shape[0])
    spread = (pixel_values @ filters.T).std(0)
    weight.copy_((filters / (spread + 1e-3 * spread.mean())[:, None]).view_as(weight))
    embedding = model.get_input_embeddings().weight
    embedding.normal_(0.0, 0.08)
    value = torch.arange(len(number_ids)) / 100
    cycles = torch.randn(embedding.shape[1]) * 2.0
    phase = torch.rand(embedding.shape[1]) * 2 * math.pi
    waves = torch.cos(2 * math.pi * cycles * value[:, None] + phase)
    embedding[torch.tensor(number_ids)] = 0.08 * math.sqrt(2) * waves


def _cosine_filters(count: int) -> Tensor:
    """f32[count, 1176]: products of cosines, lowest frequencies first, a few of them in colour."""
    t = (torch.arange(PATCH) + 0.5) / PATCH
    cosines = torch.stack([torch.cos(math.pi * k * t) for k in range(PATCH)])
    order = sorted((i + j, max(i, j), i, j) for i in range(PATCH) for j in range(PATCH))
    planes = [torch.outer(cosines[i], cosines[j]) for _, _, i, j in order]
    n_colour = count // 6
    contrasts = torch.tensor([[1.0, 0.0, -1.0], [-0.5, 1.0, -0.5]])
    grey = [plane.expand(3, -1, -1) for plane in planes[: count - n_colour]]
    colour = [contrasts[i % 2][:, None, None] * planes[i // 2] for i in range(n_colour)]
    return torch.stack(grey + colour)[:, :, None].expand(-1, -1, TEMPORAL, -1, -1).flatten(1)


def _rms(x: Tensor, norm: nn.Module) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), norm.weight, norm.variance_epsilon)


def rotation(visual: Any, grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Cosines and sines f32[patches, head_dim / 2] of the image encoder's rotary positions."""
    places = get_vision_position_ids(torch.tensor([[1, *grid]]), MERGE)
    angles = (places[..., None].float() * visual.rotary_pos_emb.inv_freq).flatten(1)
    return angles.cos(), angles.sin()


def encode(visual: Any, pixel_values: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Visual tokens f32[B, patches / 4, D] of B charts of one size, all blocks with full attention.

    The same function as the Hugging Face encoder, without its loop over images: it is called
    thousands of times here.
    """
    cos, sin = turn
    n = cos.shape[0]
    x = F.linear(pixel_values, visual.patch_embed.proj.weight.flatten(1)).float().view(-1, n, 96)
    b = x.shape[0]
    for block in visual.blocks:
        attn, mlp = block.attn, block.mlp
        qkv = attn.qkv(_rms(x, block.norm1)).view(b, n, 3, attn.num_heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).float()
        with torch.autocast("cpu", enabled=False):  # narrow attention is slow on a CPU
            out = F.scaled_dot_product_attention(
                _turned(q, cos, sin), _turned(k, cos, sin), v, scale=attn.scaling
            )
        x = x + attn.proj(out.transpose(1, 2).reshape(b, n, -1))
        y = _rms(x, block.norm2)
        x = x + mlp.down_proj(F.silu(mlp.gate_proj(y)) * mlp.up_proj(y))
    merger = visual.merger
    return merger.mlp(_rms(x, merger.ln_q).view(b, n // MERGE**2, -1)).float()


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


@dataclass(frozen=True)
class Pack:
    """C captions behind each of B prompts, as one row per chart.

    ids, positions: int64 [B, L], [3, B, L]; mask: bool [B, 1, L, L]; scored_from, targets: int64
    [n], the flat place each caption token is predicted from, and the token.
    """

    ids: Tensor
    positions: Tensor
    mask: Tensor
    scored_from: Tensor
    targets: Tensor


def pack(prompt_ids: Tensor, prompt_positions: Tensor, captions: list[list[list[int]]]) -> Pack:
    """Pack captions (token ids with the end token) [B][C] behind the prompt they all share.

    prompt_ids: int64 [P]; prompt_positions: int64 [3, P]. Each caption sees the prompt and itself;
    its positions go on where the prompt's end.
    """
    b, p = len(captions), len(prompt_ids)
    start = int(prompt_positions.max()) + 1
    row = p + max(sum(len(ids) - 1 for ids in group) for group in captions)
    ids = torch.zeros(b, row, dtype=torch.int64)
    owner = torch.full((b, row), -1)  # which caption a token belongs to; -1: prompt or filling
    positions = torch.zeros(3, b, row, dtype=torch.int64)
    ids[:, :p], positions[:, :, :p] = prompt_ids, prompt_positions[:, None]
    source, targets = [], []
    for i, group in enumerate(captions):
        begin = p
        for j, caption in enumerate(group):
            end = begin + len(caption) - 1  # the last token is only a target
            ids[i, begin:end] = torch.tensor(caption[:-1])
            owner[i, begin:end] = j
            positions[:, i, begin:end] = start + torch.arange(end - begin)
            source += [i * row + p - 1, *range(i * row + begin, i * row + end)]
            targets += caption
            begin = end
    shared = torch.arange(row) < p
    mask = (owner[:, :, None] == owner[:, None]) | shared
    return Pack(
        ids=ids,
        positions=positions,
        mask=(mask & torch.ones(row, row, dtype=torch.bool).tril())[:, None],
        scored_from=torch.tensor(source),
        targets=torch.tensor(targets),
    )


def caption_logits(model: Any, visual_tokens: Tensor, packed: Pack) -> Tensor:
    """f32[n, V]: logits of every caption token of the pack."""
    text = model.model.language_model
    x = model.get_input_embeddings()(packed.ids)
    is_image = packed.ids == model.config.image_token_id
    x = x.masked_scatter(is_image[..., None], visual_tokens.to(x.dtype))
    b, n, _ = x.shape
    cos, sin = (part.chunk(2, -1)[0][:, None] for part in text.rotary_emb(x, packed.positions))
    bias = torch.zeros(packed.mask.shape).masked_fill(~packed.mask, -torch.inf)
    for layer in text.layers:
        attn, mlp = layer.self_attn, layer.mlp
        y = _rms(x, layer.input_layernorm)
        q, k, v = (
            project(y).view(b, n, -1, attn.head_dim).transpose(1, 2).float()
            for project in (attn.q_proj, attn.k_proj, attn.v_proj)
        )
        with torch.autocast("cpu", enabled=False):
            out = F.scaled_dot_product_attention(
                _turned(q, cos, sin), _turned(k, cos, sin), v, bias, scale=attn.scaling
            )
        x = x + attn.o_proj(out.transpose(1, 2).reshape(b, n, -1))
        y = _rms(x, layer.post_attention_layernorm)
        x = x + mlp.down_proj(F.silu(mlp.gate_proj(y)) * mlp.up_proj(y))
    scored = _rms(x, text.norm).flatten(0, 1)[packed.scored_from]
    return F.linear(scored, model.lm_head.weight).float()


class WarmUpHead(nn.Module):
    """The throw-away head of the warm-up, one per length.

    Read from all visual tokens at once: the values. Read from every single token, with the same
    weights: which column of the chart it is, the line's height there, and facts of the series. So
    every token carries what a caption may ask of it, with its address.
    """

    def __init__(self, columns: int, rows: int, width: int, n_values: int, n_facts: int) -> None:
        super().__init__()
        self.columns, self.rows, self.n_facts = columns, rows, n_facts
        self.norm = nn.LayerNorm(width)
        self.values = nn.Linear(columns * rows * width, n_values)
        self.token = nn.Linear(width, columns + HEIGHTS + n_facts)

    def forward(self, visual_tokens: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Values [B, T], column logits [B, n, columns], heights [B, n, 6], facts [B, n, facts]."""
        seen = self.norm(visual_tokens)
        parts = self.token(seen).float().split([self.columns, HEIGHTS, self.n_facts], -1)
        return self.values(seen.flatten(1)).float(), *parts

    def loss(self, visual_tokens: Tensor, values: Tensor, heights: Tensor, facts: Tensor
             ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """The loss, and the values' mean error in the targets' unit.

        values: [B, T]; heights: [B, columns, 6]; facts: [B, n_facts].
        """
        guess, column, height, fact = self(visual_tokens)
        where = torch.arange(self.columns).repeat(self.rows).expand(len(guess), -1)
        n = self.columns * self.rows
        parts = (
            F.smooth_l1_loss(guess, values, beta=0.1),
            F.smooth_l1_loss(height, heights.repeat(1, self.rows, 1), beta=0.1),
            F.smooth_l1_loss(fact, facts[:, None].expand(-1, n, -1), beta=0.1),
            0.1 * F.cross_entropy(column.flatten(0, 1), where.flatten()),
        )
        return torch.stack(parts).sum(), (guess - values).detach().abs().mean()
