"""Prompts as token ids: assembled from pieces that are cut once out of the real tokenizer's output.

A prompt is head, labelled candidates, middle, caption, tail (or the caption before the candidates).
The caption is always encoded on its own, between two newlines, by a copy of the tokenizer that
knows no added token: it can only ever be text. Everything else is cut from the tokenizer's ids of
whole prompts, and checked on random prompts: the assembled ids equal the tokenizer's own. A
tokenizer whose prompts cannot be assembled reads them whole; only the caption is cut out.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lineup_fast import kernels
from lineup_fast.arguments import id_buffer
from lineup_fast.encoders import as_encoder
from lineup_fast.numerals import DIGIT_RUNS, Numerals, NumeralTable
from lineup_fast.prompts import Recipe, candidate_block, clean_caption, user_text
from lineup_fast.verifiers.base import LabelTokens
from lineup_fast.whole_prompts import ragged, tree_around_captions

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
N_CHECKS = 24
NOTHING = np.empty(0, dtype=np.int32)


class SeamError(ValueError):
    """A token of the tokenizer spans a place where a prompt has to be cut."""


@dataclass(frozen=True)
class Frame:
    """The fixed ids of a prompt, int32: everything but numbers and caption."""

    head: Ints
    middle: Ints
    tail: Ints
    labels: tuple[Ints, Offsets]


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
    Attributes: ``labels``, the answer tokens; ``reason``, None where prompts are assembled, else
    why the tokenizer reads them whole (said in a log line, too). Raises: ValueError when a label is
    not one token, or where a token joins the caption with what surrounds it.
    """

    def __init__(self, tokenizer: Any, recipe: Recipe | None = None) -> None:
        self.recipe = recipe or Recipe()
        self.encoder = as_encoder(tokenizer)
        self.reason: str | None = None
        self._numerals: Numerals | None = None
        self._choose_cut()
        probe = self._probe(["1"] * self.recipe.k)
        self.labels = label_tokens(self.encoder, self.recipe.labels, probe)

    def text(self, series: Floats, decimals: int, caption: str, position: int) -> str:
        """The whole prompt as text: the caption cleaned, the target (row 0) at ``position``."""
        blocks = self._blocks(self._printed(_rotation(series, position), decimals))
        return self.encoder.prompt_text(user_text(self.recipe, blocks, clean_caption(caption)))

    def caption_ids(self, captions: Sequence[str]) -> list[Ints]:
        """Ids of each caption, cleaned, int32."""
        return self.encoder.encode_captions([clean_caption(caption) for caption in captions])

    def tree(
        self,
        series: Floats,
        decimals: int,
        captions: Sequence[Ints],
        *,
        numbers: tuple[Ints, Offsets] | None = None,
    ) -> PromptTree:
        """All K rotations for every caption.

        Args: series float64 [K, T], row 0 the target; captions: ids from :meth:`caption_ids`;
        numbers: what :meth:`number_ids` gives for the series, where it is known.
        """
        if len(series) != self.recipe.k:
            raise ValueError(f"series: expected {self.recipe.k} rows, got {len(series)}")
        if self._numerals is None:
            return self._read_whole(series, decimals, captions)
        frame = self._frame
        return kernels.prompt_tree(
            self.recipe.layout,
            frame.head,
            frame.middle,
            frame.tail,
            frame.labels,
            self._numerals.ids(series, decimals, threads=1) if numbers is None else numbers,
            NOTHING,  # the end of a block is part of what follows it
            ragged(captions),
        )

    def prompts(
        self,
        sets: Floats,
        decimals: int | Sequence[int],
        captions: Sequence[Sequence[Ints]],
        *,
        out: Ints | None = None,
        threads: int = 0,
    ) -> tuple[Ints, Offsets]:
        """All K rotations of every caption of many sets, written out whole.

        Args: sets float64 [B, K, T], row 0 of each the target; decimals of all or of each;
        captions [B][G]: ids from :meth:`caption_ids`; out, threads and what is returned: see
        :meth:`lineup_fast.numerals.Numerals.prompts`. A reader that can share prefixes is better
        off with :meth:`tree`.
        """
        n_captions = {len(group) for group in captions}
        if len(captions) != len(sets) or len(n_captions) != 1:
            raise ValueError(
                f"captions: expected {len(sets)} groups of equally many, got {len(captions)} of "
                f"{sorted(n_captions)}"
            )
        if self._numerals is not None:
            frame = self._frame
            return self._numerals.prompts(
                self.recipe.layout,
                frame.head,
                frame.middle,
                frame.tail,
                frame.labels,
                sets,
                decimals,
                ragged([caption for group in captions for caption in group]),
                out=out,
                threads=threads,
            )
        each = zip(sets, np.broadcast_to(decimals, len(sets)).tolist(), captions, strict=True)
        trees = [self.tree(*group) for group in each]
        ids, offsets = ragged(
            [tree.prompt(*at) for tree in trees for at in np.ndindex(tree.questions.shape)]
        )
        if out is None:
            return ids, offsets
        id_buffer(out)
        if len(out) < len(ids):
            raise ValueError(f"out: expected room for {len(ids)} ids, got {len(out)}")
        out[: len(ids)] = ids
        return out[: len(ids)], offsets

    def fixed_tokens(self) -> int:
        """Tokens of a prompt without numbers and caption."""
        if self._numerals is not None:
            frame = self._frame
            return len(frame.head) + len(frame.middle) + len(frame.tail) + len(frame.labels[0])
        probe = self.encoder.encode(self._probe(["1"] * self.recipe.k))[0]
        return len(probe) - self.recipe.k - 1

    def number_ids(self, series: Floats, decimals: int) -> tuple[Ints, Offsets]:
        """Ids of the printed values of each row of ``series`` float64 [N, T], as (ids, offsets).

        Where the tokenizer reads prompts whole, tokens may join a row with its brackets; these are
        the ids of its text alone.
        """
        if self._numerals is not None:
            return self._numerals.ids(series, decimals)
        return ragged(self.encoder.encode_captions(self._printed(series, decimals)))

    def _read_whole(self, series: Floats, decimals: int, captions: Sequence[Ints]) -> PromptTree:
        """The tree out of the tokenizer's ids of each rotation."""
        parts = [
            self._around_caption(self._probe(self._printed(_rotation(series, at), decimals)))
            for at in range(self.recipe.k)
        ]
        before, after = [part[0] for part in parts], [part[1] for part in parts]
        return tree_around_captions(before, after, captions)

    def _printed(self, series: Floats, decimals: int) -> list[str]:
        return [kernels.format_numbers(row, decimals, self.recipe.separator) for row in series]

    def _blocks(self, numbers: Sequence[str]) -> str:
        return "".join(map(candidate_block, self.recipe.labels, numbers))

    def _choose_cut(self) -> None:
        """Take the first way of cutting whose assembled ids equal the tokenizer's own."""
        for self._cut in CUTS:
            try:
                self._frame = self._cut_frame()
                self._numerals = Numerals(self._numeral_table())
                if self._equals_tokenizer():
                    self.reason = None
                    return
                found = "assembled ids differ from its own"
            except SeamError as error:
                found = str(error)
            self.reason = self.reason or found
        self._numerals = None
        try:
            self._around_caption(self._probe(["1"] * self.recipe.k))
        except SeamError as error:
            raise ValueError(
                f"tokenizer: expected token boundaries around the caption, got {error}"
            ) from None
        log.warning("prompts go through the tokenizer whole: %s", self.reason)

    def _around_caption(self, text: str) -> tuple[Ints, Ints]:
        """Ids in front of the stand-in of a probe, and behind it."""
        end = _places(text, [f'"""\n{STAND_IN}\n"""'])[0] - len('\n"""')
        before, _, after = cut(self.encoder, text, [end - len(STAND_IN), end])
        return before, after

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
            text = self._probe(self._printed(_rotation(series, position), decimals))
            before, after = map(len, self._around_caption(text))
            own = self.encoder.encode(text)[0]
            caption = own[before : len(own) - after]
            prompt = self.tree(series, decimals, [caption]).prompt(0, position)
            if not np.array_equal(prompt, own):
                return False
        return True


def label_tokens(encoder: Encoder, letters: Sequence[str], prompt: str) -> LabelTokens:
    """Single tokens of each letter: as the answer would continue the prompt, or on its own.

    Raises: ValueError where a letter is not one token.
    """
    ids = encoder.encode(prompt)[0]
    columns: list[list[int]] = []
    for template in ("{}", " {}"):
        continued = [encoder.encode(prompt + template.format(x))[0] for x in letters]
        if all(np.array_equal(full[:-1], ids) for full in continued):
            columns.append([int(full[-1]) for full in continued])
    if not columns:
        raise ValueError(
            f"labels: expected each of {', '.join(letters)} to be one token of the "
            "verifier's tokenizer after the prompt, got more"
        )
    alone = [encoder.encode_captions([f" {x}"])[0] for x in letters]
    if all(len(row) == 1 for row in alone):
        columns.append([int(row[0]) for row in alone])
    distinct = list(dict.fromkeys(map(tuple, columns)))
    return LabelTokens(tuple(letters), np.array(distinct, dtype=np.int32).T)


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


__all__ = ["Frame", "PromptBuilder", "label_tokens", "ragged"]
