"""Series out of the files people have: see `read`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Channel:
    """One variable of one source, in time order.

    values : f64[L], finite, original units
    source : name of the variable; the part before the last "/" names the data set it belongs to
    breaks : positions 0 < b < L where something is missing between values[b-1] and values[b];
        no window crosses one
    start : position of values[0] in the source (a cut-out window keeps its place)
    window : the channel is one ready-made window and is never cut further
    caption : the description that came with a ready-made window
    """

    source: str
    values: NDArray[np.float64]
    domain: str = ""
    unit: str = ""
    breaks: tuple[int, ...] = ()
    start: int = 0
    window: bool = False
    caption: str | None = None


@dataclass(frozen=True)
class Refusal:
    """Why something was not taken: `count` values starting at `row` (1-based data row, header
    not counted; 0 = the whole column or file)."""

    file: str
    row: int
    column: str
    reason: str
    count: int = 1

    def __str__(self) -> str:
        where = f" row {self.row}" if self.row else ""
        column = f" column {self.column!r}" if self.column else ""
        more = f" (and {self.count - 1} more)" if self.count > 1 else ""
        return f"{self.file}:{where}{column}: {self.reason}{more}"
