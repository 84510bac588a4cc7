"""Numbers straight to token ids, with the pieces of one tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lineup_fast import kernels
from lineup_fast.arguments import floats, id_buffer, integers, number, ragged, thread_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    Ints = npt.NDArray[np.int32]
    Offsets = npt.NDArray[np.int64]
    RaggedLike = tuple[npt.ArrayLike, npt.ArrayLike]

DIGIT_RUNS = [f"{n:0{width}d}" for width in (1, 2, 3) for n in range(10**width)]


@dataclass(frozen=True)
class NumeralTable:
    """Token ids of every run of characters that printed numbers are made of.

    digit_ids int32, digit_offsets int64 [1111]: the runs "0".."9", "00".."99", "000".."999".
    first_ids, first_neg_ids: what opens a row before a digit, before a minus (included).
    sep_ids, sep_neg_ids: separator before a digit, before a minus (included). dot_ids: ".".
    group: digits per piece, 1 or 3. Non-digit runs are looked up as wholes because "-" joins what
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


class Numerals:
    """A table made ready for many calls.

    Raises: ValueError on a malformed table.
    """

    def __init__(self, table: NumeralTable) -> None:
        digits = ragged("table.digits", (table.digit_ids, table.digit_offsets), "1110")
        if len(digits[1]) != len(DIGIT_RUNS) + 1:
            raise ValueError(f"table.digit_offsets: expected 1111 entries, got {len(digits[1])}")
        if table.group not in (1, 3):
            raise ValueError(f"table.group: expected 1 or 3, got {table.group!r}")
        runs = [
            integers(f"table.{name}", getattr(table, name), "n", np.int32)
            for name in ("first_ids", "first_neg_ids", "sep_ids", "sep_neg_ids", "dot_ids")
        ]
        self.table = table
        self._numerals: Any = kernels._impl.Numerals(digits, *runs, table.group)

    def ids(
        self, values: npt.ArrayLike, decimals: int | Sequence[int] | Ints, *, threads: int = 0
    ) -> tuple[Ints, Offsets]:
        """Token ids of rows of numbers, each printed as Python's ``f"{value:.{decimals}f}"``.

        Args: values float64 [M, T]; decimals 0 to 12, one for all or int [M]; threads 0 = all.
        Returns: ids int32 [n] and offsets int64 [M+1]; row m is ``ids[offsets[m]:offsets[m + 1]]``.
        Raises: ValueError on NaN, infinities or an empty side.
        """
        rows = floats("values", values, "M, T")
        ids, offsets = self._numerals.ids(
            rows, row_decimals(decimals, len(rows), 1), thread_count(threads)
        )
        return ids, offsets

    def prompts(
        self,
        layout: int | str,
        head: npt.ArrayLike,
        middle: npt.ArrayLike,
        tail: npt.ArrayLike,
        labels: RaggedLike,
        sets: npt.ArrayLike,
        decimals: int | Sequence[int] | Ints,
        captions: RaggedLike,
        *,
        out: Ints | None = None,
        threads: int = 0,
    ) -> tuple[Ints, Offsets]:
        """The prompts of B sets written out whole, for readers that share no prefixes.

        Args: layout, head, middle, tail, labels: as of :func:`lineup_fast.kernels.prompt_tree`,
        labels for K candidates; sets float64 [B, K, T], row 0 of each the target; decimals of all
        or of each set; captions: (ids, offsets [B·G+1]), the G of each set one after the other.
        out: int32 [n] with room for all ids, written and returned up to their end; None: a new
        array, for which the numbers are printed twice.
        Returns: ids int32 and offsets int64 [B·G·K+1]; prompt (b·G + g)·K + p asks caption g of set
        b with the target at position p. Raises: ValueError on NaN, infinities, an empty side, and
        where anything does not fit.
        """
        label_ids, caption_ids = kernels.labels_and_captions(labels, captions)
        k, n_captions = len(label_ids[1]) - 1, len(caption_ids[1]) - 1
        values = floats("sets", sets, "B, K, T")
        n = len(values)
        if values.shape[1] != k:
            raise ValueError(f"sets: expected {k} rows each as in labels, got {values.shape[1]}")
        if n_captions % n:
            raise ValueError(
                f"captions: expected equally many for each of {n} sets, got {n_captions}"
            )
        ids, offsets = self._numerals.prompts(
            kernels.layout_number(layout),
            *(
                integers(name, value, "n", np.int32)
                for name, value in (("head", head), ("middle", middle), ("tail", tail))
            ),
            label_ids,
            values.reshape(n * k, -1),
            row_decimals(decimals, n, k),
            caption_ids,
            id_buffer(out),
            thread_count(threads),
        )
        return ids[: offsets[-1]], offsets


def row_decimals(decimals: int | Sequence[int] | Ints, n: int, k: int) -> Ints:
    """Decimals of n sets of k rows, int32 [n·k], from one for all or int [n]; checked."""
    if isinstance(decimals, (int, np.integer)):
        every = number("decimals", decimals, 0, kernels.MAX_DECIMALS)
        return np.full(n * k, every, dtype=np.int32)
    each: Ints = integers("decimals", decimals, "M", np.int32)
    if len(each) != n:
        raise ValueError(f"decimals: expected one for each of {n}, got {len(each)}")
    for wanted in (int(each.min()), int(each.max())):
        number("decimals", wanted, 0, kernels.MAX_DECIMALS)
    return each.repeat(k)
