"""A corpus as the data set that a training stack expects: one row per item, chart and prompt.

Every row names its item (``uid``); series and candidates stay in the corpus that the reward reads.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from lineup_fast import charts
from lineup_fast.prompts import CAPTION_PROMPT

if TYPE_CHECKING:
    from lineup_fast.charts import ChartStyle
    from lineup_fast.corpus import Corpus

Host = Literal["trl", "verl", "openrlhf", "verifiers"]
HOSTS: tuple[Host, ...] = get_args(Host)
IMAGE_TEXT = "<image>\n"  # how verl and OpenRLHF say where the image goes; TRL puts it in itself
BATCH = 64
DATA_SOURCE = "lineup_fast"

Progress = Callable[[str, int, int], None]
Row = dict[str, Any]


def export(
    corpus: Corpus,
    host: Host,
    folder: str | os.PathLike[str],
    *,
    splits: Sequence[str] = ("train", "val", "test"),
    style: ChartStyle = charts.DEFAULT_STYLE,
    prompt: str = CAPTION_PROMPT,
    limit: int | None = None,
    threads: int = 0,
    progress: Progress = lambda *_: None,
) -> list[Path]:
    """Write one file per split that is not empty; returns the files.

    host "trl": Parquet with ``prompt`` (messages), ``image``, ``uid``. "verl": Parquet with
    ``data_source``, ``prompt``, ``images``, ``reward_model``, ``extra_info``. "openrlhf": JSONL
    with ``input``, ``images`` (data URLs: OpenRLHF skips a path that it does not find), ``label``
    (a JSON object as text). "verifiers": JSONL with ``prompt`` (messages, the image as a data
    URL), ``uid``.
    limit: at most so many items of each split.
    Raises: ValueError on an unknown host, a folder that holds something, an empty corpus.
    """
    if host not in HOSTS:
        raise ValueError(f"host: expected {', '.join(HOSTS)}, got {host!r}")
    if limit is not None and limit < 1:
        raise ValueError(f"limit: expected at least 1, got {limit}")
    target = Path(folder)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ValueError(f"output: expected a new or empty folder, got {target}")
    items = {split: corpus.ids(split)[:limit] for split in splits}
    total = sum(map(len, items.values()))
    if not total:
        raise ValueError(f"splits: expected items in {', '.join(splits)}, got none")
    target.mkdir(parents=True, exist_ok=True)
    done = 0

    def drawn(split: str) -> Iterator[list[Row]]:
        nonlocal done
        for rows in _batches(corpus, items[split], host, split, style, prompt, threads):
            yield rows
            done += len(rows)
            progress("drawing", done, total)

    parquet = host in ("trl", "verl")
    files = []
    for split in (split for split, ids in items.items() if ids):
        files.append(target / f"{split}.{'parquet' if parquet else 'jsonl'}")
        if parquet:
            _write_parquet(files[-1], host, drawn(split))
        else:
            _write_lines(files[-1], drawn(split))
    return files


def _batches(
    corpus: Corpus,
    ids: Sequence[str],
    host: Host,
    split: str,
    style: ChartStyle,
    prompt: str,
    threads: int,
) -> Iterator[list[Row]]:
    """Rows of the items, a batch of charts at a time."""
    for begin in range(0, len(ids), BATCH):
        part = ids[begin : begin + BATCH]
        images = charts.render([corpus.series(item) for item in part], style, threads=threads)
        yield [
            _ROWS[host](item, charts.png(image), split, prompt)
            for item, image in zip(part, images, strict=True)
        ]


def _trl(uid: str, png: bytes, split: str, prompt: str) -> Row:
    del split
    return {
        "prompt": [{"role": "user", "content": prompt}],
        "image": {"bytes": png, "path": None},
        "uid": uid,
    }


def _verl(uid: str, png: bytes, split: str, prompt: str) -> Row:
    return {
        "data_source": DATA_SOURCE,
        "prompt": [{"role": "user", "content": IMAGE_TEXT + prompt}],
        "images": [{"bytes": png, "path": None}],
        "ability": "captioning",
        "reward_model": {"style": "rule", "ground_truth": uid},
        "extra_info": {"uid": uid, "split": split},
    }


def _openrlhf(uid: str, png: bytes, split: str, prompt: str) -> Row:
    del split
    label = json.dumps({"uid": uid})
    return {"input": IMAGE_TEXT + prompt, "images": [_data_url(png)], "label": label}


def _data_url(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode()


def _verifiers(uid: str, png: bytes, split: str, prompt: str) -> Row:
    del split
    content = [
        {"type": "image_url", "image_url": {"url": _data_url(png)}},
        {"type": "text", "text": prompt},
    ]
    return {"prompt": [{"role": "user", "content": content}], "uid": uid}


_ROWS: dict[Host, Callable[[str, bytes, str, str], Row]] = {
    "trl": _trl,
    "verl": _verl,
    "openrlhf": _openrlhf,
    "verifiers": _verifiers,
}


def _write_lines(path: Path, batches: Iterator[list[Row]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for rows in batches:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def _write_parquet(path: Path, host: Host, batches: Iterator[list[Row]]) -> None:
    """Parquet whose image columns ``datasets`` reads as images."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from datasets import Features, Image, List, Value

    text = Value("string")
    message = List({"role": text, "content": text})
    features = Features({"prompt": message, "image": Image(), "uid": text})
    if host == "verl":
        features = Features(
            {
                "data_source": text,
                "prompt": message,
                "images": List(Image()),
                "ability": text,
                "reward_model": {"style": text, "ground_truth": text},
                "extra_info": {"uid": text, "split": text},
            }
        )
    schema = features.arrow_schema
    with pq.ParquetWriter(path, schema) as writer:
        for rows in batches:
            writer.write_table(pa.Table.from_pylist(rows, schema=schema))
