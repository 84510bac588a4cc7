"""Series out of the files people have: CSV, JSONL, Parquet and Hugging Face data sets.

`read` turns a file into columns, and `lineup_fast.tables` turns columns into channels. CSV and
JSONL need nothing installed, Parquet needs pyarrow, hub ids need datasets (extra `data`).
"""

from __future__ import annotations

import csv
import gzip
import json
import os
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

MAX_MAGNITUDE = 1e150
SUFFIXES = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".jsonl", ".jsonl.gz", ".parquet")
Columns = dict[str, Any]  # name → list of cells, or a numeric array where the file is typed


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


def read(path: str | os.PathLike[str]) -> tuple[list[Channel], list[Refusal]]:
    """Channels of a file, a folder of a Hugging Face data set, or a hub id "owner/name".

    Wide tables (a column per variable), long ones (a column that names the series) and rows that
    hold a list each (ready-made windows with a caption or a length, or whole series) are told
    apart by their columns; see `lineup_fast.tables.channels`.

    Raises ValueError if the kind of file is unknown or it holds no numbers, FileNotFoundError if
    it is neither there nor a hub id, ImportError if an extra is missing.
    """
    from lineup_fast import tables

    file, name = Path(path), os.fspath(path)
    if file.is_file():
        columns, refusals = read_columns(file)
        stem = file.name[: -len(_kind(file))]
        channels, more = tables.channels(columns, stem, file.name)
        return channels, refusals + more
    is_hub_id = re.fullmatch(r"[\w.-]+/[\w.-]+", name) and not name.lower().endswith(SUFFIXES)
    if file.is_dir() or is_hub_id:
        columns = _read_hub(name)
        stem = file.name if file.is_dir() else name.replace("/", "--")
        return tables.channels(columns, stem, name)
    raise FileNotFoundError(f"{name}: expected a file, a folder or a hub id owner/name")


def _kind(file: Path) -> str:
    kind = next((s for s in SUFFIXES if file.name.lower().endswith(s)), None)
    if kind is None:
        raise ValueError(f"{file}: expected a name ending in {', '.join(SUFFIXES)}")
    return kind


def read_columns(file: Path) -> tuple[Columns, list[Refusal]]:
    """The cells of a file by column, and the lines that were refused (their cells are missing).

    Raises ValueError if the kind of file is unknown or it is damaged, ImportError if an extra is
    missing.
    """
    kind = _kind(file)
    if kind == ".parquet":
        return _read_parquet(file), []
    try:
        with _open(file) as lines:
            if kind.startswith(".jsonl"):
                return _read_jsonl(lines, file.name)
            return _read_csv(lines, file.name)
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: expected UTF-8 text, got {error}") from None
    except (gzip.BadGzipFile, EOFError, zlib.error, csv.Error) as error:
        raise ValueError(f"{file}: expected a whole {kind} file, got {error}") from None


def _open(file: Path) -> IO[str]:
    if file.name.lower().endswith(".gz"):
        return gzip.open(file, "rt", encoding="utf-8-sig", newline="")
    return file.open(encoding="utf-8-sig", newline="")


def _wanted(name: str) -> bool:
    """Text embeddings are the bulk of some files and are never used."""
    return "embedding" not in name.lower()


def _read_csv(lines: IO[str], file: str) -> tuple[Columns, list[Refusal]]:
    """Cells as text; a row of another width is refused and its cells count as missing."""
    csv.field_size_limit(2**30)
    first = lines.readline()
    if not first.strip():
        raise ValueError(f"{file}: expected a header line, got an empty file")
    delimiter = max(",;\t|", key=first.count)
    header = [cell.strip() for cell in next(csv.reader([first], delimiter=delimiter))]
    if len(set(header)) < len(header):
        repeated = sorted({name for name in header if header.count(name) > 1})
        raise ValueError(f"{file}: expected distinct column names, got {repeated} twice")
    kept = [i for i, name in enumerate(header) if _wanted(name)]
    cells: list[list[str | None]] = [[] for _ in kept]
    refusals = []
    for number, row in enumerate(csv.reader(lines, delimiter=delimiter), 1):
        fits = len(row) == len(header)
        if not fits:
            reason = f"expected {len(header)} cells, got {len(row)}"
            refusals.append(Refusal(file, number, "", reason))
        for cell, i in zip(cells, kept, strict=True):
            cell.append(row[i] if fits else None)
    return {header[i]: cell for i, cell in zip(kept, cells, strict=True)}, refusals


def _read_jsonl(lines: IO[str], file: str) -> tuple[Columns, list[Refusal]]:
    """One object a line; a line that is none is refused and its cells count as missing."""
    rows: list[dict[str, Any]] = []
    refusals = []
    for number, record in enumerate(_records(lines), 1):
        if isinstance(record, str):
            refusals.append(Refusal(file, number, "", record))
            record = {}
        rows.append(record)
    names = list(dict.fromkeys(name for row in rows for name in row if _wanted(name)))
    if not names:
        raise ValueError(f"{file}: expected a JSON object on each line, got none")
    return {name: [row.get(name) for row in rows] for name in names}, refusals


def _records(lines: IO[str]) -> Iterator[dict[str, Any] | str]:
    """Each line's object, or why there is none."""
    for line in lines:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            yield f"not JSON: {error}"
            continue
        yield record if isinstance(record, dict) else f"expected an object, got {record!r:.40}"


def _read_parquet(file: Path) -> Columns:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError(
            f"{file}: Parquet needs pyarrow: pip install lineup-fast[data]"
        ) from error
    try:
        with pyarrow.parquet.ParquetFile(file) as source:
            names = [name for name in source.schema_arrow.names if _wanted(name)]
            return _from_arrow(source.read(columns=names))
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{file}: expected a Parquet file, got {error}") from error


def _read_hub(name: str) -> Columns:
    """All rows of the data set's `train` split (of its only split, if there is but one)."""
    try:
        import datasets
    except ImportError as error:
        raise ImportError(f"{name}: needs datasets: pip install lineup-fast[data]") from error
    try:
        loaded = datasets.load_dataset(name)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise ValueError(f"{name}: expected a Hugging Face data set, got {error}") from error
    splits = list(loaded)
    if len(splits) > 1 and "train" not in splits:
        raise ValueError(f"{name}: expected a split named train, got {splits}")
    data = loaded["train" if "train" in splits else splits[0]]
    data = data.remove_columns([column for column in data.column_names if not _wanted(column)])
    return _from_arrow(data.with_format("arrow")[:])


def _from_arrow(table: Any) -> Columns:
    """Arrow columns: numbers as float64 arrays (null → NaN), the rest as lists."""
    import pyarrow

    columns: Columns = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        kind = column.type
        if (
            pyarrow.types.is_floating(kind)
            or pyarrow.types.is_integer(kind)
            or pyarrow.types.is_decimal(kind)
        ):
            columns[name] = column.cast("float64", safe=False).to_numpy()
        elif pyarrow.types.is_temporal(kind):
            columns[name] = np.asarray(column.to_numpy()).astype("datetime64[us]")
        else:
            columns[name] = column.to_pylist()
    return columns
