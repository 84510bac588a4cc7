"""Widths and depths of captioner and verifier from a config.json; nothing is loaded.

Names that are not on disk fall back on a small table of published architectures, and say so.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class TextShape:
    """A Qwen-like decoder. D hidden, H x d queries, Hkv x d keys, F feed-forward, V vocabulary."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocabulary: int
    tied: bool
    attention_bias: bool = True

    @property
    def q_width(self) -> int:
        """Queries of a token, H * d."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Keys of a token, Hkv * d."""
        return self.kv_heads * self.head_dim

    def linears(self) -> dict[str, tuple[int, int]]:
        """(inputs, outputs) of the linear layers of one decoder layer."""
        q, kv, d, f = self.q_width, self.kv_width, self.hidden, self.ffn
        sizes = ((d, q), (d, kv), (d, kv), (q, d), (d, f), (d, f), (f, d))
        return dict(zip(LAYERS, sizes, strict=True))

    @property
    def linear_weights(self) -> int:
        """Weights in the matrices of all layers, without embedding and head."""
        return self.layers * sum(a * b for a, b in self.linears().values())

    @property
    def embedding(self) -> int:
        """Weights of one V x D matrix."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """All weights."""
        small = 2 * self.hidden + (self.q_width + 2 * self.kv_width) * self.attention_bias
        matrices = self.embedding * (1 if self.tied else 2)
        return self.linear_weights + self.layers * small + matrices + self.hidden

    def adapter_weights(self, rank: int, modules: tuple[str, ...]) -> int:
        """Weights of LoRA adapters on some linear layers of all layers."""
        sizes = self.linears()
        return self.layers * rank * sum(sum(sizes[name]) for name in modules)


@dataclass(frozen=True)
class VisionShape:
    """The Qwen2.5-VL tower. full: blocks that see the whole chart; the others see a window."""

    depth: int
    hidden: int
    heads: int
    ffn: int
    out: int
    patch: int
    merge: int
    temporal: int
    window: int
    full: int

    @property
    def patch_values(self) -> int:
        """Numbers in one patch."""
        return 3 * self.temporal * self.patch**2

    @property
    def block_weights(self) -> int:
        """Weights in the matrices of one block."""
        return self.hidden * (4 * self.hidden + 3 * self.ffn)

    @property
    def merger_weights(self) -> int:
        """Weights in the matrices between tower and decoder."""
        wide = self.hidden * self.merge**2
        return wide * (wide + self.out)

    @property
    def parameters(self) -> int:
        """All weights."""
        d, wide = self.hidden, self.hidden * self.merge**2
        small = 3 * d + d + 2 * self.ffn + d + 2 * d
        return (
            self.patch_values * d
            + self.depth * (self.block_weights + small)
            + d + self.merger_weights + wide + self.out
        )  # fmt: skip

    def patches(self, width: int, height: int) -> int:
        """Patches of a chart, resized as the captioner does."""
        unit = self.patch * self.merge
        sides = (max(1, round(side / unit)) * self.merge for side in (width, height))
        return next(sides) * next(sides)


@dataclass(frozen=True)
class ModelShape:
    """A model by its sizes. source: where they come from."""

    name: str
    text: TextShape
    vision: VisionShape | None
    source: str

    @property
    def parameters(self) -> int:
        """All weights."""
        return self.text.parameters + (self.vision.parameters if self.vision else 0)


def shape_of(model: str) -> ModelShape:
    """Sizes of a folder or hub id.

    Raises:
        ValueError: no config.json on disk or in the hub cache, and not in the table.
    """
    config = _config_file(model)
    if config is not None:
        values = json.loads(config.read_text(encoding="utf-8"))
        return from_config(model, values, f"{config}")
    if model in _PUBLISHED:
        text, vision = _PUBLISHED[model]
        return ModelShape(model, text, vision, "table of published sizes, no config.json on disk")
    raise ValueError(
        f"model: expected a folder or cached hub id with config.json, or one of "
        f"{', '.join(_PUBLISHED)}, got {model!r}"
    )


def from_config(name: str, values: dict[str, Any], source: str = "config.json") -> ModelShape:
    """Sizes from the values of a config.json."""
    text = values.get("text_config") or values
    try:
        heads, hidden = text["num_attention_heads"], text["hidden_size"]
        tied = text.get("tie_word_embeddings", values.get("tie_word_embeddings", False))
        kind = text.get("model_type", "")
        decoder = TextShape(
            layers=text["num_hidden_layers"],
            hidden=hidden,
            heads=heads,
            kv_heads=text.get("num_key_value_heads") or heads,
            head_dim=text.get("head_dim") or hidden // heads,
            ffn=text["intermediate_size"],
            vocabulary=text["vocab_size"],
            tied=values.get("tie_word_embeddings", tied),
            attention_bias=text.get("attention_bias", "qwen2" in kind),
        )
        if values.get("vision_config") is None:
            return ModelShape(name, decoder, None, source)
        vision = values["vision_config"]
        tower = VisionShape(
            depth=vision["depth"],
            hidden=vision["hidden_size"],
            heads=vision["num_heads"],
            ffn=vision["intermediate_size"],
            out=vision["out_hidden_size"],
            patch=vision.get("patch_size", 14),
            merge=vision.get("spatial_merge_size", 2),
            temporal=vision.get("temporal_patch_size", 2),
            window=vision.get("window_size", 112),
            full=len(vision["fullatt_block_indexes"]),
        )
    except KeyError as error:
        raise ValueError(
            f"{source}: expected the sizes of a Qwen-like model, got no {error}"
        ) from error
    return ModelShape(name, decoder, tower, source)


def _config_file(model: str) -> Path | None:
    if Path(model).is_dir():
        path = Path(model) / "config.json"
        return path if path.is_file() else None
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(model, "config.json")
    return Path(found) if isinstance(found, str) else None


def _qwen(layers: int, hidden: int, heads: int, kv: int, ffn: int, v: int, tied: bool) -> TextShape:
    return TextShape(layers, hidden, heads, kv, hidden // heads, ffn, v, tied)


_TOWER = {"depth": 32, "hidden": 1280, "heads": 16, "ffn": 3420, "patch": 14, "merge": 2,
          "temporal": 2, "window": 112, "full": 4}  # fmt: skip
# Published architectures, for planning where no config.json is at hand. Source: the models' cards.
_PUBLISHED: dict[str, tuple[TextShape, VisionShape | None]] = {
    "Qwen/Qwen2.5-VL-3B-Instruct": (
        _qwen(36, 2048, 16, 2, 11008, 151936, True),
        VisionShape(**_TOWER, out=2048),
    ),
    "Qwen/Qwen2.5-VL-7B-Instruct": (
        _qwen(28, 3584, 28, 4, 18944, 152064, False),
        VisionShape(**_TOWER, out=3584),
    ),
    "Qwen/Qwen2.5-3B-Instruct": (_qwen(36, 2048, 16, 2, 11008, 151936, True), None),
    "Qwen/Qwen2.5-7B-Instruct": (_qwen(28, 3584, 28, 4, 18944, 152064, False), None),
    "Qwen/Qwen2.5-14B-Instruct": (_qwen(48, 5120, 40, 8, 13824, 152064, False), None),
}
