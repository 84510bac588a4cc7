"""A BERT of random weights that reads letter by letter."""

from __future__ import annotations

from typing import Any

import torch

from trainer.evaluate.bottleneck.encoder import Encoder


def encoder_of(max_length: int = 64, **changes: Any) -> Encoder:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    words = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", *"0123456789.,;:-", *"abcdefghijklmnopqrstuvwxyz"]
    vocab = {word: number for number, word in enumerate(words)}
    made = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Whitespace(), pre_tokenizers.Split("", "isolated")]
    )
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    # What many files on the hub carry; nothing may be cut or padded all the same.
    made.enable_truncation(5)
    made.enable_padding(length=5)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]", model_max_length=max_length
    )
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(words), hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=max_length, initializer_range=0.4, **changes,
    )  # fmt: skip
    return Encoder(BertModel(config), tokenizer, "made", at_once=4)
