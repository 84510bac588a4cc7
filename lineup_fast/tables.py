"""Columns of a file → channels: which column is time, which names the series, which are numbers.

Nothing is filled in: a cell that is no finite number is cut out of its channel, leaves a break
there, and is refused with its row, column and reason.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lineup_fast.readers import MAX_MAGNITUDE, Channel, Columns, Refusal

Floats = NDArray[np.float64]

# fmt: off
TIME_NAMES = frozenset({
    "date", "time", "datetime", "timestamp", "ds", "ts", "month", "year", "week", "time_utc",
    "date_time", "time_hour",
})
ID_NAMES = frozenset({
    "id", "series", "series_id", "series_name", "unique_id", "item_id", "sensor", "station",
    "symbol", "ticker", "origin", "name", "channel", "variable", "group", "meter", "store",
})
# fmt: on
COUNTER_NAMES = frozenset({"", "no", "no.", "index", "row", "unnamed: 0", "step"})
VALUE_NAMES = ("ot", "values", "series", "target", "value", "y")
CAPTION_NAMES = ("text", "caption", "captions", "ds_caption", "description")
LENGTH_NAMES = ("timeinterval", "length", "len")
MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?"})


def channels(columns: Columns, stem: str, file: str) -> tuple[list[Channel], list[Refusal]]:
    """Channels and refusals; `stem` begins the name of every source, `file` that of refusals.

    Rows that hold a list each become ready-made windows where there is a caption or a length
    beside them, and whole series otherwise. In tables, a column called like a time is the time
    (rows are put in its order, gaps leave breaks), one called like a series id, or the only text
    column where times repeat, names the series, and the others are variables.

    Raises ValueError if there is no number in the file.
    """
    lists = [name for name, cells in columns.items() if _is_list_column(cells)]
    if lists:
        found, refusals = _from_lists(columns, _preferred(lists, VALUE_NAMES), stem, file)
    else:
        found, refusals = _from_table(columns, stem, file)
    if not found:
        reasons = "; ".join(str(refusal) for refusal in refusals[:3])
        raise ValueError(f"{file}: expected columns of numbers or lists of numbers, got {reasons}")
    return found, refusals


def _preferred(names: Sequence[str], order: Sequence[str]) -> str:
    """The name that comes first in `order`, else the first one."""
    ranked = [name for wanted in order for name in names if name.lower() == wanted]
    return (ranked or list(names))[0]


def _find(columns: Columns, order: Sequence[str], but: str = "") -> str | None:
    """The column called like the first of `order` that there is."""
    for wanted in order:
        for name in columns:
            if name.lower() == wanted and name != but:
                return name
    return None


def _is_list_column(cells: Any) -> bool:
    """Whether the first cells that are there hold lists of numbers, as such or as text."""
    if isinstance(cells, np.ndarray):
        return False
    first = [cell for cell in cells[:100] if cell is not None and cell != ""][:20]
    return bool(first) and all(
        (isinstance(cell, (list, tuple)) and not any(isinstance(v, str) for v in cell))
        or (isinstance(cell, str) and re.match(r"\s*\[\s*[-+\dniNI.\]]", cell) is not None)
        for cell in first
    )


# --- rows that hold a list each -------------------------------------------------------------


def _from_lists(
    columns: Columns, value: str, stem: str, file: str
) -> tuple[list[Channel], list[Refusal]]:
    caption = _find(columns, CAPTION_NAMES, but=value)
    sample = _find(columns, ("sampleid",))
    window = caption is not None or _find(columns, LENGTH_NAMES, but=value) is not None
    start = _find(columns, ("start",))
    if start is not None and not _whole_numbers(columns[start]):
        start = None
    if start is None and sample is not None and _whole_numbers(columns[sample]):
        start = sample  # of a sliding window: rows with near ids lie near in time
    if sample is not None:
        stem = re.sub(r"_\d+$", "", stem)  # one file per corpus and length: name_24, name_48
    corpus = _find(columns, ("corpus", "dataset"), but=value)
    wanted = ("series", "series_id", "unique_id", "item_id", "source", "name")
    variable = _find(columns, wanted, but=value)
    row_id = _find(columns, ("id",), but=value)
    domain = _find(columns, ("domain",), but=value)
    found, refusals = [], []
    for row, cell in enumerate(columns[value]):
        values, reason = parse_list(cell)
        if reason:
            refusals.append(Refusal(file, row + 1, value, reason))
        if values is None or (window and reason):
            continue
        parts = [str(columns[corpus][row]) if corpus else stem]
        if corpus:
            parts[0] = f"{stem}:{parts[0]}"
        parts.append(str(columns[variable][row]) if variable else value)
        if window and start is None:
            parts.append(str(columns[row_id][row]) if row_id else f"row {row + 1}")
        values, breaks = _without_gaps(values)
        text = _caption(columns[caption][row]) if caption else None
        found.append(
            Channel(
                "/".join(part.replace("/", " ") for part in parts),
                values,
                str(columns[domain][row]) if domain else "",
                breaks=breaks,
                start=int(float(columns[start][row])) if start and window else 0,
                window=window,
                caption=text,
            )
        )
    return found, refusals


def _whole_numbers(cells: Any) -> bool:
    try:
        numbers = np.asarray(cells, dtype=np.float64)
    except (TypeError, ValueError):
        return False
    return bool(len(numbers)) and bool((np.isfinite(numbers) & (numbers == np.rint(numbers))).all())


def parse_list(cell: Any) -> tuple[Floats | None, str]:
    """A cell, a list or its text: (values with NaN where one is bad, why it is bad); values None:
    nothing usable."""
    if isinstance(cell, str):
        cell = [part for part in re.split(r"[,\s]+", cell.strip().strip("[]")) if part]
    if cell is None or (isinstance(cell, float) and np.isnan(cell)):
        return None, "no values"
    if not isinstance(cell, (list, tuple)):
        return None, f"expected a list of numbers, got {cell!r:.40}"
    if not cell:
        return None, "no values"
    values, reasons = _numbers(list(cell))
    bad = np.flatnonzero(np.isnan(values))
    if not len(bad):
        return values, ""
    more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
    reason = f"value {bad[0] + 1}: {reasons[int(bad[0])]}{more}"
    return (None if len(bad) == len(values) else values), reason


def _caption(cell: Any) -> str | None:
    """The text; of several the first."""
    if isinstance(cell, (list, tuple)):
        cell = cell[0] if cell else None
    return cell if isinstance(cell, str) and cell.strip() else None


# --- tables ---------------------------------------------------------------------------------


def _from_table(columns: Columns, stem: str, file: str) -> tuple[list[Channel], list[Refusal]]:
    n_rows = max((len(cells) for cells in columns.values()), default=0)
    time = _time_column(columns)
    times = _times(columns[time]) if time else None
    numeric: dict[str, tuple[Floats, dict[int, str]]] = {}
    texts: list[str] = []
    refusals: list[Refusal] = []
    if time and times is None:
        reason = "times not understood: rows stay in the file's order, gaps are not seen"
        refusals.append(Refusal(file, 0, time, reason))
    for name, cells in columns.items():
        if name == time or _is_dates(cells) or name.lower() in COUNTER_NAMES:
            continue
        values, reasons = _numbers(cells)
        if len(values) and np.isfinite(values).mean() >= 0.5:
            numeric[name] = values, reasons
        else:
            texts.append(name)
            row, reason = next(iter(reasons.items()), (0, "no rows"))
            refusals.append(Refusal(file, row + 1, name, f"column is not numeric: {reason}"))
    key = _id_column(columns, texts, numeric, times)
    refusals = [refusal for refusal in refusals if refusal.column != key]
    numeric.pop(key or "", None)
    groups = [("", np.arange(n_rows))] if key is None else _groups(columns[key])
    found: list[Channel] = []
    for label, rows in groups:
        rows, jumps = _in_time_order(rows, times)
        for name, (values, reasons) in numeric.items():
            parts = [stem, *([label] if key else []), name]
            if key and len(numeric) == 1:
                parts = [stem, label]
            source = "/".join(part.replace("/", " ") for part in parts)
            refusals += _refused(file, name, values, reasons, rows)
            kept, breaks = _without_gaps(values[rows], jumps)
            if len(kept):
                found.append(Channel(source, kept, breaks=breaks))
    return found, refusals


def _numbers(cells: Any) -> tuple[Floats, dict[int, str]]:
    """Cells as float64 with NaN where there is no number in range, and why, by row."""
    if isinstance(cells, np.ndarray) and cells.dtype.kind == "f":
        values = cells.astype(np.float64)
    else:
        try:
            values = np.array(cells, dtype=np.float64)
            if values.ndim != 1 or any(isinstance(cell, bool) for cell in cells):
                raise TypeError
        except (TypeError, ValueError, OverflowError):
            values = np.array([_number(cell) for cell in cells], dtype=np.float64)
    bad = ~(np.abs(values) <= MAX_MAGNITUDE)
    reasons = {int(row): _why(cells[row]) for row in np.flatnonzero(bad)}
    if values is cells or bad.any():
        values = np.where(bad, np.nan, values)
    return values, reasons


def _number(cell: Any) -> float:
    if isinstance(cell, bool) or not isinstance(cell, (int, float, str)):
        return np.nan
    try:
        return float(cell)
    except ValueError:
        return np.nan
    except OverflowError:
        return np.inf


def _why(cell: Any) -> str:
    if cell is None or (isinstance(cell, str) and cell.strip().lower() in MISSING):
        return "missing"
    number = _number(cell)
    if np.isnan(number):
        is_number = isinstance(cell, (float, np.floating))
        return "missing or NaN" if is_number else f"not a number: {str(cell)!r:.40}"
    return f"expected a finite number up to 1e150, got {number:g}"


def _refused(
    file: str,
    column: str,
    values: Floats,
    reasons: dict[int, str],
    rows: NDArray[np.intp],
) -> list[Refusal]:
    """One refusal per reason, at the first row it occurs in."""
    bad = np.sort(rows[np.isnan(values[rows])])
    first: dict[str, int] = {}
    counts: Counter[str] = Counter()
    for row in bad.tolist():
        reason = reasons[row]
        first.setdefault(reason, row)
        counts[reason] += 1
    return [Refusal(file, row + 1, column, why, counts[why]) for why, row in first.items()]


def _without_gaps(
    values: Floats, jumps: NDArray[np.bool_] | None = None
) -> tuple[Floats, tuple[int, ...]]:
    """The finite values, and a break wherever some were between two of them or time jumps.

    jumps : bool[L], True where time jumps just before a row
    """
    good = ~np.isnan(values)
    kept = np.flatnonzero(good)
    broken = np.zeros(len(values) + 1, dtype=np.int64)
    broken[1:] = np.cumsum(~good if jumps is None else ~good | jumps)
    change = np.flatnonzero(np.diff(broken[kept + 1]) > 0) + 1
    return values[kept], tuple(int(b) for b in change)


def _time_column(columns: Columns) -> str | None:
    """The column of dates if there is one, else the one called like a time that reads as one."""
    dated = [name for name, cells in columns.items() if _is_dates(cells)]
    if dated:
        return dated[0]
    for name, cells in columns.items():
        if (name.lower() in TIME_NAMES or name.lower().startswith(("time ", "date "))) and (
            _times(cells) is not None or not isinstance(cells, np.ndarray)
        ):
            return name
    return None


def _is_dates(cells: Any) -> bool:
    return isinstance(cells, np.ndarray) and cells.dtype.kind == "M"


def _times(cells: Any) -> Floats | None:
    """Times as seconds (or as the numbers they are), None where they cannot be read."""
    if _is_dates(cells):
        if np.isnat(cells).any():
            return None
        return np.asarray(cells.astype("datetime64[us]").astype(np.int64) / 1e6)
    if isinstance(cells, np.ndarray):
        return cells if bool(np.isfinite(cells).all()) else None
    texts = [str(cell).strip().replace("/", "-").removesuffix("Z") for cell in cells]
    texts = [re.sub(r"[+-]00:?00$", "", text) for text in texts]
    try:
        parsed = np.array(texts, dtype="datetime64[us]")
    except ValueError:
        return None
    if np.isnat(parsed).any():
        return None
    return np.asarray(parsed.astype(np.int64) / 1e6)


def _id_column(
    columns: Columns,
    texts: Sequence[str],
    numeric: dict[str, tuple[Floats, dict[int, str]]],
    times: Floats | None,
) -> str | None:
    """The column that names the series of a long table: its values repeat, and so do the times
    (where there are any)."""
    candidates = [name for name in columns if name.lower() in ID_NAMES]
    repeated = times is not None and len(np.unique(times)) < len(times)
    if repeated and not candidates and len(texts) == 1:
        candidates = list(texts)
    for name in candidates:
        if name not in texts and name not in numeric:
            continue
        labels = [str(cell) for cell in columns[name]]
        if len(numeric) > int(name in numeric) and len(set(labels)) <= len(labels) / 2:
            return name
    return None


def _groups(cells: Any) -> list[tuple[str, NDArray[np.intp]]]:
    """(label, rows) of each series, in order of first appearance."""
    rows: dict[str, list[int]] = {}
    whole = isinstance(cells, np.ndarray) and bool((cells == np.rint(cells)).all())
    for row, cell in enumerate(cells):
        label = str(int(cell)) if whole else str(cell)
        rows.setdefault(label, []).append(row)
    return [(label, np.array(at, dtype=np.intp)) for label, at in rows.items()]


def _in_time_order(
    rows: NDArray[np.intp], times: Floats | None
) -> tuple[NDArray[np.intp], NDArray[np.bool_] | None]:
    """Rows by time, and where time jumps: against the usual step if nine in ten steps are alike,
    else (business days, months) where a step is more than five times the median."""
    if times is None or len(rows) < 2:
        return rows, None
    rows = rows[np.argsort(times[rows], kind="stable")]
    steps = np.diff(times[rows])
    usual, counts = np.unique(steps, return_counts=True)
    step = float(usual[np.argmax(counts)])
    if step <= 0:
        return rows, None
    if counts.max() >= 0.9 * len(steps):
        jumps = np.abs(steps - step) > 0.5 * step
    else:
        jumps = steps > 5 * float(np.median(steps))
    return rows, np.concatenate([[False], jumps])
