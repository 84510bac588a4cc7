"""Where the series of the benchmarks come from: described series, and windows of long channels.

Nothing is filled in, rounded or skipped without being counted in `Gathered.dropped`.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from lineup_fast import counters, readers
from lineup_fast.readers import Channel, read_columns
from lineup_fast.tables import parse_list
from lineup_fast.windows import SCALE_QUANTILES, flat
from trainer.evaluate.benchmark_build import Gathered, Item

Floats = NDArray[np.float64]
Scale = Literal["none", "standard"] | tuple[float, float]

BEDTIME_ID = "HartvigsenGroup/BEDTime"
BEDTIME_SETS = ("truce_stock", "truce_synthetic", "sushi", "taxosynth")
REFERENCE_COLUMNS = ("references", "annotations", "captions", "reference", "annotation", "caption")


def bedtime(
    path: str, *, sets: Sequence[str] = BEDTIME_SETS, per_set: int | None = 500, seed: int = 2020
) -> Gathered:
    """BEDTime: four CSV files with the columns idx, series (a list as text), annotations (one a
    row), and for two of them class and subclass.

    path: the folder with truce_stock.csv and so on, or the hub id.
    per_set: so many series of each set, drawn from those sorted by "set_idx"; None: all.

    Raises:
        ValueError: a file that is not there or has other columns.

    Source: reference, BEDTime preparation; its NICU-HR set is not public.
    """
    found = Gathered(meta={"loader": "bedtime", "per_set": per_set, "seed": seed, "files": {}})
    for name in sets:
        file = _local(path, f"{name}.csv", BEDTIME_ID)
        found.meta["files"][name] = str(file)
        by_uid = _described(file, name, ("idx",), ("annotations",), found)
        uids = sorted(by_uid)
        if per_set is not None and per_set < len(uids):
            uids = sorted(random.Random(seed).sample(uids, per_set))
        found.items += [by_uid[uid] for uid in uids]
    return found


def truce(path: str, *, per_set: int | None = None, split: str | None = None) -> Gathered:
    """TRUCE, two of BEDTime's sets from their origin: a table with the columns id, source, series,
    captions (a list), split.

    per_set: the first so many series of each source by id, in an order that chance decides once;
    None: all. split: only rows of this split; None: all.
    """
    file = Path(path)
    columns = _columns(file, ("id", "source", "series", "captions"))
    found = Gathered(meta={"loader": "truce", "file": str(file), "split": split})
    by_set: dict[str, list[Item]] = defaultdict(list)
    for row in range(len(columns["id"])):
        if split is not None and columns["split"][row] != split:
            found.dropped[f"rows not of split {split}"] += 1
            continue
        values, texts = _values(columns["series"][row], found), _texts(columns["captions"][row])
        if values is not None:
            name = str(columns["source"][row])
            source = f"{name}/{columns['id'][row]}"
            by_set[name].append(Item(values, source, 0, texts, name, name))
    for name, items in sorted(by_set.items()):
        order = counters.order(len(items), "truce", name)
        found.items += [items[i] for i in order[:per_set]]
    return found


def jsonl(path: str) -> Gathered:
    """Any JSONL (or CSV, Parquet) with "series" and, where there are any, "references" (a text or
    a list), "source", "start", "group", "domain".

    Also reads series files of the reference evaluation (series_uid, dataset, annotations).
    """
    file = Path(path)
    columns = _columns(file, ("series",))
    found = Gathered(meta={"loader": "jsonl", "file": str(file)})
    told = next((name for name in REFERENCE_COLUMNS if name in columns), None)
    names = ("source", "start", "group", "domain", "dataset", "series_uid", "id")
    for row, cell in enumerate(columns["series"]):
        values = _values(cell, found)
        if values is None:
            continue
        at: dict[str, Any] = {k: columns[k][row] if k in columns else None for k in names}
        stem = at["dataset"] or file.name.split(".", 1)[0]
        label = at["series_uid"] or at["id"] or f"row {row + 1}"
        try:
            start = int(at["start"] or 0)
        except (TypeError, ValueError):
            raise ValueError(
                f"start: expected a whole number in {file}, row {row + 1}, got {at['start']!r}"
            ) from None
        found.items.append(
            Item(
                values,
                str(at["source"] or f"{stem}/{label}"),
                start,
                _texts(columns[told][row]) if told else (),
                str(at["group"] or ""),
                str(at["domain"] or at["dataset"] or ""),
            )
        )
    return found


# --- windows of long channels ---------------------------------------------------------------

ETT = "https://github.com/zhouhaoyi/ETDataset"
MONASH = "https://huggingface.co/datasets/Monash-University/monash_tsf"
# name: (files it may be called, column, where to get it)
LONG: dict[str, tuple[tuple[str, ...], str, str]] = {
    "etth2": (("etth2.csv.gz", "ETTh2.csv", "etth2.csv"), "OT", f"{ETT} (ETT-small/ETTh2.csv)"),
    "ettm2": (("ettm2.csv.gz", "ETTm2.csv", "ettm2.csv"), "OT", f"{ETT} (ETT-small/ETTm2.csv)"),
    "saugeen": (
        ("saugeen.parquet", "saugeenday.csv"),
        "flow",
        f"{MONASH} (saugeenday), or SaugeenDay of the R package deseasonalize",
    ),
    "demand": (
        ("aus_elec_vic.parquet", "australian_electricity_demand.csv"),
        "demand",
        f"{MONASH} (australian_electricity_demand), or vic_elec of the R package tsibbledata",
    ),
}


def long_channel(
    name: str, path: str, column: str | None = None, rows: int | None = None
) -> Channel:
    """The channel of a long benchmark.

    path: its file, or a folder that holds it under one of its usual names. column: None = the
    usual one. rows: only the first so many.

    Raises:
        ValueError: no such file (the text says where to get it) or column.
    """
    names, usual, where = LONG[name]
    place = Path(path)
    files = [place] if place.is_file() else [place / n for n in names if (place / n).is_file()]
    if not files:
        raise ValueError(
            f"data: expected a file, or a folder with one of {', '.join(names)}, got {path}; "
            f"get it from {where}"
        )
    channels, _ = readers.read(files[0])
    wanted = column or usual
    for channel in channels:
        if channel.source.rsplit("/", 1)[-1] == wanted:
            if rows is not None and not 0 < rows <= len(channel.values):
                raise ValueError(f"rows: expected 1 to {len(channel.values)}, got {rows}")
            return replace(channel, values=channel.values[:rows])
    has = ", ".join(channel.source.rsplit("/", 1)[-1] for channel in channels)
    raise ValueError(f"column: expected one of {has} of {files[0]}, got {wanted!r}")


def scaled(
    channel: Channel, scale: Scale, fit_frac: float
) -> tuple[Floats, dict[str, float | str]]:
    """The values on another scale, and how: bounds come from the first `fit_frac` of the channel.

    scale: "none"; "standard", (x - mean) / (population std + 1e-8), as the reference does; or
    (low, high): whole numbers in it, from the 0.5 % to the 99.5 % quantile of that part, values
    outside clipped, as `lineup-fast index --scale` does.

    Raises:
        ValueError: that part is constant.
    """
    if scale == "none":
        return channel.values, {"scale": "none"}
    fit = channel.values[: int(fit_frac * len(channel.values))]
    if not len(fit) or fit.min() == fit.max():
        raise ValueError(f"fit_frac: expected a part that varies in {channel.source}, got none")
    if scale == "standard":
        mean, std = float(fit.mean()), float(fit.std()) + 1e-8
        return (channel.values - mean) / std, {"scale": "standard", "mean": mean, "std": std}
    low, high = scale
    least, most = (float(bound) for bound in np.quantile(fit, SCALE_QUANTILES))
    if not most > least:
        raise ValueError(f"scale: expected quantiles that differ in {channel.source}, got {least}")
    values = low + (channel.values - least) / (most - least) * (high - low)
    return np.rint(np.clip(values, low, high)) + 0.0, {
        "scale": "range", "low": low, "high": high, "least": least, "most": most,
    }  # fmt: skip


def windows(
    channel: Channel,
    *,
    lookback: int,
    horizon: int,
    n: int | None,
    scale: Scale = "standard",
    fit_frac: float = 0.6,
    seed: int = 2020,
) -> Gathered:
    """Lookback windows with room for the horizon behind them, by source and start.

    n: so many, drawn without replacement from all starts; None: every start. No window or its
    horizon crosses a gap, and on a scale of whole numbers none has lost its shape to rounding
    (as in a training corpus); starts that would are counted.

    Raises:
        ValueError: the channel is too short.

    Source: reference, ts_downstream: lookback 128, horizon 16, stride 1, 5,000 windows over all
    splits jointly, standardised by the first 60 %.
    """
    if lookback < 1 or horizon < 0:
        raise ValueError(f"lookback, horizon: expected 1 and 0 or more, got {lookback}, {horizon}")
    values, how = scaled(channel, scale, fit_frac)
    span = lookback + horizon
    starts = np.arange(len(values) - span + 1)
    crossing = np.zeros(len(starts), dtype=bool)
    for gap in channel.breaks:
        crossing |= (starts < gap) & (gap < starts + span)
    lost = np.zeros(len(starts), dtype=bool)
    if isinstance(scale, tuple) and len(starts):
        views = sliding_window_view(values, lookback)[: len(starts)]
        lost = np.concatenate([flat(rows, scale) for rows in np.array_split(views, 64)]) & ~crossing
    fitting = starts[~crossing & ~lost]
    if not len(fitting):
        raise ValueError(
            f"lookback: expected windows of {lookback} + {horizon} steps to fit, got "
            f"{len(values)} values in {channel.source}"
        )
    chosen = fitting
    if n is not None and n < len(fitting):
        chosen = np.sort(fitting[counters.order(len(fitting), seed, channel.source, span)[:n]])
    found = Gathered(channels={channel.source: values})
    found.meta = {
        "loader": "windows",
        "source": channel.source,
        "lookback": lookback,
        "horizon": horizon,
        "fit_frac": fit_frac,
        "seed": seed,
        **how,
    }
    for why, where in (("crosses a gap", crossing), ("is flat after rounding", lost)):
        if where.any():
            found.dropped[f"starts whose window {why}"] = int(where.sum())
    found.items = [
        Item(values[at : at + lookback].copy(), channel.source, int(at)) for at in chosen
    ]
    return found


# --- cells ----------------------------------------------------------------------------------


def _local(path: str, name: str, hub_id: str) -> Path:
    """A file of a folder, or of the hub data set where the path is its id."""
    if path != hub_id or Path(path).is_dir():
        file = Path(path) / name
        if not file.is_file():
            raise ValueError(
                f"data: expected a folder with {name}, got {path}; get it from "
                f"https://huggingface.co/datasets/{hub_id}, or give {hub_id} as data where the "
                "hub is in reach"
            )
        return file
    try:
        from huggingface_hub import hf_hub_download

        return Path(hf_hub_download(hub_id, name, repo_type="dataset"))
    except (ImportError, OSError, ValueError) as error:
        raise ValueError(
            f"data: expected {hub_id} to be in reach, got {str(error).splitlines()[0]}; download "
            f"{name} from https://huggingface.co/datasets/{hub_id} elsewhere and give its folder"
        ) from error


def _columns(file: Path, needed: Sequence[str]) -> dict[str, Any]:
    if not file.is_file():
        raise ValueError(f"data: expected a file, got {file}")
    columns, refusals = read_columns(file)
    if refusals:
        raise ValueError(f"data: expected whole rows, got {refusals[0]}")
    lacking = [name for name in needed if name not in columns]
    if lacking:
        raise ValueError(f"{file}: expected columns {', '.join(needed)}, got {', '.join(columns)}")
    return columns


def _described(
    file: Path, name: str, ids: Sequence[str], told: Sequence[str], found: Gathered
) -> dict[str, Item]:
    """Series of a file with one description a row, by "name_idx"; descriptions merged."""
    columns = _columns(file, (*ids, "series", *told))
    series: dict[str, Floats | None] = {}
    texts: dict[str, list[str]] = defaultdict(list)
    for row, key in enumerate(columns[ids[0]]):
        uid = f"{name}_{key}"
        text = columns[told[0]][row]
        if not isinstance(text, str) or not text.strip():
            found.dropped["rows with a blank annotation"] += 1
            continue
        if uid not in series:
            series[uid] = _values(columns["series"][row], found)
        if text.strip() not in texts[uid]:
            texts[uid].append(text.strip())
    return {
        uid: Item(values, f"{name}/{uid}", 0, tuple(texts[uid]), name, name)
        for uid, values in series.items()
        if values is not None
    }


def _values(cell: Any, found: Gathered) -> Floats | None:
    """A list of numbers; None and counted where one of them is none."""
    values, why = parse_list(list(cell) if isinstance(cell, np.ndarray) else cell)
    if values is None or why:
        found.dropped["series with a value that is no finite number"] += 1
        return None
    return values


def _texts(cell: Any) -> tuple[str, ...]:
    """One text or several, blank ones and repetitions left out."""
    texts = [cell] if isinstance(cell, str) else list(cell or ())
    return tuple(dict.fromkeys(text.strip() for text in texts if text and text.strip()))
