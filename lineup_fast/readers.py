"""Series out of the files people have: see `read`."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Channel:
    """One variable of one source, in time order.

    values : f64[L], finite, original units
    source : name of the variable, "data set/variable"; the part before the first "/" is the data
        set, which is held out as a whole or not at all
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


MAX_MAGNITUDE = 1e150


def clean(channel: Channel) -> tuple[list[Channel], list[Refusal]]:
    """The channel without NaN, infinities and magnitudes above 1e150, and what was refused.

    Each stretch taken out leaves a break: no window crosses it and nothing is filled in. A
    ready-made window with such a value is refused as a whole, and so is an empty channel.
    """
    values = np.asarray(channel.values, dtype=np.float64)
    if values.ndim != 1 or not len(values):
        return [], [Refusal(channel.source, 0, "", f"no values (shape {values.shape})")]
    good = np.abs(values) <= MAX_MAGNITUDE
    if good.all():
        return [channel], []
    bad = np.flatnonzero(~good)
    first = float(values[bad[0]])
    reason = f"expected a finite number up to 1e150, got {first:g}"
    refusal = Refusal(channel.source, int(bad[0]) + 1, "", reason, len(bad))
    if channel.window or not good.any():
        return [], [refusal]
    kept = np.flatnonzero(good)
    where = np.cumsum(good)  # position among the kept values
    breaks = {int(where[b - 1]) for b in channel.breaks}
    breaks |= {int(i) + 1 for i in np.flatnonzero(np.diff(kept) > 1)}
    inside = tuple(sorted(b for b in breaks if 0 < b < len(kept)))
    return [replace(channel, values=values[kept], breaks=inside)], [refusal]
