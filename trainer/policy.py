"""The captioner: load, prompts, token log-probabilities, decoding.

The only file that knows a vision-language model's input format: chat template, image tokens,
pixel patches and 3-D positions of the Qwen2.5-VL family. Positions are always explicit (the model
keeps offsets between calls and numbers tokens wrongly, without an error, when left to itself) and
attention follows the object passed along: :class:`PackedGroups` in training, a
:class:`SharedPrefixCache` in decoding.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoConfig, AutoTokenizer, Qwen2_5_VLForConditionalGeneration

from lineup_fast import charts
from trainer import lora
from trainer.attention import (
    PackedGroups,
    chosen_attention,
    group_layout,
    use_our_attention,
)
from trainer.head_choice import choose_head
from trainer.lora import LoraSettings
from trainer.rollouts.decoding import Decoded, SharedPrefixCache, decode


@dataclass(frozen=True)
class Prompts:
    """B charts with the prompt, ready for the model; rows are padded on the left.

    input_ids: int64 [B, P], image tokens expanded.
    mask: bool [B, P], False in the padding.
    positions: int64 [3, B, P], t, h, w.
    offsets: int64 [B], position of the first caption token: P + rope_delta of the row.
    pixel_values: float32 [B * h * w, patch values]; grid: int64 [B, 3].
    """

    input_ids: Tensor
    mask: Tensor
    positions: Tensor
    offsets: Tensor
    pixel_values: Tensor
    grid: Tensor

    def __len__(self) -> int:
        return self.input_ids.shape[0]

    def select(self, rows: list[int]) -> Prompts:
        """The prompts of some charts, in the given order."""
        sizes = self.grid.prod(-1).tolist()
        pixels = torch.split(self.pixel_values, sizes)
        keep = torch.tensor(rows, device=self.input_ids.device)
        return Prompts(
            self.input_ids[keep],
            self.mask[keep],
            self.positions[:, keep],
            self.offsets[keep],
            torch.cat([pixels[row] for row in rows]),
            self.grid[keep],
        )


class Captioner:
    """A Qwen2.5-VL model that describes charts.

    Args:
        model: the model; its attention functions are replaced by ours.
        tokenizer: its tokenizer, with a chat template.
        caption_prompt: what stands behind the chart in the user's turn.
        compute_dtype: dtype of matmuls (autocast) when narrower than the weights.
    """

    def __init__(
        self,
        model: Qwen2_5_VLForConditionalGeneration,
        tokenizer: Any,
        *,
        caption_prompt: str,
        compute_dtype: torch.dtype | None = None,
    ) -> None:
        config: Any = model.config
        if config.model_type != "qwen2_5_vl":
            raise ValueError(f"model: expected the Qwen2.5-VL family, got {config.model_type}")
        kinds = set(config.text_config.layer_types)
        if kinds != {"full_attention"}:
            raise ValueError(f"model: expected full attention in all layers, got {sorted(kinds)}")
        use_our_attention(config)
        self.model = model
        self.tokenizer = tokenizer
        self.device = next(model.parameters()).device
        self.compute_dtype = compute_dtype
        # Checked here, before anything runs; the layers look the same choices up again.
        self.attention = chosen_attention(config, self.device, compute_dtype or model.dtype)
        self.loss_head = choose_head(str(self.device), compute_dtype or model.dtype)
        self.prompt_encodings = 0  # prompts encoded for decoding so far
        self.base = ""  # folder or hub id of the weights, which adapters are stored without
        vision = config.vision_config
        self._patch, self._merge = vision.patch_size, vision.spatial_merge_size
        self._temporal = vision.temporal_patch_size
        self._template_ids = self._prompt_ids(caption_prompt)
        self.eos_ids = _end_ids(model, tokenizer)
        self.pad_id = tokenizer.pad_token_id
        if self.pad_id is None:
            self.pad_id = min(self.eos_ids)
        self.banned = torch.tensor(_banned_ids(config, len(tokenizer)), device=self.device)
        self.check_tied()

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        caption_prompt: str,
        device: str = "cpu",
        compute_dtype: torch.dtype | None = None,
        gradient_checkpointing: bool = False,
        freeze_vision: bool = False,
        dtype: torch.dtype = torch.float32,
        adapters: LoraSettings | None = None,
    ) -> Captioner:
        """The captioner in a folder or on the hub.

        path: weights, or adapters beside the name of their base. dtype: of the weights; adapters
        are float32. adapters: start with fresh ones where `path` has none.
        """
        stored = lora.base_of(path)
        base = path if stored is None else stored
        kind = _from_pretrained(AutoConfig, base).model_type
        if kind != "qwen2_5_vl":
            raise ValueError(f"model: expected the Qwen2.5-VL family, got {kind} in {base}")
        plain = adapters is None and stored is None
        model = Qwen2_5_VLForConditionalGeneration.from_pretrained(base, dtype=dtype)
        if stored is not None:
            lora.load(model, Path(path))
        elif adapters is not None:
            lora.wrap(model, adapters)
        try:
            model = model.eval().to(device)
        except (RuntimeError, AssertionError) as error:  # no such device, or no memory on it
            raise ValueError(f"device: expected one torch has, got {device!r} ({error})") from error
        if plain:
            model.model.visual.requires_grad_(not freeze_vision)
        if gradient_checkpointing:
            name = "activation_checkpointing_enable"  # its name in transformers 5.24
            getattr(model, name, model.gradient_checkpointing_enable)({"use_reentrant": False})
            model.train()  # checkpointing acts in training mode only; the family has no dropout
        tokenizer = cls.load_tokenizer(base)
        narrow = None if compute_dtype == torch.float32 else compute_dtype
        captioner = cls(model, tokenizer, caption_prompt=caption_prompt, compute_dtype=narrow)
        captioner.base = str(base)
        return captioner

    @staticmethod
    def load_tokenizer(path: str | Path) -> Any:
        """The tokenizer in a folder or on the hub."""
        return _from_pretrained(AutoTokenizer, path, padding_side="left")

    def save(self, folder: Path) -> None:
        """Weights (adapters alone where there are any), config and tokenizer."""
        if lora.is_wrapped(self.model):
            lora.save(self.model, folder, self.base)
        else:
            self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)

    def blocks(self) -> list[torch.nn.Module]:
        """Decoder layers and vision blocks: what is sharded, and run, one by one."""
        names = set(self.model._no_split_modules)
        return [module for module in self.model.modules() if type(module).__name__ in names]

    def check_tied(self) -> None:
        """Raises ValueError where embedding and head should be one tensor and are not."""
        head = self.model.get_output_embeddings().weight
        same = head is self.model.get_input_embeddings().weight
        if self.model.config.tie_word_embeddings and not same:
            raise ValueError("model: expected head and embedding to be one tensor, got two")

    # ------------------------------------------------------------------------------- prompts

    def prompts(self, images: NDArray[np.uint8]) -> Prompts:
        """Model inputs of charts u8 [B, H, W, 3] with the caption prompt."""
        fitted = _fit(images, self._patch * self._merge)
        pixels, grid = charts.patches(
            fitted, patch=self._patch, merge=self._merge, temporal=self._temporal
        )
        rows = [self._expand(int(h * w) // self._merge**2) for _, h, w in grid]
        return self._assemble(rows, torch.from_numpy(pixels), torch.from_numpy(grid))

    def join(self, parts: list[Prompts]) -> Prompts:
        """Several prompts as one batch, padded on the left to the longest."""
        rows = [ids[m] for p in parts for ids, m in zip(p.input_ids, p.mask, strict=True)]
        return self._assemble(
            [row.tolist() for row in rows],
            torch.cat([p.pixel_values for p in parts]),
            torch.cat([p.grid for p in parts]),
        )

    def _assemble(self, rows: list[list[int]], pixels: Tensor, grid: Tensor) -> Prompts:
        longest = max(len(row) for row in rows)
        ids = torch.full((len(rows), longest), self.pad_id)
        mask = torch.zeros(len(rows), longest, dtype=torch.bool)
        for i, row in enumerate(rows):  # left padding, set here and nowhere else
            ids[i, longest - len(row) :] = torch.tensor(row)
            mask[i, longest - len(row) :] = True
        image = (ids == self.model.config.image_token_id) & mask
        positions, deltas = self.model.model.get_rope_index(
            ids, mm_token_type_ids=image.int(), image_grid_thw=grid, attention_mask=mask
        )
        return Prompts(
            input_ids=ids.to(self.device),
            mask=mask.to(self.device),
            positions=positions.to(self.device),
            offsets=(mask.sum(-1) + deltas[:, 0]).to(self.device),
            pixel_values=pixels.to(self.device),
            grid=grid,
        )

    def _prompt_ids(self, caption_prompt: str) -> list[int]:
        content = [{"type": "image"}, {"type": "text", "text": caption_prompt}]
        text = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
        )
        ids = list(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        image = self.model.config.image_token_id
        if ids.count(image) != 1:
            raise ValueError(f"chat template: expected one image token, got {ids.count(image)}")
        return ids

    def _expand(self, n_image_tokens: int) -> list[int]:
        image = self.model.config.image_token_id
        at = self._template_ids.index(image)
        return self._template_ids[:at] + [image] * n_image_tokens + self._template_ids[at + 1 :]

    # ------------------------------------------------------------------------------ training

    def token_logps(
        self, prompts: Prompts, completions: list[list[Tensor]]
    ) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy of every caption token, each group packed as one sequence.

        Args:
            prompts: one chart per group, all with equally many tokens.
            completions: token ids of the captions of each group, each int64 [L >= 1].
        Returns:
            [N], [N]: all tokens of all captions in order; only the first carries a gradient.
        """
        if not bool(prompts.mask.all()):
            raise ValueError("prompts: expected equal lengths in one pack, got padding")
        lengths = [[len(ids) for ids in group] for group in completions]
        length = prompts.input_ids.shape[1]
        layout = group_layout(length, lengths, self.device)
        ids, targets = [], []
        for row, group in enumerate(completions):
            ids.append(prompts.input_ids[row])
            ids.extend(caption[:-1] for caption in group)
            targets.extend(group)
        input_ids = torch.cat(ids)
        starts = prompts.offsets[layout.group_of_row] + layout.positions
        positions = starts.expand(3, -1).clone()  # captions: t = h = w = P + rope_delta + j
        positions[:, ~layout.in_caption] = prompts.positions.flatten(1)
        with self._autocast():
            is_image = (input_ids == self.model.config.image_token_id) & ~layout.in_caption
            embeds = self._embed(input_ids, is_image, prompts)
            hidden = self._text(embeds[None], positions[:, None], PackedGroups(layout))[0]
            hidden = hidden.index_select(0, layout.scored_from)
        return self.loss_head.op(
            self._narrow(hidden), self._head, torch.cat(targets), banned=self.banned
        )

    # ------------------------------------------------------------------------------ decoding

    def generate(
        self,
        prompts: Prompts,
        *,
        group_size: int = 1,
        max_new_tokens: int,
        uniforms: Tensor | None = None,
    ) -> Decoded:
        """`group_size` captions of every chart; sampled when `uniforms` [R, L] are given."""
        cache = SharedPrefixCache(prompts.mask, group_size, max_new_tokens)
        if uniforms is not None:
            uniforms = uniforms.to(self.device)
        with torch.no_grad(), self._autocast():
            return decode(_Decoding(self, prompts, group_size), cache, uniforms)

    def texts(self, token_ids: list[Tensor]) -> list[str]:
        """Captions as text, without special tokens."""
        rows = [ids.tolist() for ids in token_ids]
        return list(self.tokenizer.batch_decode(rows, skip_special_tokens=True))

    # ------------------------------------------------------------------------------- pieces

    def _embed(self, input_ids: Tensor, is_image: Tensor, prompts: Prompts) -> Tensor:
        embeds = self.model.get_input_embeddings()(input_ids)
        grid = prompts.grid.to(self.device)
        vision = self.model.model.get_image_features(prompts.pixel_values, grid)
        features = torch.cat(vision.pooler_output).to(embeds.dtype)
        return embeds.masked_scatter(is_image[..., None], features)

    def _text(self, embeds: Tensor, positions: Tensor, attention: Any) -> Tensor:
        """Hidden states [n, L, D]; positions [3, n, L]; `attention` decides who sees whom."""
        out = self.model.model.language_model(
            inputs_embeds=embeds,
            position_ids=positions,
            attention_mask={"full_attention": None},  # a dict: the model builds no mask itself
            use_cache=False,
            lineup=attention,
        )
        return out.last_hidden_state

    @property
    def _head(self) -> Tensor:
        return self.model.get_output_embeddings().weight

    def _narrow(self, hidden: Tensor) -> Tensor:
        return hidden if self.compute_dtype is None else hidden.to(self.compute_dtype)

    def _autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(
            self.device.type, self.compute_dtype, enabled=self.compute_dtype is not None
        )


