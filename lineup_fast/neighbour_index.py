"""An index of series for their nearest admissible neighbours: built once, asked again, saved.

What counts as a neighbour is said at :func:`lineup_fast.kernels.neighbours`; the index gives the
same answers, and those for series that came later.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from lineup_fast import kernels
from lineup_fast.arguments import integers, number, thread_count
from lineup_fast.kernels import overlap_rule, placed_series
from lineup_fast.sliding import SlidingWindows, bare, series_or_windows

if TYPE_CHECKING:
    import numpy.typing as npt

    from lineup_fast.kernels import Floats, Ints

MAGIC = b"lineup_fast neighbour index 1\n"
_DTYPES = {"z": "<f8", "source": "<i4", "start": "<i8", "group": "<i4"}
_DIGEST = hashlib.sha256().digest_size


class NeighbourIndex:
    """Series of one length, indexed by their points.

    Series and points are referred to, not copied: they must not change while the index lives. Rows
    that overlap in memory (``sliding_window_view`` over one long series) and
    :class:`~lineup_fast.SlidingWindows` over many stay as they are. The index adds about 30 bytes
    for a window; under the rule "run" also 4 for a value, or for every gram of rows that do not
    overlap.
    """

    def __init__(
        self,
        z: npt.ArrayLike,
        series: npt.ArrayLike | SlidingWindows,
        *,
        max_run: int,
        decimals: int,
        rule: Literal["run", "window"] = "run",
        source: npt.ArrayLike | None = None,
        start: npt.ArrayLike | None = None,
        group: npt.ArrayLike | None = None,
        threads: int = 0,
    ) -> None:
        """Build the index; arguments and errors as of :func:`lineup_fast.kernels.neighbours`."""
        self._rules = overlap_rule(max_run, decimals, rule)
        self._arrays = placed_series(z, series, rule, source, start, group)
        points, values, *where = self._arrays
        self._index: Any = kernels._impl.NeighbourIndex(
            points, bare(values), *self._rules, *where, thread_count(threads)
        )

    def __len__(self) -> int:
        return len(self._arrays[1])

    @property
    def nbytes(self) -> int:
        """Bytes that the index takes beside the arrays it was given."""
        size: int = self._index.nbytes
        return size

    def search(self, k: int, *, threads: int = 0) -> Ints:
        """The k neighbours of every member, int32 [N, k], nearest first, padded with -1."""
        found: Ints = self._index.search(number("k", k, 1, 2**20), thread_count(threads))
        return found

    def query(
        self,
        z: npt.ArrayLike,
        series: npt.ArrayLike | SlidingWindows,
        *,
        k: int,
        source: npt.ArrayLike | None = None,
        start: npt.ArrayLike | None = None,
        group: npt.ArrayLike | None = None,
        threads: int = 0,
    ) -> Ints:
        """The k neighbours among the members of series from outside.

        Args: z float64 [M, D] and series float64 [M, T], points made like those of the members;
        source, start: where the series come from, in the members' terms, under the window rule.
        group int32 [M]: whose members may answer (None: group 0).
        Returns: int32 [M, k]: members, nearest first, padded with -1. A series that is a member
        finds what it finds as one: equal-valued members never count.
        Raises: ValueError on other lengths or dimensions than the members', NaN, infinities.
        """
        asked = placed_series(z, series, self._rules[2], source, start, group)
        for name, given, own in (
            ("z", asked[0], self._arrays[0]),
            ("series", asked[1], self._arrays[1]),
        ):
            if given.shape[1] != own.shape[1]:
                raise ValueError(
                    f"{name}: expected {own.shape[1]} columns as in the index, got {given.shape[1]}"
                )
        points, values, *where = asked
        found: Ints = self._index.query(
            points, bare(values), number("k", k, 1, 2**20), *where, thread_count(threads)
        )
        return found

    def admissible(self, pool: npt.ArrayLike, *, threads: int = 0) -> npt.NDArray[np.bool_]:
        """Which entries of a pool int32 [N, k] may be neighbours of the member of their row.

        Same group, other values, little enough overlap; however far. False where the pool has -1.
        Raises: ValueError on another number of rows, or entries that are not members.
        """
        entries: Ints = integers("pool", pool, "N, k", np.int32)
        if len(entries) != len(self):
            raise ValueError(f"pool: expected {len(self)} rows, got {len(entries)}")
        found: npt.NDArray[np.bool_] = self._index.admissible(entries, thread_count(threads))
        return found

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the index without its series, all or nothing; ends with a SHA-256 of all before."""
        points, values, source, start, group = self._arrays
        header = dict(zip(("max_run", "decimals", "rule"), self._rules, strict=True))
        header |= {"n": len(values), "steps": values.shape[1], "dims": points.shape[1]}
        header["series"] = _digest(values)
        parts: list[Any] = [MAGIC, json.dumps(header).encode() + b"\n"]
        arrays: tuple[Any, ...] = (points, source, start, group)
        for array, dtype in zip(arrays, _DTYPES.values(), strict=True):
            parts.append(array.astype(dtype, copy=False).data)
        target = Path(path)
        fresh = target.with_name(f"{target.name}.writing-{os.getpid()}")
        digest = hashlib.sha256()
        try:
            with fresh.open("wb") as file:
                for part in parts:
                    digest.update(part)
                    file.write(part)
                file.write(digest.digest())
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(target)
        finally:
            fresh.unlink(missing_ok=True)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        series: npt.ArrayLike | SlidingWindows,
        *,
        threads: int = 0,
    ) -> NeighbourIndex:
        """The index saved at path, over the same series again; its tree is built anew.

        Raises: ValueError if the file is no index, is damaged, or belongs to other series.
        """
        content = Path(path).read_bytes()
        if not content.startswith(MAGIC):
            raise ValueError(f"path: expected a saved neighbour index, got {path}")
        end = len(content) - _DIGEST
        if hashlib.sha256(memoryview(content)[:end]).digest() != content[end:]:
            raise ValueError(f"path: expected an undamaged index, got another checksum in {path}")
        try:
            header, arrays = _parts(content, end)
            shape, series_digest = (header["n"], header["steps"]), header["series"]
            rules = {word: header[word] for word in ("max_run", "decimals", "rule")}
        except (KeyError, TypeError, OverflowError, ValueError) as error:
            text = f"path: expected an index as saved, got {error!r} in {path}"
            raise ValueError(text) from error
        values = series_or_windows("series", series)
        if values.shape != shape or _digest(values) != series_digest:
            raise ValueError(
                f"series: expected the {shape} series of the index, got {values.shape} or others"
            )
        return cls(arrays.pop("z"), values, **rules, **arrays, threads=threads)


def _parts(content: bytes, end: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Header and arrays of a file, up to its checksum."""
    at = content.index(b"\n", len(MAGIC)) + 1
    header: dict[str, Any] = json.loads(content[len(MAGIC) : at])
    arrays = {}
    for name, dtype in _DTYPES.items():
        shape = (header["n"], header["dims"]) if name == "z" else (header["n"],)
        array: npt.NDArray[Any] = np.ndarray(shape, dtype, content, at)
        arrays[name] = array.astype(dtype[1:], copy=False)
        at += array.nbytes
    if at != end:
        raise ValueError(f"{end - at} bytes too many")
    return header, arrays


def _digest(series: Floats | SlidingWindows) -> str:
    """SHA-256 of the values, row after row, whatever memory they lie in."""
    digest = hashlib.sha256()
    rows = 1 + (1 << 20) // series.shape[1]
    for begin in range(0, len(series), rows):
        part = slice(begin, begin + rows)
        values = series.rows(part) if isinstance(series, SlidingWindows) else series[part]
        digest.update(np.ascontiguousarray(values, dtype="<f8").data)
    return digest.hexdigest()
