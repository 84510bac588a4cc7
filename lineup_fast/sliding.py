"""Windows that stay where they are in long channels, so that millions of them cost no memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lineup_fast.arguments import floats, integers, number, windows

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]
    Ints = npt.NDArray[np.int32]
    Longs = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class SlidingWindows:
    """Window i is ``values[at[i] : at[i] + steps]``; nothing is copied.

    Takes the place of series float64 [N, T] in :func:`lineup_fast.kernels.features`,
    :func:`lineup_fast.kernels.neighbours` and :class:`lineup_fast.NeighbourIndex`.

    values : float64 [V], all channels end to end
    at : int64 [N], where each window begins; steps : T
    source : int32 [N], which channel; start : int64 [N], position in it
    """

    values: Floats
    at: Longs
    steps: int
    source: Ints
    start: Longs

    def __post_init__(self) -> None:
        """Raises ValueError on windows that leave the values, or entries that do not match."""
        values = floats("values", self.values, "V")
        steps = number("steps", self.steps, 1, 2**31 - 1)
        at = integers("at", self.at, "N", np.int64)
        last = len(values) - steps
        if len(at) and (at.min() < 0 or at.max() > last):
            raise ValueError(f"at: expected 0 to {last}, got {at.min()} to {at.max()}")
        checked: dict[str, Any] = {"values": values, "at": at, "steps": steps}
        for name, dtype in (("source", np.int32), ("start", np.int64)):
            checked[name] = integers(name, getattr(self, name), "N", dtype)
            if len(checked[name]) != len(at):
                given = len(checked[name])
                raise ValueError(f"{name}: expected {len(at)} entries as in at, got {given}")
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @classmethod
    def cut(
        cls, channels: Sequence[npt.ArrayLike], steps: int, *, stride: int = 1
    ) -> SlidingWindows:
        """All windows of so many steps in channels float64 [L_i], by channel and time.

        stride : steps from one window of a channel to the next
        Raises: ValueError if there is no channel, or an empty one; short ones have no windows.
        """
        parts = [floats(f"channels[{i}]", channel, "L") for i, channel in enumerate(channels)]
        if not parts:
            raise ValueError("channels: expected at least one, got none")
        steps, stride = number("steps", steps, 1, 2**31 - 1), number("stride", stride, 1, 2**62)
        starts = [np.arange(0, len(part) - steps + 1, stride, dtype=np.int64) for part in parts]
        first = np.cumsum([0, *(len(part) for part in parts[:-1])])
        return cls(
            np.concatenate(parts),
            np.concatenate([start + begin for start, begin in zip(starts, first, strict=True)]),
            steps,
            np.repeat(np.arange(len(parts), dtype=np.int32), [len(start) for start in starts]),
            np.concatenate(starts),
        )

    @property
    def shape(self) -> tuple[int, int]:
        """(N, T)"""
        return len(self.at), self.steps

    def __len__(self) -> int:
        return len(self.at)

    def take(self, rows: Any) -> SlidingWindows:
        """Some of the windows; rows: whatever picks entries of an array."""
        at, source, start = self.at[rows], self.source[rows], self.start[rows]
        return SlidingWindows(self.values, at, self.steps, source, start)

    def rows(self, rows: Any) -> Floats:
        """A copy of some windows, float64 [n, T]; rows: whatever picks entries of an array."""
        copied: Floats = self.values[self.at[rows][:, None] + np.arange(self.steps)]
        return copied


def series_or_windows(name: str, value: npt.ArrayLike | SlidingWindows) -> Floats | SlidingWindows:
    """The windows as they are, anything else as float64 [N, T]; at least one row."""
    if not isinstance(value, SlidingWindows):
        return windows(name, value)
    if not len(value):
        raise ValueError(f"{name}: expected at least one window, got none")
    return value


def bare(series: Floats | SlidingWindows) -> Floats | tuple[Floats, Longs, int]:
    """What the kernels take: the array, or values, beginnings and steps of the windows."""
    if isinstance(series, SlidingWindows):
        return series.values, series.at, series.steps
    return series
