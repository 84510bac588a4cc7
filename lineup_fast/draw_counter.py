"""Draw indices for hosts that pass none: captions counted per item, kept in a file.

The one piece of the reward that has a state. Captions of an item are numbered as they are asked,
and G of them share a draw: index = number // G. A retry carries the request id of the first try and
gets the index it had.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

FORMAT = {"format": "lineup_fast.draws", "version": 1}
REMEMBERED = 1 << 17  # request ids, the latest
SPARE_LINES = 10_000  # a file may hold twice what is needed and this many lines more


class _Count(NamedTuple):
    """Captions of an item so far, and indices that were given but came to nothing."""

    asked: int = 0
    freed: tuple[int, ...] = ()


class DrawCounter:
    """Counts captions per item; every call is on file before it returns.

    group_size: G, captions that share a draw. path: appended to, made if missing, locked while
    open; None keeps the counts in memory only. A killed process loses nothing that was returned;
    after a power failure the last calls may be missing.
    Raises: ValueError where the file is of another G, damaged, or in use by another process.
    """

    def __init__(self, group_size: int, path: str | os.PathLike[str] | None = None) -> None:
        if isinstance(group_size, bool) or not isinstance(group_size, int) or group_size < 1:
            raise ValueError(f"group_size: expected at least 1, got {group_size!r}")
        self.group_size = group_size
        self._path = None if path is None else Path(path)
        self._lock = threading.Lock()
        self._counts: dict[str, _Count] = {}
        self._requests: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._lines = 0
        self._file = -1
        if self._path is not None:
            self._file = _locked(self._path, os.O_CREAT | os.O_APPEND)
            try:
                self._load(self._path)
            except BaseException:
                os.close(self._file)
                raise

    def assign(self, ids: Sequence[str], request_ids: Sequence[str] | None = None) -> list[int]:
        """The draw index of each caption.

        Args: ids of the captions' items; request_ids, one per caption: an id that was seen with the
        same item gets the same index and is not counted. Raises: OSError where the file cannot be
        written; then nothing is counted.
        """
        requests: Sequence[str | None] = request_ids or [None] * len(ids)
        indices, lines = [], []
        with self._lock:
            counts: dict[str, _Count] = {}
            known: dict[tuple[str, str], int] = {}
            for item, request in zip(ids, requests, strict=True):
                key = (item, request or "")
                if request is not None:
                    seen = known.get(key, self._requests.get(key))
                    if seen is not None:
                        indices.append(seen)
                        continue
                count = counts.get(item) or self._counts.get(item) or _Count()
                if count.freed:
                    index, count = count.freed[0], count._replace(freed=count.freed[1:])
                else:
                    index = count.asked // self.group_size
                    count = count._replace(asked=count.asked + 1)
                counts[item] = count
                if request is not None:
                    known[key] = index
                lines.append(_line(item, count, request, index))
                indices.append(index)
            self._append(lines)
            self._counts.update(counts)
            self._remember(known)
            self._shrink()
        return indices

    def release(self, ids: Iterable[str], indices: Iterable[int]) -> None:
        """Give back indices of captions that were never answered, for the next to ask."""
        with self._lock:
            counts: dict[str, _Count] = {}
            for item, index in zip(ids, indices, strict=True):
                count = counts.get(item) or self._counts[item]
                counts[item] = count._replace(freed=(*count.freed, index))
            self._append([_line(item, count) for item, count in counts.items()])
            self._counts.update(counts)

    def close(self) -> None:
        """Flush to the disk and let go of the file."""
        with self._lock:
            if self._file >= 0:
                os.fsync(self._file)
                os.close(self._file)
                self._file = -1

    def _remember(self, known: dict[tuple[str, str], int]) -> None:
        self._requests.update(known)
        while len(self._requests) > REMEMBERED:
            self._requests.popitem(last=False)

    def _append(self, lines: list[str]) -> None:
        """Lines at the end of the file, all or none."""
        if self._path is None or not lines:
            return
        if self._file < 0:
            raise ValueError("counter: expected an open one, got one that was closed")
        data = "".join(lines).encode()
        before = os.fstat(self._file).st_size
        try:
            written = os.write(self._file, data)
            if written < len(data):
                raise OSError(f"counter: {written} of {len(data)} bytes written to {self._path}")
        except OSError:
            os.ftruncate(self._file, before)
            raise
        self._lines += len(lines)

    def _load(self, path: Path) -> None:
        """Read the file back; a last line that was cut off by a crash is removed."""
        with path.open("rb") as file:
            data = file.read()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            os.ftruncate(self._file, whole)
        if not whole:
            self._append([json.dumps({**FORMAT, "group_size": self.group_size}) + "\n"])
            return
        head, *rows = (
            _row(path, number, line) for number, line in enumerate(data[:whole].splitlines(), 1)
        )
        if {key: head.get(key) for key in FORMAT} != FORMAT:
            raise ValueError(f"{path}: expected a file of draws of lineup-fast, got {head!r:.80}")
        if head.get("group_size") != self.group_size:
            raise ValueError(
                f"{path}: expected group size {head.get('group_size')}, which it was made with, "
                f"got {self.group_size}"
            )
        for number, row in enumerate(rows, 2):
            try:
                item = row["id"]
                self._counts[item] = _Count(row["asked"], tuple(row.get("freed", ())))
                if "request" in row:
                    self._remember({(item, row["request"]): row["index"]})
            except (KeyError, TypeError) as error:
                raise ValueError(f"{path}:{number}: expected a draw, got {row!r:.80}") from error
        self._lines = len(rows) + 1

    def _shrink(self) -> None:
        """Replace the file by what is still needed, once most of it is not."""
        needed = len(self._counts) + len(self._requests)
        if self._path is None or self._lines <= 2 * needed + SPARE_LINES:
            return
        lines = [json.dumps({**FORMAT, "group_size": self.group_size}) + "\n"]
        lines += [_line(item, count) for item, count in self._counts.items()]
        lines += [
            _line(item, self._counts[item], request, index)
            for (item, request), index in self._requests.items()
        ]
        partial = self._path.with_name(f".{self._path.name}.{os.getpid()}.tmp")
        partial.write_text("".join(lines), encoding="utf-8")
        fresh = _locked(partial, os.O_APPEND)  # nobody else can lock it once it is in place
        os.fsync(fresh)
        partial.replace(self._path)
        os.close(self._file)
        self._file, self._lines = fresh, len(lines)


def _line(item: str, count: _Count, request: str | None = None, index: int | None = None) -> str:
    row: dict[str, Any] = {"id": item, "asked": count.asked}
    if count.freed:
        row["freed"] = count.freed
    if request is not None:
        row |= {"request": request, "index": index}
    return json.dumps(row) + "\n"


def _row(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}:{number}: expected a JSON object, got {error}") from None
    if not isinstance(row, dict):
        raise ValueError(f"{path}:{number}: expected a JSON object, got {row!r:.80}")
    return row


def _locked(path: Path, flags: int) -> int:
    """A file opened for this process alone."""
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC | flags, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        raise ValueError(
            f"{path}: expected a file that no other server uses, got one in use"
        ) from None
    return file
