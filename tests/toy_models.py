"""Small random language models of the architectures that verifiers come in."""

from __future__ import annotations

from typing import Any

import torch
import transformers

_SHAPE: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "initializer_range": 0.3,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_KINDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", {}),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", {}),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", {"head_dim": 8}),
    "mistral": ("MistralConfig", "MistralForCausalLM", {"sliding_window": None}),
    "gemma3": (
        "Gemma3TextConfig",
        "Gemma3ForCausalLM",
        {"head_dim": 8, "sliding_window": 4096, "query_pre_attn_scalar": 8},
    ),
    "gemma2": ("Gemma2Config", "Gemma2ForCausalLM", {"head_dim": 8}),
}


def model(kind: str, vocab_size: int = 256, *, seed: int = 0, **changes: Any) -> Any:
    """A random model of the kind, float32; ``changes`` go into its configuration."""
    config_name, class_name, extra = _KINDS[kind]
    config = getattr(transformers, config_name)(
        **(_SHAPE | {"vocab_size": vocab_size} | extra | changes)
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return getattr(transformers, class_name)(config)