class _Decoding:
    """A captioner bound to some prompts; what :func:`decode` drives."""

    def __init__(self, captioner: Captioner, prompts: Prompts, group_size: int) -> None:
        self._captioner, self._prompts = captioner, prompts
        self._offsets = prompts.offsets.repeat_interleave(group_size)
        self.eos_ids, self.pad_id = captioner.eos_ids, captioner.pad_id

    def prefill(self, cache: SharedPrefixCache) -> Tensor:
        prompts, captioner = self._prompts, self._captioner
        captioner.prompt_encodings += len(prompts)
        is_image = (prompts.input_ids == captioner.model.config.image_token_id) & prompts.mask
        embeds = captioner._embed(prompts.input_ids, is_image, prompts)
        return captioner._text(embeds, prompts.positions, cache)[:, -1]

    def step(self, token_ids: Tensor, index: int, cache: SharedPrefixCache) -> Tensor:
        captioner = self._captioner
        embeds = captioner.model.get_input_embeddings()(token_ids)[:, None]
        positions = (self._offsets + index).expand(3, -1)[..., None]
        return captioner._text(embeds, positions, cache)[:, 0]

    def logits(self, hidden: Tensor) -> Tensor:
        logits = (self._captioner.model.get_output_embeddings()(hidden)).float()
        logits[:, self._captioner.banned] = -torch.inf
        return logits


