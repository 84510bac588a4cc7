"""Loading from a folder or the hub: quiet where nobody watches, one clear error."""

from __future__ import annotations

import sys
from typing import Any


def from_pretrained(kind: Any, name: Any, *, role: str = "verifier", **options: Any) -> Any:
    """``kind.from_pretrained(name)`` of a transformers class, progress bars only on a terminal.

    Raises: ValueError, which says what the model was wanted as (``role``), where there is none.
    """
    from transformers.utils import logging as library

    shown = library.is_progress_bar_enabled()
    if not sys.stderr.isatty():
        library.disable_progress_bar()
    try:
        return kind.from_pretrained(str(name), **options)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{role}: expected a folder or hub id of a model, got {str(name)!r} ({error})"
        ) from error
    finally:
        if shown:
            library.enable_progress_bar()


def load_tokenizer(name: Any, *, role: str = "verifier") -> Any:
    """The tokenizer of a model folder or hub id, with the rules of splitting that its file states.

    Raises: ValueError where there is none.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerFast
    from transformers.models.auto.tokenization_auto import get_tokenizer_config

    # AutoTokenizer overrules a generic class by the architecture's own, whose rules of splitting
    # replace those in tokenizer.json without a word (model type qwen2 in transformers 5.24).
    generic = ("TokenizersBackend", "PreTrainedTokenizerFast")
    declared = get_tokenizer_config(str(name)).get("tokenizer_class")
    kind = PreTrainedTokenizerFast if declared in generic else AutoTokenizer
    return from_pretrained(kind, name, role=role)
