"""Texts to vectors: any encoder of transformers, masked mean over its last layer, never cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from lineup_fast.cli_options import progress
from trainer.evaluate.bottleneck.config import Lora

LORA_NAMES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_UNBOUNDED = 10**6  # tokenizers say so where they know no limit


class Encoder:
    """A frozen text encoder in float32; with `adapted` it learns low-rank updates for a while.

    model: a transformers model with `last_hidden_state`. tokenizer: its tokenizer. name: where
    they came from.
    """

    def __init__(self, model: Any, tokenizer: Any, name: str, *, at_once: int = 64) -> None:
        self.model, self.tokenizer, self.name = model.eval().requires_grad_(False), tokenizer, name
        self.at_once = at_once
        self._known: dict[str, Tensor] | None = {}  # vectors of the encoder as it came

    @classmethod
    def load(cls, name: str, *, device: str = "cpu", at_once: int = 64) -> Encoder:
        """The encoder of a folder or hub id, without any layer that another library put behind it.

        Raises:
            ValueError: no such encoder.
        """
        from transformers import AutoModel, AutoTokenizer

        from lineup_fast.hub import from_pretrained

        try:
            tokenizer = from_pretrained(AutoTokenizer, name)
            model = from_pretrained(AutoModel, name, dtype=torch.float32)
        except ValueError as error:
            raise ValueError(str(error).replace("verifier:", "encoder:", 1)) from error
        return cls(model.to(device), tokenizer, name, at_once=at_once)

    @property
    def width(self) -> int:
        """h, the length of a vector."""
        return int(self.model.config.hidden_size)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    @property
    def max_tokens(self) -> int | None:
        """Most tokens of a text, special ones included; None: no limit is known."""
        config = self.model.config
        positions = getattr(config, "max_position_embeddings", None)
        if positions is not None and "roberta" in str(config.model_type):
            positions -= int(config.pad_token_id) + 1  # positions start behind the pad token's
        known = [n for n in (positions, self.tokenizer.model_max_length) if n and n < _UNBOUNDED]
        return min(known) if known else None

    def token_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of every text, special ones included, whole.

        Raises:
            ValueError: a text is longer than the encoder can read.
        """
        if not texts:
            return []
        ids: list[list[int]] = self.tokenizer(
            list(texts), add_special_tokens=True, truncation=False, padding=False, verbose=False
        )["input_ids"]
        most = self.max_tokens
        too_long = [len(row) for row in ids if most is not None and len(row) > most]
        if too_long:
            raise ValueError(
                f"captions: expected at most {most} tokens for {self.name}, got {len(too_long)} "
                f"of {len(ids)} longer, the longest with {max(too_long)}; nothing is cut"
            )
        return ids

    def pooled(self, ids: Sequence[Sequence[int]]) -> Tensor:
        """Masked mean of the last layer, f32[n,h]; the vector of a text without tokens is 0."""
        longest = max(1, *(len(row) for row in ids))
        pad = self.tokenizer.pad_token_id or 0
        tokens = torch.full((len(ids), longest), pad, dtype=torch.long)
        mask = torch.zeros((len(ids), longest), dtype=torch.long)
        for number, row in enumerate(ids):
            tokens[number, : len(row)] = torch.tensor(row, dtype=torch.long)
            mask[number, : len(row)] = 1
        some = mask.any(dim=1)
        seen = mask.clone()
        seen[~some, 0] = 1  # attention over nothing has no value
        tokens, mask, seen = (t.to(self.device) for t in (tokens, mask, seen))
        hidden = self.model(input_ids=tokens, attention_mask=seen).last_hidden_state
        summed = (hidden * mask[..., None]).sum(dim=1)
        return summed / mask.sum(dim=1, keepdim=True).clamp(min=1)

    @torch.no_grad()
    def encode(self, texts: Sequence[str]) -> Tensor:
        """Vectors of the texts, f32[n,h] on the CPU: a text that was encoded before is not encoded
        again, the others run with those of their length.

        Raises:
            ValueError: as `token_ids`, or while the encoder is adapted.
        """
        if self._known is None:
            raise ValueError("encode: expected the encoder as it came, got it adapted")
        fresh = [text for text in dict.fromkeys(texts) if text not in self._known]
        ids = self.token_ids(fresh)
        done = 0
        for rows in buckets(range(len(ids)), [len(row) for row in ids], self.at_once):
            vectors = self.pooled([ids[row] for row in rows]).cpu()
            self._known |= zip((fresh[row] for row in rows), vectors, strict=True)
            progress("captions encoded", done := done + len(rows), len(ids))
        return torch.stack([self._known[text] for text in texts])

    @contextmanager
    def adapted(self, lora: Lora) -> Iterator[list[nn.Parameter]]:
        """Low-rank updates, new ones, in the model while the block runs; yields what is learned.

        Only their own dropout is active in training: the encoder stays as it is.
        """
        from peft import LoraConfig, get_peft_model

        asked = LoraConfig(
            r=lora.r,
            lora_alpha=lora.alpha,
            lora_dropout=lora.dropout,
            bias="none",
            target_modules=linear_layers(self.model),
        )
        frozen, wrapped = self.model, get_peft_model(self.model, asked)
        self.model = wrapped.base_model.model
        known, self._known = self._known, None
        try:
            yield [p for p in wrapped.parameters() if p.requires_grad]
        finally:
            self.model = wrapped.unload().eval().requires_grad_(False)
            if hasattr(frozen, "peft_config"):
                del frozen.peft_config
            self._known = known

    def learn(self, on: bool) -> None:
        """Turns the dropout of the low-rank updates on or off; the encoder's own stays off."""
        self.model.eval()
        for name, module in self.model.named_modules():
            if "lora_dropout" in name:
                module.train(on)


def linear_layers(model: Any) -> list[str]:
    """Names of the linear layers that LoRA changes: the projections of attention and MLP where
    they have the usual names, else every linear layer but those of a pooler, which is not used.

    Raises:
        ValueError: no linear layer.
    """
    names = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and "pooler" not in name.split(".")
    ]
    usual = [name for name in names if name.rsplit(".", 1)[-1] in LORA_NAMES]
    if not names:
        raise ValueError("encoder: expected linear layers for LoRA, got none")
    return usual or names


def buckets(rows: Sequence[int], lengths: Sequence[int], size: int) -> list[list[int]]:
    """The rows by length in parts of at most ``size``; lengths are indexed by row."""
    ordered = sorted(rows, key=lambda row: lengths[row])
    return [ordered[start : start + size] for start in range(0, len(ordered), size)]