def _from_pretrained(kind: Any, path: str | Path, **options: Any) -> Any:
    try:
        return kind.from_pretrained(path, **options)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"model: expected a folder or hub id of a captioner, got {str(path)!r} ({error})"
        ) from error


def _end_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    configured = model.generation_config.eos_token_id
    ids = set(configured) if isinstance(configured, list) else {configured}
    ids = (ids | {tokenizer.eos_token_id}) - {None}
    if not ids:
        raise ValueError("eos_token_id: expected an end token, got none in model and tokenizer")
    return frozenset(ids)


def _banned_ids(config: Any, n_tokens: int) -> list[int]:
    """Vision tokens, and rows of the embedding that no token stands for."""
    names = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
    ids = [getattr(config, name, None) for name in names]
    found = {i for i in ids if i is not None and i < config.text_config.vocab_size}
    return sorted(found | set(range(n_tokens, config.text_config.vocab_size)))


def _fit(images: NDArray[np.uint8], unit: int) -> NDArray[np.uint8]:
    """Charts whose sides are multiples of `unit`, resized (bicubic) only where they are not."""
    height, width = images.shape[1:3]
    wanted = tuple(max(1, round(side / unit)) * unit for side in (height, width))
    if wanted == (height, width):
        return images
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2).float()
    resized = F.interpolate(pixels, wanted, mode="bicubic", antialias=True)
    return resized.round().clamp(0, 255).byte().permute(0, 2, 3, 1).contiguous().numpy()
