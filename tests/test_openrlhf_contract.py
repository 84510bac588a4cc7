"""The caption in OpenRLHF's query, the item in its label, the numbers it reads back."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lineup_fast.openrlhf_contract import Turn, caption_of, item_of, label_of, parse_remote
from lineup_fast.wire import MAX_INDEX

PROMPT = (
    "<|im_start|>system\nYou look at charts.<|im_end|>\n<|im_start|>user\n"
    "<|vision_start|><|image_pad|><|vision_end|>Describe.<|im_end|>\n<|im_start|>assistant\n"
)
EXPANDED = PROMPT.replace("<|image_pad|>", "<|image_pad|>" * 231)
LLAMA = Turn("<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>")


@pytest.mark.parametrize(
    ("answer", "caption"),
    [
        ("Rises to 5.<|im_end|>", "Rises to 5."),
        ("Rises to 5.", "Rises to 5."),  # cut off at max_new_tokens
        (" Rises.\n<|im_end|>\n<|endoftext|>", "Rises."),
        ("", ""),
        ("<|im_end|>", ""),
        # A marker written by the policy is text of its caption, not a place to cut.
        ("A <|im_start|>assistant\nB<|im_end|>", "A <|im_start|>assistant\nB"),
    ],
)
def test_the_caption_is_cut_out_though_image_tokens_were_expanded(
    answer: str, caption: str
) -> None:
    assert caption_of(EXPANDED + answer, PROMPT) == caption
    assert EXPANDED[len(PROMPT) :].strip() != caption  # what cutting at the prompt's length gives


def test_earlier_turns_of_the_assistant_belong_to_the_prompt() -> None:
    prompt = PROMPT + "First.<|im_end|>\n<|im_start|>user\nMore.<|im_end|>\n<|im_start|>assistant\n"
    assert caption_of(f"{prompt}Second.<|im_end|>", prompt) == "Second."
    # A prompt text without markers, as where the host applies the template later: the last one.
    assert caption_of(f"{prompt}Second.<|im_end|>", "More.") == "Second."


def test_other_templates() -> None:
    prompt = f"<|begin_of_text|>user words{LLAMA.start}"
    assert caption_of(f"{prompt}Falls.<|eot_id|>", prompt, LLAMA) == "Falls."
    assert caption_of("Q: describe. A: Falls.", "Q: describe. A:") == "Falls."
    with pytest.raises(ValueError, match="query: expected the marker"):
        caption_of("something else", PROMPT)
    with pytest.raises(ValueError, match="turn: expected a start and an end"):
        Turn(start="")


@settings(max_examples=50, deadline=None)
@given(st.text().filter(lambda text: "<|im_end|>" not in text))
def test_any_caption_comes_back(text: str) -> None:
    assert caption_of(f"{EXPANDED}{text}<|im_end|>", PROMPT) == text.strip()


def test_labels() -> None:
    assert item_of(label_of("abc")) == ("abc", None)
    assert item_of(label_of("abc", 7)) == ("abc", 7)
    assert item_of('{"uid": "abc", "source": "x"}') == ("abc", None)
    assert item_of("abc") == ("abc", None)
    for label in ('{"id": 1}', '{"uid": 5}', "{", '{"uid": "a", "index": true}'):
        with pytest.raises(ValueError, match=r"labels: expected|labels: body|index: expected"):
            item_of(label)


def test_bodies() -> None:
    def body(*labels: str) -> bytes:
        n = len(labels)
        return json.dumps(
            {"query": [EXPANDED + "x"] * n, "prompts": [PROMPT] * n, "labels": list(labels)}
        ).encode()

    asked = parse_remote(body(label_of("a", 1), label_of("b", MAX_INDEX)))
    assert (asked.captions, asked.ids, asked.index) == (["x", "x"], ["a", "b"], [1, MAX_INDEX])
    assert parse_remote(body("a", "b")).index is None
    assert parse_remote(body()).captions == []
    with pytest.raises(ValueError, match="labels: expected an index in all of them or in none"):
        parse_remote(body("a", label_of("b", 1)))
    with pytest.raises(ValueError, match="prompts: expected one per caption"):
        parse_remote(b'{"query": ["a"], "prompts": [], "labels": ["b"]}')
