"""Tokenizers of the families that verifiers come with, trained by the tests on a few lines."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator

import numpy as np
from tokenizers import (
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

from lineup_fast.prompts import SYSTEM, Recipe, candidate_block, user_text

_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
    r"\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
ONE_DIGIT = _WORDS % ""
THREE_DIGITS = _WORDS % "{1,3}"
SPACED_DIGITS = r" ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+"
PHRASES = r"\d{1,3}|\n|[^\d\n]+"

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA_3 = (
    "<|begin|>{% for m in messages %}<|head|>{{ m['role'] }}<|/head|>\n\n"
    "{{ m['content'] | trim }}<|eot|>{% endfor %}"
    "{% if add_generation_prompt %}<|head|>assistant<|/head|>\n\n{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}<start_of_turn>{{ m['role'] }}\n{{ m['content'] | trim }}"
    "<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
# Drops the system turn without a word, as some templates do.
FORGETFUL = CHATML.replace(
    "{% for m in messages %}", "{% for m in messages if m['role'] != 'system' %}"
)


def _lines() -> Iterator[str]:
    rng = np.random.default_rng(0)
    for number in range(200):
        values = rng.standard_normal((4, 12)) * 10.0 ** (number % 4)
        rows = [", ".join(f"{v:.{number % 3}f}" for v in row) for row in values]
        blocks = "".join(candidate_block(x, row) for x, row in zip("ABCD", rows, strict=True))
        for layout in ("caption_first", "candidates_first"):
            caption = "It starts low, peaks at step 7 and falls to -3.5 at the end."
            yield f"{SYSTEM}\n\n{user_text(Recipe(layout=layout), blocks, caption)}\nAnswer: A B"


def _trained(raw: Tokenizer, special: list[str], size: int) -> Tokenizer:
    alphabet = pre_tokenizers.ByteLevel.alphabet() if isinstance(raw.decoder, decoders.ByteLevel) \
        else []  # fmt: skip
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=special, initial_alphabet=sorted(alphabet),
        show_progress=False,
    )  # fmt: skip
    raw.train_from_iterator(_lines(), trainer)
    return raw


def byte_level(pattern: str, special: list[str], size: int = 900) -> Tokenizer:
    """Byte-level BPE with a pre-split, as in Qwen2 and Llama-3."""
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    raw.decoder = decoders.ByteLevel()
    return _trained(raw, special, size)


def sentencepiece(special: list[str], *, unigram: bool, dummy_prefix: bool) -> Tokenizer:
    """▁ for spaces, single digits, bytes where a character is unknown: as in Gemma and Llama-2."""
    pieces = normalizers.Replace(" ", "▁")
    raw = Tokenizer(models.BPE(unk_token="<unk>"))
    raw.normalizer = normalizers.Sequence([pieces])
    # The pieces are learned inside words, as SentencePiece does, and applied without a pre-split.
    raw.pre_tokenizer = pre_tokenizers.Split(
        Regex(r"▁?\p{L}+|▁?[^▁\d\p{L}\n]+|▁|\d|\n"), "isolated"
    )
    trained = _trained(raw, ["<unk>", "<s>", "</s>", *special], 700)
    spaced = normalizers.Sequence([normalizers.Prepend("▁"), pieces]) if dummy_prefix else pieces
    vocabulary = sorted(trained.get_vocab().items(), key=lambda item: item[1])
    names = [name for name, _ in vocabulary] + [f"<0x{byte:02X}>" for byte in range(256)]
    if unigram:
        scores = [(name, -10.0 - 8.0 * (len(name) == 1)) for name in names]
        raw = Tokenizer(models.Unigram(scores, unk_id=0, byte_fallback=True))
    else:
        model = json.loads(trained.to_str())["model"]
        merges = [tuple(merge) for merge in model["merges"]]
        table = {name: number for number, name in enumerate(names)}
        raw = Tokenizer(models.BPE(table, merges, unk_token="<unk>", byte_fallback=True))
    raw.normalizer = spaced
    raw.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    raw.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", names.index("<s>"))]
    )
    return raw


@functools.cache
def tokenizer(family: str) -> PreTrainedTokenizerFast:
    """A tokenizer by family; its chat template, where the family has one, is set."""
    chat = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    ends = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    pieces = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    turns = ["<start_of_turn>", "<end_of_turn>"]
    heads = ["<|begin|>", "<|head|>", "<|/head|>", "<|eot|>"]
    if family == "qwen2":
        made = PreTrainedTokenizerFast(tokenizer_object=byte_level(ONE_DIGIT, chat), **ends)
        made.chat_template = CHATML
    elif family == "forgetful":
        made = PreTrainedTokenizerFast(tokenizer_object=byte_level(ONE_DIGIT, chat), **ends)
        made.chat_template = FORGETFUL
    elif family == "llama3":
        raw = byte_level(THREE_DIGITS, heads)
        made = PreTrainedTokenizerFast(
            tokenizer_object=raw, bos_token="<|begin|>", eos_token="<|eot|>",
            additional_special_tokens=heads[1:3],
        )  # fmt: skip
        made.chat_template = LLAMA_3
    elif family in ("gemma", "unigram"):
        raw = sentencepiece(turns, unigram=family == "unigram", dummy_prefix=False)
        made = PreTrainedTokenizerFast(
            tokenizer_object=raw, additional_special_tokens=turns, **pieces
        )
        made.chat_template = GEMMA
    elif family == "llama2":
        raw = sentencepiece([], unigram=False, dummy_prefix=True)
        made = PreTrainedTokenizerFast(tokenizer_object=raw, **pieces)
    elif family in ("phrases", "gpt2"):
        pattern = PHRASES if family == "phrases" else SPACED_DIGITS
        made = PreTrainedTokenizerFast(tokenizer_object=byte_level(pattern, chat), **ends)
    else:
        raise ValueError(f"family: expected one of {FAMILIES}, got {family!r}")
    return made


FAMILIES = ("qwen2", "forgetful", "llama3", "gemma", "unigram", "llama2")
