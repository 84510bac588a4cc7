"""Prompts as token ids: assembled from pieces that are cut once out of the real tokenizer's output.

A prompt is head, labelled candidates, middle, caption, tail (or the caption before the candidates).
The caption is always encoded on its own, between two newlines, by a copy of the tokenizer that
knows no added token: it can only ever be text. Everything else is cut from the tokenizer's ids of
whole prompts, and checked on random prompts: the assembled ids equal the tokenizer's own.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lineup_fast import kernels
from lineup_fast.encoders import as_encoder
from lineup_fast.prompts import Recipe, candidate_block, clean_caption, user_text
from lineup_fast.verifiers.base import LabelTokens

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from lineup_fast.encoders import Encoder
    from lineup_fast.kernels import PromptTree

    Floats = npt.NDArray[np.float64]
    Ints = npt.NDArray[np.int32]
    Offsets = npt.NDArray[np.int64]

log = logging.getLogger(__name__)

STAND_IN = "x"  # in place of the caption: a letter between newlines never joins its neighbours
# What a label carries beside the letter. After "A)" a tokenizer may read " [-" as one token, so
# the bracket goes with the number; a tokenizer that reads "A) [" as one token needs the other cut.
CUTS = (")", ") [")
DIGIT_RUNS = [f"{n:0{width}d}" for width in (1, 2, 3) for n in range(10**width)]
N_CHECKS = 24


class SeamError(ValueError):
    """A token of the tokenizer spans a place where a prompt has to be cut."""


@dataclass(frozen=True)
class NumeralTable:
    """Token ids of every run of characters that printed numbers are made of.

    digit_ids int32, digit_offsets int64 [1111]: the runs "0".."9", "00".."99", "000".."999".
    first_ids, first_neg_ids: what opens a row before a digit, before a minus (included).
    sep_ids, sep_neg_ids: separator before a digit, before a minus (included). dot_ids: ".".
    group: digits per unit, 1 or 3. Non-digit runs are looked up as wholes because "-" joins what
    precedes it, a digit joins nothing but digits.
    """

    digit_ids: Ints
    digit_offsets: Offsets
    first_ids: Ints
    first_neg_ids: Ints
    sep_ids: Ints
    sep_neg_ids: Ints
    dot_ids: Ints
    group: int


@dataclass(frozen=True)
class Frame:
    """The fixed ids of a prompt, int32: everything but numbers and caption."""

    head: Ints
    middle: Ints
    tail: Ints
    labels: tuple[Ints, Offsets]


def ragged(rows: Sequence[Ints]) -> tuple[Ints, Offsets]:
    """Rows as one array and int64 offsets [n+1]."""
    offsets = np.cumsum([0, *(len(row) for row in rows)], dtype=np.int64)
    return np.concatenate(rows).astype(np.int32), offsets


def cut(encoder: Encoder, text: str, places: Sequence[int]) -> list[Ints]:
    """Ids of a text in ``len(places) + 1`` pieces, cut at character positions.

    Raises: SeamError where the number of tokens up to a place is not well defined.
    """
    ids, ends = encoder.encode(text)
    indices = np.searchsorted(ends, places, side="right")
    for place, index in zip(places, indices, strict=True):
        if index == 0 or ends[index - 1] != place:
            raise SeamError(f"text: expected a token boundary after {text[:place][-20:]!r}")
    return np.split(ids, indices)


class PromptBuilder:
    """Prompts of a recipe as ids and as text, for one tokenizer.

    tokenizer: a Hugging Face fast tokenizer or an :class:`~lineup_fast.encoders.Encoder`.
    Attributes: ``labels``, the answer tokens; ``table``, None where numbers have to go through the
    tokenizer itself (said in a log line). Raises: ValueError when a label is not one token.
    """

    def __init__(self, tokenizer: Any, recipe: Recipe | None = None) -> None:
        self.recipe = recipe or Recipe()
        self.encoder = as_encoder(tokenizer)
        self.table: NumeralTable | None = None
        self._choose_cut()
        self.labels = self._label_tokens()

    def text(self, series: Floats, decimals: int, caption: str, position: int) -> str:
        """The whole prompt as text: the caption cleaned, the target (row 0) at ``position``."""
        blocks = self._blocks_text(_rotation(series, position), decimals)
        return self.encoder.prompt_text(user_text(self.recipe, blocks, clean_caption(caption)))

    def caption_ids(self, captions: Sequence[str]) -> list[Ints]:
        """Ids of each caption, cleaned, int32."""
        return self.encoder.encode_captions([clean_caption(caption) for caption in captions])

    def number_ids(self, series: Floats, decimals: int) -> tuple[Ints, Offsets]:
        """Ids of the printed values of each row of ``series`` float64 [M, T], as (ids, offsets)."""
        if self.table is not None:
            return kernels.number_ids(series, decimals, self.table, threads=1)
        return ragged([self._number_ids_by_tokenizer(row, decimals) for row in series])

    def tree(self, series: Floats, decimals: int, captions: Sequence[Ints]) -> PromptTree:
        """All K rotations for every caption.

        Args: series float64 [K, T], row 0 the target; captions: ids from :meth:`caption_ids`.
        """
        if len(series) != self.recipe.k:
            raise ValueError(f"series: expected {self.recipe.k} rows, got {len(series)}")
        frame = self._frame
        return kernels.prompt_tree(
            self.recipe.layout,
            frame.head,
            frame.middle,
            frame.tail,
            frame.labels,
            self.number_ids(series, decimals),
            np.empty(0, dtype=np.int32),  # the end of a block is part of what follows it
            ragged(captions),
        )

    def fixed_tokens(self) -> int:
        """Tokens of a prompt without numbers and caption."""
        frame = self._frame
        return len(frame.head) + len(frame.middle) + len(frame.tail) + len(frame.labels[0])

    def _blocks_text(self, series: Floats, decimals: int) -> str:
        numbers = [kernels.format_numbers(row, decimals, self.recipe.separator) for row in series]
        return self._blocks(numbers)

    def _blocks(self, numbers: Sequence[str]) -> str:
        return "".join(map(candidate_block, self.recipe.labels, numbers))

    def _choose_cut(self) -> None:
        """Take the first way of cutting whose assembled ids equal the tokenizer's own."""
        for tabled in (True, False):
            for self._cut in CUTS:
                try:
                    self._frame = self._cut_frame()
                    self.table = self._numeral_table() if tabled else None
                    if self._equals_tokenizer():
                        if not tabled:
                            log.warning("numbers go through the tokenizer itself: no table fits it")
                        return
                except SeamError as error:
                    log.debug("cut %r, table %s: %s", self._cut, tabled, error)
        raise ValueError(
            "tokenizer: expected token boundaries around numbers, labels and caption, "
            "got tokens that span them"
        )

    def _cut_frame(self) -> Frame:
        """Head, middle, tail and labels, cut out of a prompt with one number per candidate."""
        text = self._probe(["1"] * self.recipe.k)
        opening = self._cut[1:]
        block_ends = _places(text, [f"\n{label}) [1" for label in self.recipe.labels])
        places = []
        for end in block_ends:
            places += [end - len(" [1") + len(opening), end]
        first_label = block_ends[0] - len("A) [1")
        caption = _places(text, [f'"""\n{STAND_IN}\n"""'])[0] - len('\n"""')
        marks = sorted([*places, first_label, caption - len(STAND_IN), caption])
        pieces = cut(self.encoder, text, marks)
        if self.recipe.layout == "candidates_first":
            head, inner, (_, tail) = pieces[0], pieces[1:-2], pieces[-2:]
            labels, middle = inner[:-1:2], inner[-1]
        else:
            head, middle, inner = pieces[0], pieces[2], pieces[3:]
            labels, tail = inner[:-1:2], inner[-1]
        return Frame(head, middle, tail, ragged(labels))

    def _probe(self, numbers: Sequence[str]) -> str:
        """A whole prompt with the given numbers and a stand-in for the caption."""
        user = user_text(self.recipe, self._blocks(numbers), STAND_IN)
        return self.encoder.prompt_text(user)

    def _row_pieces(self, numbers: str, places: Sequence[int]) -> list[Ints]:
        """Ids of a candidate's numbers, from the end of its label, cut at places in ``numbers``."""
        text = self._probe([numbers, *["1"] * (self.recipe.k - 1)])
        begin = _places(text, [f"\n{self.recipe.labels[0]}) [{numbers}"])[0] - len(numbers)
        label_end = begin - len(" [") + len(self._cut[1:])
        marks = [label_end, *(begin + place for place in places), begin + len(numbers)]
        # An opening that belongs to the label leaves an empty first piece.
        return cut(self.encoder, text, marks)[1:-1]

    def _numeral_table(self) -> NumeralTable:
        separator = self.recipe.separator
        text = separator.join(DIGIT_RUNS)
        ends = np.cumsum([len(run) + len(separator) for run in DIGIT_RUNS]) - len(separator)
        marks = [mark for end, run in zip(ends.tolist(), DIGIT_RUNS, strict=True)
                 for mark in (end - len(run), end)]  # fmt: skip
        pieces = self._row_pieces(text, marks[:-1])
        digits = pieces[1::2]
        signed = f"-1{separator}-1.1"
        at = len("-1" + separator)
        negative = self._row_pieces(signed, [1, 2, at + 1, at + 2, at + 3])
        ids, offsets = ragged(digits)
        singly = all(
            np.array_equal(digits[int(run) + (10 if len(run) == 2 else 110)],
                           np.concatenate([digits[int(digit)] for digit in run]))
            for run in DIGIT_RUNS[10:]
        )  # fmt: skip
        return NumeralTable(
            digit_ids=ids,
            digit_offsets=offsets,
            first_ids=pieces[0],
            first_neg_ids=negative[0],
            sep_ids=pieces[2],
            sep_neg_ids=negative[2],
            dot_ids=negative[4],
            group=1 if singly else 3,
        )

    def _number_ids_by_tokenizer(self, row: Floats, decimals: int) -> Ints:
        numbers = kernels.format_numbers(row, decimals, self.recipe.separator)
        return self._row_pieces(numbers, [])[0]

    def _equals_tokenizer(self) -> bool:
        """Whether assembled prompts equal the tokenizer's ids, on random numbers of all kinds."""
        rng = np.random.default_rng(0)
        k = self.recipe.k
        for check in range(N_CHECKS):
            size = 10.0 ** rng.integers(-3, 7, (k, 1))
            series = rng.standard_normal((k, int(rng.integers(1, 9)))) * size
            if check % 2:
                series = np.abs(series)
            decimals = check % 5
            position = int(rng.integers(0, k))
            text = self._probe(
                [
                    kernels.format_numbers(row, decimals, self.recipe.separator)
                    for row in _rotation(series, position)
                ]
            )
            stand_in = _places(text, [f'"""\n{STAND_IN}\n"""'])[0] - len('\n"""')
            try:
                caption = cut(self.encoder, text, [stand_in - len(STAND_IN), stand_in])[1]
            except SeamError:
                return False
            prompt = self.tree(series, decimals, [caption]).prompt(0, position)
            if not np.array_equal(prompt, self.encoder.encode(text)[0]):
                return False
        return True

    def _label_tokens(self) -> LabelTokens:
        """Single tokens of each letter: as the answer would continue the prompt, or on its own."""
        prompt = self._probe(["1"] * self.recipe.k)
        ids = self.encoder.encode(prompt)[0]
        columns: list[list[int]] = []
        for template in ("{}", " {}"):
            continued = [
                self.encoder.encode(prompt + template.format(x))[0] for x in self.recipe.labels
            ]
            if all(np.array_equal(full[:-1], ids) for full in continued):
                columns.append([int(full[-1]) for full in continued])
        if not columns:
            raise ValueError(
                f"labels: expected each of {', '.join(self.recipe.labels)} to be one token of the "
                "verifier's tokenizer after the prompt, got more"
            )
        alone = [self.encoder.encode_captions([f" {x}"])[0] for x in self.recipe.labels]
        if all(len(row) == 1 for row in alone):
            columns.append([int(row[0]) for row in alone])
        distinct = list(dict.fromkeys(map(tuple, columns)))
        return LabelTokens(tuple(self.recipe.labels), np.array(distinct, dtype=np.int32).T)


def longest_row(builder: PromptBuilder, series: Floats, decimals: int) -> int:
    """Tokens of the longest row of ``series`` float64 [N, T] when printed with ``decimals``."""
    return int(np.diff(builder.number_ids(series, decimals)[1]).max())


def _rotation(series: Floats, position: int) -> Floats:
    """Rows as they are listed: the target, row 0, inserted at ``position``."""
    return np.insert(series[1:], position, series[0], axis=0)


def _places(text: str, snippets: Sequence[str]) -> list[int]:
    """End of each snippet in the text, searched in order from the last one found."""
    places = []
    at = 0
    for snippet in snippets:
        start = text.index(snippet, at)
        at = start + len(snippet)
        places.append(at)
    return places


__all__ = ["Frame", "NumeralTable", "PromptBuilder", "longest_row", "ragged"]
