"""Every text the verifier reads, the recipe that names a reward, and the parser of replies.

Token ids of these texts are built in ``prompt_tokens``; this module needs the standard library.
"""

from __future__ import annotations

import re
import string
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

PROMPT_VERSION = "1"
LABELS = string.ascii_uppercase[:12]
NO_CAPTION = "(no description)"

CAPTION_PROMPT = (
    "This line chart shows one time series. Write a detailed description of it: the values it "
    "takes, how it moves, and where on the time axis its features fall. Be specific enough that "
    "somebody who cannot see the chart could tell this series from similar ones."
)

SYSTEM = (
    "You match a written description to the time series it describes and answer with one letter."
)
_CANDIDATES = (
    "Here are {k} candidate time series, each given as raw values in time order.\n\n{blocks}\n"
)
_QUOTED = '"""\n{caption}\n"""\n'
_TEMPLATES = {
    "candidates_first": (
        _CANDIDATES
        + "One of them was described like this:\n"
        + _QUOTED
        + "Which candidate is described? Answer with one letter: {choices}."
    ),
    "caption_first": (
        "One time series was described like this:\n"
        + _QUOTED
        + "\n"
        + _CANDIDATES
        + "Exactly one of them is described. Which one? Answer with one letter: {choices}."
    ),
}

# The question turned round, for evaluation: one series, K captions.
_WHICH_CAPTION = (
    "Here is one time series, given as raw values in time order.\n\n[{numbers}]\n\n"
    "Here are {k} descriptions, each written about some time series.\n\n{blocks}"
    "Exactly one of them describes the series above. Which one? "
    "Answer with one letter: {choices}."
)

Layout = Literal["caption_first", "candidates_first"]
Scoring = Literal["label_logprobs", "generate", "soft"]


@dataclass(frozen=True)
class Recipe:
    """Everything about the question that changes what a reward means; never mixed in a run.

    k: candidates, 2 to 12. layout: what comes first in the prompt. scoring: read the labels'
    log-probabilities, parse a greedy reply, or reward the probability of the truth. decimals:
    "auto" (from the target) or 0 to 12. separator between values. positions: None asks every
    position of the target, 1 asks one per group and index (another estimator, for training only).
    """

    k: int = 4
    layout: Layout = "caption_first"
    scoring: Scoring = "label_logprobs"
    decimals: int | Literal["auto"] = "auto"
    separator: str = ", "
    positions: int | None = None
    prompt_version: str = PROMPT_VERSION

    def __post_init__(self) -> None:
        if not isinstance(self.k, int) or not 2 <= self.k <= len(LABELS):
            raise ValueError(f"k: expected 2 to {len(LABELS)}, got {self.k!r}")
        if self.layout not in _TEMPLATES:
            raise ValueError(f"layout: expected {' or '.join(_TEMPLATES)}, got {self.layout!r}")
        if self.scoring not in ("label_logprobs", "generate", "soft"):
            raise ValueError(
                f"scoring: expected label_logprobs, generate or soft, got {self.scoring!r}"
            )
        if self.decimals != "auto" and (
            not isinstance(self.decimals, int) or not 0 <= self.decimals <= 12
        ):
            raise ValueError(f"decimals: expected 'auto' or 0 to 12, got {self.decimals!r}")
        if self.separator not in (", ", ","):
            raise ValueError(f"separator: expected ', ' or ',', got {self.separator!r}")
        if self.positions not in (None, 1):
            raise ValueError(f"positions: expected None or 1, got {self.positions!r}")
        if self.prompt_version != PROMPT_VERSION:
            raise ValueError(
                f"prompt_version: expected {PROMPT_VERSION}, got {self.prompt_version!r}"
            )

    @property
    def name(self) -> str:
        """Name written into every result, such as ``k4.caption_first.label_logprobs.dauto.v1``."""
        words = [f"k{self.k}", self.layout, self.scoring, f"d{self.decimals}"]
        if self.separator != ", ":
            words.append("comma")
        if self.positions is not None:
            words.append(f"p{self.positions}")
        return ".".join([*words, f"v{self.prompt_version}"])

    @property
    def labels(self) -> str:
        """The K answer letters."""
        return LABELS[: self.k]


def choices(labels: Sequence[str]) -> str:
    """The letters as the question lists them: ``A or B``, ``A, B, C, or D``."""
    if len(labels) == 2:
        return f"{labels[0]} or {labels[1]}"
    return ", ".join(labels[:-1]) + f", or {labels[-1]}"


def clean_caption(text: str) -> str:
    """A caption as data: stripped, unable to close its block, never empty.

    NUL and lone surrogates, which no tokenizer takes, are dropped; triple double quotes become
    triple single quotes; a caption without any visible text becomes a placeholder.
    """
    text = text.replace("\0", "").encode("utf-8", "ignore").decode("utf-8")
    return text.replace('"""', "'''").strip() or NO_CAPTION


def user_text(recipe: Recipe, blocks: str, caption: str) -> str:
    """The user turn: ``blocks`` are the labelled candidates, each line ended by a newline."""
    # One replacement each, so that braces in a caption stay what they are.
    text = _TEMPLATES[recipe.layout].replace("{k}", str(recipe.k))
    text = text.replace("{choices}", choices(recipe.labels))
    before, after = text.split("{caption}")
    return before.replace("{blocks}", blocks) + caption + after.replace("{blocks}", blocks)


def caption_question(recipe: Recipe, numbers: str, captions: Sequence[str]) -> str:
    """The user turn of s→c: which of the K captions, cleaned before, describes the series whose
    printed values are ``numbers``. Of the recipe, k, scoring, decimals and separator matter."""
    text = _WHICH_CAPTION.replace("{k}", str(recipe.k)).replace("{numbers}", numbers)
    before, after = text.replace("{choices}", choices(recipe.labels)).split("{blocks}")
    quoted = [_QUOTED.replace("{caption}", caption) for caption in captions]
    blocks = [f"{label}) {text}\n" for label, text in zip(recipe.labels, quoted, strict=True)]
    return before + "".join(blocks) + after


def without_template(user: str, system: str = SYSTEM) -> str:
    """The whole prompt for a model that has no chat template."""
    return f"{system}\n\n{user}\nAnswer:"


def candidate_block(label: str, numbers: str) -> str:
    """One labelled candidate, numbers already printed."""
    return f"{label}) [{numbers}]\n"


_TAG = re.compile(r"<answer>(.*?)</answer>", re.IGNORECASE | re.DOTALL)


def parse_answer(reply: str, labels: Sequence[str]) -> int | None:
    """Index of the label that a reply names, or None.

    Answer tags win; then a reply that is one letter, then "answer is X" or "answer: X", then the
    first letter that stands alone and is neither the article "A" nor the pronoun "I". Letters are
    upper case. Source: reference parser, with the article added.
    """
    allowed = "".join(labels)
    tagged = _TAG.search(reply)
    if tagged:
        reply = tagged.group(1)
    whole = re.fullmatch(rf"\W*([{allowed}])\W*", reply)
    if whole is None:
        whole = re.search(rf"[Aa]nswer(?:\s+is|\s*:)\W*([{allowed}])(?!\w)", reply)
    if whole is not None:
        return allowed.index(whole.group(1))
    for found in re.finditer(rf"(?<![\w'])([{allowed}])(?![\w'])", reply):
        rest = reply[found.end() :]
        word = re.match(r"[ \t]+([a-z]+)", rest)
        if (
            found.group(1) in "AI"
            and word
            and word.group(1) not in ("is", "was", "matches", "fits")
        ):
            continue
        return allowed.index(found.group(1))
    return None
