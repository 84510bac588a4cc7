"""Checks of the arguments of kernels: readable errors, arrays of the right type and rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]
    Ints = npt.NDArray[np.int32]
    Longs = npt.NDArray[np.int64]
    Ragged = tuple[Ints, Longs]


def _shape(letters: str) -> int:
    return letters.count(",") + 1


def floats(name: str, value: npt.ArrayLike, letters: str) -> Floats:
    """C-contiguous float64 array of the rank that the letters spell, no empty side."""
    try:
        array = np.asarray(value)
    except ValueError:
        raise ValueError(f"{name}: expected float64 [{letters}], got ragged rows") from None
    if array.dtype.kind not in "fiub" and array.size:
        raise ValueError(f"{name}: expected float64 [{letters}], got dtype {array.dtype}")
    if array.ndim != _shape(letters) or 0 in array.shape:
        raise ValueError(
            f"{name}: expected float64 [{letters}] with no empty side, got shape {array.shape}"
        )
    return np.ascontiguousarray(array, dtype=np.float64)


def windows(name: str, value: npt.ArrayLike) -> Floats:
    """Float64 array [N, T]; rows that overlap in memory, as sliding windows do, are not copied."""
    if isinstance(value, np.ndarray) and value.dtype == np.float64 and value.ndim == 2:
        row, step = value.strides
        if min(value.shape) > 1 and step == 8 and row >= 0 and row % 8 == 0 and value.flags.aligned:
            return value
    return floats(name, value, "N, T")


def writable(
    name: str, array: npt.NDArray[Any], dtype: type[np.generic], shape: tuple[int, ...]
) -> None:
    """Refuse an array that a kernel could not write a result of this dtype and shape to."""
    if array.dtype != dtype or array.shape != shape or not array.flags.carray:
        raise ValueError(
            f"{name}: expected writable, C-contiguous {np.dtype(dtype)} {shape}, "
            f"got {array.dtype} {array.shape}"
        )


def integers(name: str, value: npt.ArrayLike, letters: str, dtype: Any) -> Any:
    """C-contiguous integer array that holds the same numbers in the given dtype."""
    array = np.asarray(value)
    wanted = np.dtype(dtype)
    if array.dtype == wanted and array.ndim == _shape(letters):
        return np.ascontiguousarray(array)
    if array.size and array.dtype.kind not in "iu":
        raise ValueError(f"{name}: expected {wanted} [{letters}], got dtype {array.dtype}")
    if array.ndim != _shape(letters):
        raise ValueError(f"{name}: expected {wanted} [{letters}], got shape {array.shape}")
    if array.size:
        limits = np.iinfo(wanted)
        low, high = int(array.min()), int(array.max())
        if low < limits.min or high > limits.max:
            raise ValueError(f"{name}: expected {wanted} [{letters}], got {low} to {high}")
    return np.ascontiguousarray(array, dtype=wanted)


def ragged(name: str, value: tuple[npt.ArrayLike, npt.ArrayLike], letter: str) -> Ragged:
    """Ids and offsets of a ragged array, checked against each other."""
    if not isinstance(value, tuple) or len(value) != 2:
        raise ValueError(f"{name}: expected (ids, offsets), got {type(value).__name__}")
    ids: Ints = integers(name, value[0], "n", np.int32)
    offsets: Longs = integers(f"{name} offsets", value[1], f"{letter}+1", np.int64)
    if (
        not offsets.size
        or offsets[0] != 0
        or offsets[-1] != ids.size
        or (offsets[1:] < offsets[:-1]).any()
    ):
        raise ValueError(
            f"{name} offsets: expected rising from 0 to {ids.size}, got {offsets.tolist()[:8]}"
        )
    return ids, offsets


def id_buffer(out: Ints | None) -> Ints | None:
    """A caller's buffer for ids, if there is one."""
    if out is not None and (out.dtype != np.int32 or out.ndim != 1 or not out.flags.carray):
        raise ValueError(
            f"out: expected writable, C-contiguous int32 [n], got {out.dtype} {out.shape}"
        )
    return out


def number(name: str, value: int, low: int, high: int) -> int:
    """An integer, numpy's included, between two bounds."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise ValueError(f"{name}: expected an integer, got {value!r}")
    if not low <= value <= high:
        raise ValueError(f"{name}: expected {low} to {high}, got {value}")
    return int(value)


def thread_count(threads: int) -> int:
    """Threads of a kernel, 0 for all cores."""
    return number("threads", threads, 0, 1024)
