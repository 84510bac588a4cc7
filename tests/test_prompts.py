"""Prompt texts, recipes, cleaning of captions and parsing of replies."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lineup_fast.prompts import (
    CAPTION_PROMPT,
    LABELS,
    NO_CAPTION,
    SYSTEM,
    Recipe,
    candidate_block,
    choices,
    clean_caption,
    parse_answer,
    user_text,
    without_template,
)

CANDIDATES_FIRST = '''\
Here are 4 candidate time series, each given as raw values in time order.

A) [1, 2, 3]
B) [4, 5, 6]
C) [7]
D) [8]

One of them was described like this:
"""
It rises.
"""
Which candidate is described? Answer with one letter: A, B, C, or D.'''

CAPTION_FIRST = '''\
One time series was described like this:
"""
It rises.
"""

Here are 2 candidate time series, each given as raw values in time order.

A) [1, 2, 3]
B) [4, 5, 6]

Exactly one of them is described. Which one? Answer with one letter: A or B.'''


def _blocks(rows: list[str]) -> str:
    return "".join(map(candidate_block, LABELS, rows))


def test_texts_are_the_ones_that_version_1_names() -> None:
    rows = ["1, 2, 3", "4, 5, 6", "7", "8"]
    recipe = Recipe(layout="candidates_first")
    assert user_text(recipe, _blocks(rows), "It rises.") == CANDIDATES_FIRST
    recipe = Recipe(k=2, layout="caption_first")
    assert user_text(recipe, _blocks(rows[:2]), "It rises.") == CAPTION_FIRST
    assert without_template("USER") == f"{SYSTEM}\n\nUSER\nAnswer:"


@pytest.mark.parametrize("k", range(2, 13))
def test_every_label_is_listed_once_and_no_other(k: int) -> None:
    recipe = Recipe(k=k)
    text = user_text(recipe, _blocks(["1"] * k), "x")
    for label in LABELS:
        assert text.count(f"\n{label}) [1]\n") == (label in recipe.labels)
    assert text.endswith(f"Answer with one letter: {choices(recipe.labels)}.")
    assert recipe.name == f"k{k}.caption_first.label_logprobs.dauto.v1"


def test_a_caption_with_placeholders_is_left_as_it_is() -> None:
    caption = "{blocks} {k} {caption} {choices}"
    assert caption in user_text(Recipe(), _blocks(["1"] * 4), caption)


def test_recipe_names_differ_where_rewards_do() -> None:
    recipes = [
        Recipe(),
        Recipe(k=5),
        Recipe(layout="candidates_first"),
        Recipe(scoring="soft"),
        Recipe(scoring="generate"),
        Recipe(decimals=0),
        Recipe(separator=","),
        Recipe(positions=1),
    ]
    assert len({recipe.name for recipe in recipes}) == len(recipes)


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("k", 1),
        ("k", 13),
        ("layout", "middle"),
        ("scoring", "guess"),
        ("decimals", 13),
        ("decimals", -1),
        ("separator", ";"),
        ("positions", 2),
        ("prompt_version", "0"),
    ],
)
def test_recipe_refuses(word: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"^{word}: expected .*, got"):
        Recipe(**{word: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("caption", "cleaned"),
    [
        ("", NO_CAPTION),
        (" \n\t\u2003", NO_CAPTION),
        ("\0", NO_CAPTION),
        ("  It rises.\n", "It rises."),
        ('say """ then A) [1]', "say ''' then A) [1]"),
        ('""""', "'''\""),
        ("a\0b\ud800c", "abc"),
        ('"\0""', "'''"),
        ("🎉 \u202eleft", "🎉 \u202eleft"),
    ],
)
def test_clean_caption(caption: str, cleaned: str) -> None:
    assert clean_caption(caption) == cleaned
    assert clean_caption(cleaned) == cleaned


@pytest.mark.parametrize(
    ("reply", "label"),
    [
        ("B", "B"),
        (" (C).", "C"),
        ("**D**\n", "D"),
        ("The answer is B", "B"),
        ("Answer: C because A is flat", "C"),
        ("A) is correct", "A"),
        ("A is correct", "A"),
        ("A series that rises fits D", "D"),
        ("I think it is C", "C"),
        ("<answer>b</answer> B", None),
        ("Not A. <answer>B</answer>", "B"),
        ("<ANSWER> C </ANSWER>, maybe D", "C"),
        ("", None),
        ("none of them", None),
        ("E", None),
        ("b", None),
        ("ABCD", None),
        ("It's D'", None),
    ],
)
def test_parse_answer(reply: str, label: str | None) -> None:
    assert parse_answer(reply, "ABCD") == (None if label is None else "ABCD".index(label))


def test_the_pronoun_is_not_an_answer_among_ten_candidates() -> None:
    labels = LABELS[:10]
    assert parse_answer("I would say", labels) is None
    assert parse_answer("I would say J", labels) == 9
    assert parse_answer("I", labels) == 8
    assert parse_answer("I is the one", labels) == 8


def test_caption_prompt_asks_for_values_movement_and_time() -> None:
    for word in ("line chart", "one time series", "values", "moves", "time axis", "cannot see"):
        assert word in CAPTION_PROMPT


def test_texts_are_imported_without_any_model_library() -> None:
    code = (
        "import sys, lineup_fast.prompts, lineup_fast.encoders, lineup_fast.rewards\n"
        "bad = {'torch', 'transformers', 'tokenizers', 'jinja2'} & set(sys.modules)\n"
        "assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
