"""Training groups of the question turned round: one series, lists of four captions behind it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lineup_fast import prompts
from trainer.tiny.verifier_data import (
    Bools,
    Ints,
    Layout,
    Lesson,
    Pool,
    draw_sets,
    tell,
)


class TurnedLayout:
    """The fixed token ids of ``lineup_fast.prompts.caption_question`` with ``k`` captions.

    The ids are: head, values, middle, then a list: opening, caption and closing of each, tail.
    """

    def __init__(self, tokenizer: Any, layout: Layout) -> None:
        def ids(text: str) -> Ints:
            return np.array(tokenizer.encode(text, add_special_tokens=False), dtype=np.int64)

        recipe = prompts.Recipe(k=layout.k, decimals=0)
        marks = [chr(2 + at) for at in range(layout.k)]
        text = prompts.without_template(prompts.caption_question(recipe, "\x01", marks))
        before, rest = text.split("\x01")
        first = rest.index(f"{prompts.LABELS[0]}) ")
        self.head, self.middle = ids(before), ids(rest[:first])
        self.around: list[Ints] = []  # in front of each caption; the last: behind all of them
        rest = rest[first:]
        for mark in marks:
            piece, rest = rest.split(mark)
            self.around.append(ids(piece))
        self.around.append(ids(rest))
        self.plain = layout

    def prefix(self, series: Ints) -> tuple[Ints, Ints, int]:
        """Ids i64[B,P] of everything before the list, for series i64[B,T] of values 0..100.

        Also the places i64[T] of the values and the place of the newline that ends them.
        """
        count, length = series.shape
        middle = len(self.head) + 2 * length - 1
        ids = np.empty((count, middle + len(self.middle)), dtype=np.int64)
        ids[:, : len(self.head)] = self.head
        places = len(self.head) + 2 * np.arange(length)
        ids[:, places] = self.plain.numbers[series]
        ids[:, places[:-1] + 1] = self.plain.separator
        ids[:, middle:] = self.middle
        return ids, places, middle + 1


@dataclass(frozen=True)
class TurnedBatch:
    """One step: B series, M lists of K captions each, n = B·M.

    prefix i64[B,P]; lists i64[n,C] ended by the question's tail, padded; last i64[n] place of the
    last token; target i64[n] place of the true caption in its list; blind bool[n]: the true
    caption tells nothing; steps i64[n,C] as in `Batch`; whose i64[n,C] place in the list of the
    caption that a told number stands in, -1 elsewhere; value_at i64[T] and end_at places in the
    prefix; series i64[B,T].
    """

    prefix: Ints
    lists: Ints
    last: Ints
    target: Ints
    blind: Bools
    steps: Ints
    whose: Ints
    value_at: Ints
    end_at: int
    series: Ints


def make_turned_batch(
    tokenizer: Any,
    layout: TurnedLayout,
    pool: Pool,
    lesson: Lesson,
    *,
    sets: int,
    lists_per_set: int,
    rng: np.random.Generator,
) -> TurnedBatch:
    """Return one batch: captions of a series and of K - 1 look-alikes, told anew in every list."""
    k = layout.plain.k
    drawn = draw_sets(pool, sets, k, lesson, rng)
    target = np.concatenate([_spread(k, lists_per_set, rng) for _ in range(sets)])
    told, blind = [], np.zeros(len(target), dtype=bool)
    for n, true in enumerate(target):
        others = iter(1 + rng.permutation(k - 1))
        for place in range(k):
            row = 0 if place == true else int(next(others))
            values = drawn[n // lists_per_set, row].astype(np.float64)
            part, nothing = tell(values, pool, lesson, rng)
            told.append(part)
            blind[n] |= nothing and row == 0
    encoded = tokenizer([part.text for part in told], add_special_tokens=False)["input_ids"]
    rows = [_list(layout, encoded[n * k : (n + 1) * k]) for n in range(len(target))]
    width = -(-max(len(ids) for ids, _ in rows) // 16) * 16
    lists = np.full((len(target), width), tokenizer.pad_token_id, dtype=np.int64)
    steps, whose = np.full(lists.shape, -2, dtype=np.int64), np.full(lists.shape, -1)
    last = np.empty(len(target), dtype=np.int64)
    for n, (ids, starts) in enumerate(rows):
        lists[n, : len(ids)] = ids
        last[n] = len(ids) - 1
        for place, start in enumerate(starts):
            own = ids[start : start + len(encoded[n * k + place])]
            places = start + np.flatnonzero(np.isin(own, layout.plain.numbers))
            steps[n, places] = told[n * k + place].steps[: len(places)]
            whose[n, places] = place
    series = drawn[:, 0]
    prefix, value_at, end_at = layout.prefix(series)
    return TurnedBatch(prefix, lists, last, target, blind, steps, whose, value_at, end_at, series)


def _spread(k: int, count: int, rng: np.random.Generator) -> Ints:
    """``count`` places 0..k-1, each as often as the others."""
    rounds = -(-count // k)
    return np.concatenate([rng.permutation(k) for _ in range(rounds)])[:count]


def _list(layout: TurnedLayout, captions: list[list[int]]) -> tuple[Ints, list[int]]:
    """Ids of one list with its tail, and where each caption starts."""
    pieces: list[Ints] = []
    starts, size = [], 0
    for front, caption in zip(layout.around, captions, strict=False):
        pieces += [front, np.array(caption, dtype=np.int64)]
        starts.append(size + len(front))
        size = starts[-1] + len(caption)
    return np.concatenate([*pieces, layout.around[-1]]), starts
