"""One random language model as two verifiers, that must agree."""

from __future__ import annotations

from lineup_fast.verifiers.transformers import TransformersVerifier
from tests.toy_models import model
from tests.toy_tokenizers import tokenizer


def reader_pair(words_of: str) -> tuple[TransformersVerifier, TransformersVerifier]:
    """With shared prefixes, and one prompt at a time. words_of: "qwen2" or "llama3"."""
    words = tokenizer(words_of)
    made = model("qwen2" if words_of == "qwen2" else "llama", len(words))
    return TransformersVerifier(made, words), TransformersVerifier(made, words, shared=False)
