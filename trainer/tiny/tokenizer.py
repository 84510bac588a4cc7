"""The tokenizer of the two tiny models: byte-level BPE whose tokens may span words.

Text is split before merging into runs of up to three digits, single newlines, and the rest. So a
number is never glued to a word, no merge crosses a seam at a newline, and whole phrases of the
template captions and of the verifier's prompt become single tokens: a caption of fourteen numbers
takes about thirty-five tokens. Any text can be read, byte by byte where it is unknown.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from trainer.tiny import captions, series

PRE_SPLIT = r"\d{1,3}|\n|[^\d\n]+"
VOCAB_SIZE = 1024
PAD, END = "<|endoftext|>", "<|im_end|>"
SPECIAL = (PAD, "<|im_start|>", END, "<|vision_start|>", "<|vision_end|>", "<|image_pad|>")
LETTERS = "ABCDEFGHIJKL"

SYSTEM = (
    "You match a written description to the time series it describes and answer with one letter."
)
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def question(labels: str) -> str:
    """Return the closing line of the verifier's prompt for the letters of ``labels``."""
    if len(labels) == 2:
        names = " or ".join(labels)
    else:
        names = ", ".join(labels[:-1]) + f", or {labels[-1]}"
    return f"Answer with one letter: {names}."


def _prompt_lines(*, both_ways: bool) -> Iterator[str]:
    """Yield the fixed lines of the verifier's prompt and of the captioner's.

    both_ways: those of the question turned round, which of four captions, as well.
    """
    if both_ways:
        yield from (
            "Here is one time series, given as raw values in time order.",
            "Here are 4 descriptions, each written about some time series.",
            "Exactly one of them describes the series above. Which one? " + question(LETTERS[:4]),
            *(f'{letter}) """' for letter in LETTERS[:4]),
        )
    yield from (
        SYSTEM,
        "Here are 4 candidate time series, each given as raw values in time order.",
        "One of them was described like this:",
        "One time series was described like this:",
        '"""',
        "(no description)",
        "Describe the chart.",
        "Answer:",
        "user",
        "assistant",
        "system",
    )
    for k in range(2, len(LETTERS) + 1):
        # The first is the closing line of one layout, the second that of the other.
        yield "Which candidate is described? " + question(LETTERS[:k])
        if k <= 4:
            yield "Exactly one of them is described. Which one? " + question(LETTERS[:k])
    for letter in LETTERS:
        yield from (letter, f" {letter}", f"{letter}) [1, 2]")
    for value in range(101):
        yield str(value)


def _caption_lines(count: int, seed: int) -> Iterator[str]:
    rng = np.random.default_rng(seed)
    for _ in range(count):
        values = series.generate(1, int(rng.choice((12, 24))), rng)[0]
        draw = rng.random()
        if draw < 0.4:
            yield captions.full(values, rng, noise=2.0, selected=int(rng.integers(0, 3)))
        elif draw < 0.85:
            yield captions.partial(values, rng, noise=2.0)
        elif draw < 0.97:
            yield captions.vague(values, rng)
        else:
            yield captions.empty_talk(rng)


def build(
    vocab_size: int = VOCAB_SIZE, *, seed: int = 0, both_ways: bool = False
) -> PreTrainedTokenizerFast:
    """Return the tokenizer, trained on the prompt's lines and on template captions.

    The prompt's lines and the numbers 0..100 are repeated so often that each becomes one token.
    """
    raw = Tokenizer(models.BPE(byte_fallback=False))
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PRE_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )

    def lines() -> Iterator[str]:
        for _ in range(400):
            yield from _prompt_lines(both_ways=both_ways)
        yield from _caption_lines(12000, seed)

    raw.train_from_iterator(lines(), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=raw,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=[name for name in SPECIAL if name not in (PAD, END)],
        model_max_length=2048,
        clean_up_tokenization_spaces=False,
    )


def number_ids(tokenizer: PreTrainedTokenizerFast) -> list[int]:
    """Return the ids of the numbers 0..100; raises ValueError where one is not a single token."""
    ids: list[int] = []
    for value in range(101):
        encoded = tokenizer.encode(str(value), add_special_tokens=False)
        if len(encoded) != 1:
            raise ValueError(f"tokenizer: expected {value} to be one token, got {encoded}")
        ids.append(encoded[0])
    return ids


def load(folder: Path) -> PreTrainedTokenizerFast:
    """Return the tokenizer saved in ``folder``."""
    return PreTrainedTokenizerFast.from_pretrained(folder)
