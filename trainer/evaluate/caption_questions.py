"""Questions turned round (s→c): a series, then K captions of which one describes it.

The series comes first, so that all rotations of the captions share it; like the rotations of the
reward's own question, those of the captions share what stands before the target.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lineup_fast import kernels
from lineup_fast.candidates import CandidateSet
from lineup_fast.encoders import as_encoder
from lineup_fast.kernels import PromptTree
from lineup_fast.prompt_tokens import STAND_IN, SeamError, cut, label_tokens
from lineup_fast.prompts import Recipe, caption_question, clean_caption
from lineup_fast.whole_prompts import tree_behind

Ints = NDArray[np.int32]
Floats = NDArray[np.float64]
_BLOCK = re.compile(re.escape(f'"""\n{STAND_IN}\n"""'))
_OPENING = len('"""\n')


@dataclass(frozen=True, eq=False)
class CaptionSet(CandidateSet):
    """A candidate set with a caption for each of its K series, that of the target first.

    What a verifier that reads no token ids is shown: the target's series and all captions.
    """

    captions: tuple[str, ...]


def recipe_name(recipe: Recipe) -> str:
    """Name of the question, such as `k4.identify_caption.label_logprobs.dauto.v1`."""
    words = recipe.name.split(".")
    words[words.index(recipe.layout)] = "identify_caption"
    return ".".join(words)


class CaptionQuestions:
    """s→c prompts as text and as ids, for one tokenizer.

    Everything but the captions is read by the tokenizer as one text and cut at the captions, which
    are encoded on their own and can only ever be text.

    tokenizer: a Hugging Face fast tokenizer or an encoder. Attribute `labels`: the answer tokens.
    Raises: ValueError where a token spans the edge of a caption, or a label is not one token.
    """

    def __init__(self, tokenizer: Any, recipe: Recipe) -> None:
        self.recipe = recipe
        self.encoder = as_encoder(tokenizer)
        try:
            self._around("1")
        except SeamError as error:
            raise ValueError(
                f"tokenizer: expected token boundaries around the captions, got {error}"
            ) from None
        self.labels = label_tokens(self.encoder, recipe.labels, self._text("1"))

    def text(self, series: Floats, decimals: int, captions: Sequence[str], position: int) -> str:
        """The whole prompt: series f64[T], K captions cleaned, the first one at `position`."""
        words = [clean_caption(caption) for caption in captions]
        listed = [words[row] for row in rotation(len(words), position)]
        return self.encoder.prompt_text(
            caption_question(self.recipe, self._printed(series, decimals), listed)
        )

    def caption_ids(self, captions: Sequence[str]) -> list[Ints]:
        """Ids of each caption, cleaned."""
        return self.encoder.encode_captions([clean_caption(caption) for caption in captions])

    def tree(self, series: Floats, decimals: int, captions: Sequence[Ints]) -> PromptTree:
        """All K positions of the target's caption, row 0 of `captions`; questions [1, K].

        Args: series f64[T] of the target; captions: K rows of ids from `caption_ids`.
        """
        k = self.recipe.k
        if len(captions) != k:
            raise ValueError(f"captions: expected {k}, got {len(captions)}")
        around = self._around(self._printed(series, decimals))
        rests = []
        for position in range(k):
            listed = zip(rotation(k, position), around[1:], strict=True)
            rests.append(
                np.concatenate([ids for row, end in listed for ids in (captions[row], end)])
            )
        return tree_behind(around[0], rests)

    def _printed(self, series: Floats, decimals: int) -> str:
        return kernels.format_numbers(series, decimals, self.recipe.separator)

    def _text(self, numbers: str) -> str:
        stand_ins = [STAND_IN] * self.recipe.k
        return self.encoder.prompt_text(caption_question(self.recipe, numbers, stand_ins))

    def _around(self, numbers: str) -> list[Ints]:
        """Ids in front of the captions, between them and behind them: K + 1 pieces."""
        text = self._text(numbers)
        starts = [found.start() + _OPENING for found in _BLOCK.finditer(text)]
        marks = [mark for start in starts for mark in (start, start + len(STAND_IN))]
        return cut(self.encoder, text, marks)[::2]


def rotation(k: int, position: int) -> list[int]:
    """Rows as they are listed: row 0, the target, inserted at `position` among the others."""
    rows = list(range(1, k))
    rows.insert(position, 0)
    return rows
