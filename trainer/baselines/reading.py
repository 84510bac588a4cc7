"""Questions that are not about candidates, as prompt trees: shared text, captions, endings.

Every prompt is ``before + caption + after``. What stands before the caption and what the prompts
have in common behind it is there once for all captions; the caption is data, encoded on its own by
a copy of the tokenizer that knows no added token.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lineup_fast.prompt_tokens import STAND_IN, SeamError, cut
from lineup_fast.prompts import clean_caption
from lineup_fast.verifiers.base import LabelTokens
from lineup_fast.whole_prompts import tree_around_captions

if TYPE_CHECKING:
    import numpy.typing as npt

    from lineup_fast.encoders import Encoder
    from lineup_fast.kernels import PromptTree

    Ints = npt.NDArray[np.int32]

QUOTE = '"""\n{caption}\n"""\n'  # what a template must hold: a caption cannot close it
_HERE = f'"""\n{STAND_IN}\n"""\n'


@dataclass(frozen=True)
class Asked:
    """Captions of one item at one draw, on their way to the verifier.

    rows: their places in the call; about: what ``QuestionGroup.candidates`` says of the questions.
    """

    rows: list[int]
    captions: tuple[str, ...]
    about: Any
    tree: PromptTree


class Reader:
    """Prompts of a baseline for one verifier.

    system: what the model is told first.

    Raises:
        ValueError: a token of the verifier's tokenizer joins a caption with what surrounds it.
    """

    def __init__(self, encoder: Encoder, system: str) -> None:
        self.encoder = encoder
        self.system = system

    def text(self, user: str, caption: str) -> str:
        """The whole prompt: `user` holds QUOTE, the caption is cleaned."""
        whole = self.encoder.prompt_text(user.replace(QUOTE, _HERE), self.system)
        quoted = QUOTE.replace("{caption}", clean_caption(caption))
        return whole.replace(_HERE, quoted)

    def around(self, user: str) -> tuple[Ints, Ints]:
        """Ids int32 of a prompt in front of its caption, and behind it; `user` holds QUOTE."""
        if user.count(QUOTE) != 1:
            raise ValueError(f"user: expected one place for the caption, got {user.count(QUOTE)}")
        text = self.encoder.prompt_text(user.replace(QUOTE, _HERE), self.system)
        end = text.index(_HERE) + len('"""\n') + len(STAND_IN)
        try:
            before, _, after = cut(self.encoder, text, [end - len(STAND_IN), end])
        except SeamError as error:
            raise ValueError(
                f"tokenizer: expected token boundaries around the caption, got {error}"
            ) from None
        return before, after

    def tree(self, users: Sequence[str], captions: Sequence[Ints]) -> PromptTree:
        """Every prompt for every caption: questions [G, len(users)]."""
        parts = [self.around(user) for user in users]
        return tree_around_captions([p[0] for p in parts], [p[1] for p in parts], captions)

    def caption_ids(self, captions: Sequence[str]) -> list[Ints]:
        """Ids of each caption, cleaned, int32."""
        return self.encoder.encode_captions([clean_caption(c) for c in captions])

    def labels(self, user: str, names: Sequence[str]) -> LabelTokens | None:
        """The single tokens that spell each name as the answer to a prompt, None where there are
        none for some name.
        """
        prompt = self.encoder.prompt_text(user.replace(QUOTE, _HERE), self.system)
        ids = self.encoder.encode(prompt)[0]
        columns: list[tuple[int, ...]] = []
        for template in ("{}", " {}"):
            full = [self.encoder.encode(prompt + template.format(name))[0] for name in names]
            if all(np.array_equal(row[:-1], ids) for row in full):
                columns.append(tuple(int(row[-1]) for row in full))
        alone = [self.encoder.encode_captions([f" {name}"])[0] for name in names]
        if columns and all(len(row) == 1 for row in alone):
            columns.append(tuple(int(row[0]) for row in alone))
        if not columns:
            return None
        distinct = list(dict.fromkeys(columns))
        return LabelTokens(tuple(names), np.array(distinct, dtype=np.int32).T)


def grouped(
    ids: Sequence[str], indices: Sequence[int | None]
) -> dict[tuple[str, int | None], list[int]]:
    """Places of the captions of each (item, draw), in order of appearance."""
    rows: dict[tuple[str, int | None], list[int]] = {}
    for row, key in enumerate(zip(ids, indices, strict=True)):
        rows.setdefault(key, []).append(row)
    return rows


_NUMERAL = re.compile(r"\d+(?:[.,]\d+)*")


def masked(caption: str) -> str:
    """The caption with one "#" for every number in digits; words for numbers stay."""
    return _NUMERAL.sub("#", caption)


class MaskedReward:
    """A reward whose verifier does not see the digits of a caption."""

    def __init__(self, reward: Any) -> None:
        self._reward = reward

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reward, name)

    def score(
        self, captions: Sequence[str], ids: Sequence[str], *, index: int | None = None
    ) -> Any:
        """See `trainer.validate.Reward`."""
        return self._reward.score([masked(c) for c in captions], ids, index=index)
