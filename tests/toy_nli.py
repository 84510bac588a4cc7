"""A random NLI model of the kinds that people use, with a byte-level tokenizer of pairs."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

LABELS = {0: "entailment", 1: "neutral", 2: "contradiction"}
_SHAPE: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "initializer_range": 0.6,
    "num_labels": 3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "DebertaV2": (
        "DebertaV2",
        {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8,
         "norm_rel_ebd": "layer_norm", "share_att_key": True, "position_biased_input": False,
         "type_vocab_size": 0, "max_position_embeddings": 600},
    ),
    "Bert": ("Bert", {"max_position_embeddings": 600, "type_vocab_size": 2}),
    "Roberta": ("Roberta", {"max_position_embeddings": 601, "type_vocab_size": 1}),
}  # fmt: skip


def tokenizer(*, types: bool = False) -> PreTrainedTokenizerFast:
    """Bytes, [CLS] a [SEP] b [SEP]."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", *alphabet]
    raw = Tokenizer(models.BPE({name: at for at, name in enumerate(names)}, []))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    raw.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 1), ("[SEP]", 2)],
    )
    made = PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]",
        unk_token="[UNK]",
    )  # fmt: skip
    if types:
        made.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    return made


def classifier(
    kind: str = "DebertaV2", *, seed: int = 0, labels: dict[int, str] | None = None, **changes: Any
) -> Any:
    """A random classifier, float64 so that padding shows nowhere but in real mistakes."""
    family, extra = _KINDS[kind]
    config = getattr(transformers, f"{family}Config")(
        **(_SHAPE | {"vocab_size": 260, "id2label": labels or LABELS} | extra | changes)
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        made = getattr(transformers, f"{family}ForSequenceClassification")(config)
    return made.double()
