"""CaTS-Bench: series out of its question pool, references out of its captions or their rewriting.

Layout of the hub data set mhfisher/CaTSBench, unpacked (QA.zip, test_data.zip):

    QA/tasks.json                              questions: task_type, ts_name, ground_truth,
                                               prompt or prompt_no_image with the values in it
    test_data/synth_gt_captions/NAME.txt       machine-made captions
    test_data/human_rewritten_captions/NAME.txt
"""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lineup_fast.readers import MAX_MAGNITUDE
from trainer.evaluate.benchmark_build import Gathered, Item

HUB_ID = "mhfisher/CaTSBench"
MIN_POINTS = 8
CAPTIONS = {"synthetic": "synth_gt_captions", "human": "human_rewritten_captions"}

_NUMBERS = r"[-+0-9.,eE\s]+"
_LISTED = re.compile(rf"Here is a time series:\s*\n({_NUMBERS}?)\n\s*\n")
_OPTION = re.compile(rf"\((\w)\)\s*\[({_NUMBERS})\]")
_SPLITS = ("test", "train", "val")


def cats(path: str, *, references: str = "synthetic") -> Gathered:
    """One series per ts_name of the question pool, at least 8 points.

    path: folder of the unpacked data set, or the hub id. references: "synthetic", "human", or a
    JSONL file with "id" (the ts_name) and "rewritten", as the reference evaluation has them.
    Series without a reference are kept out and counted; neighbours come from all lengths' own
    group, whatever the domain.

    Raises:
        ValueError: files that are not there or of another layout.

    Source: reference, build_cats_series: the first question of a series that shows its values
    counts; questions that compare two series are passed over.
    """
    folder = _unpacked(path)
    pool = next((p for p in (folder / "QA/tasks.json", folder / "tasks.json") if p.is_file()), None)
    if pool is None:
        raise ValueError(
            f"data: expected a folder with QA/tasks.json, got {path}; unpack QA.zip and the test "
            f"data of https://huggingface.co/datasets/{HUB_ID} there"
        )
    found = Gathered(meta={"loader": "cats", "pool": str(pool), "references": references})
    series = _series(pool, found)
    texts = _references(folder, references, series)
    for name, values in series.items():
        if name not in texts:
            found.dropped["series without a reference"] += 1
            continue
        domain = _domain(name)
        found.items.append(Item(values, f"cats {domain}/{name}", 0, (texts[name],), "", domain))
    return found


def _unpacked(path: str) -> Path:
    if path != HUB_ID or Path(path).is_dir():
        return Path(path)
    try:
        from huggingface_hub import snapshot_download

        folder = Path(snapshot_download(HUB_ID, repo_type="dataset"))
    except (ImportError, OSError, ValueError) as error:
        raise ValueError(
            f"data: expected {HUB_ID} to be in reach, got {str(error).splitlines()[0]}; download "
            f"https://huggingface.co/datasets/{HUB_ID} elsewhere, unpack its zip files into one "
            "folder and give that"
        ) from error
    for packed in sorted(folder.glob("*.zip")):
        if not (folder / packed.stem).is_dir():
            with zipfile.ZipFile(packed) as archive:
                archive.extractall(folder)
    return folder


def _series(pool: Path, found: Gathered) -> dict[str, NDArray[np.float64]]:
    """The values by ts_name, sorted by it."""
    try:
        rows: list[dict[str, Any]] = json.loads(pool.read_text(encoding="utf-8"))
        kinds = [(row["ts_name"], row["task_type"], row) for row in rows]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"data: expected questions with ts_name and task_type in {pool}, got {error!r}"
        ) from error
    series: dict[str, NDArray[np.float64]] = {}
    unread: dict[str, str] = {}
    for name, kind, row in kinds:
        if kind.startswith("ts_comparison"):
            found.dropped["questions that compare two series"] += 1
            continue
        if name in series:
            continue
        values = values_of(row)
        if values is None:
            unread[name] = "series whose values no question shows"
        elif len(values) < MIN_POINTS:
            unread[name] = f"series of fewer than {MIN_POINTS} points"
        else:
            series[name] = values
    for name, why in unread.items():
        if name not in series:
            found.dropped[why] += 1
    return dict(sorted(series.items()))


def values_of(question: dict[str, Any]) -> NDArray[np.float64] | None:
    """The described series of a question f64[T]: the listed one, or the option that is right."""
    text = question.get("prompt_no_image") or question.get("prompt") or ""
    if question["task_type"].startswith("ts_retrieval"):
        right = str(question.get("ground_truth", "")).strip().upper()
        inside = next((m[2] for m in _OPTION.finditer(text) if m[1].upper() == right), None)
    else:
        listed = _LISTED.search(text)
        inside = listed[1] if listed else None
    if inside is None:
        return None
    try:
        values = np.array([float(cell) for cell in inside.split(",") if cell.strip()])
    except ValueError:
        return None
    return values if len(values) and (np.abs(values) <= MAX_MAGNITUDE).all() else None


def _domain(name: str) -> str:
    """The part of a name before its numbers and split: "crime" of crime_12_test."""
    parts = name.split("_")
    while parts and (parts[-1].isdigit() or parts[-1] in _SPLITS):
        parts.pop()
    return "_".join(parts) or "unknown"


def _references(folder: Path, references: str, series: dict[str, Any]) -> dict[str, str]:
    if references not in CAPTIONS:
        return rewritten(Path(references))
    places = [p / CAPTIONS[references] for p in (folder / "test_data", folder)]
    place = next((p for p in places if p.is_dir()), None)
    if place is None:
        raise ValueError(
            f"references: expected {places[0]}, a JSONL file, {' or '.join(CAPTIONS)}, got none"
        )
    files = {name: place / f"{name}.txt" for name in series}
    texts = {n: f.read_text(encoding="utf-8").strip() for n, f in files.items() if f.is_file()}
    return {name: text for name, text in texts.items() if text}


def rewritten(file: Path) -> dict[str, str]:
    """References by id out of JSONL with "id" and "rewritten".

    Raises:
        ValueError: no such file, a line without them, an empty text, an id twice.
    """
    if not file.is_file():
        raise ValueError(f"references: expected a JSONL file, got {file}")
    texts: dict[str, str] = {}
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        try:
            row = json.loads(line)
            id_, text = str(row["id"]), str(row["rewritten"]).strip()
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f'references: expected "id" and "rewritten" in {file}, line {number}, got {error!r}'
            ) from None
        if not text or id_ in texts:
            why = "an empty one" if not text else "a second one"
            raise ValueError(f"references: expected one text of {id_} in {file}, got {why}")
        texts[id_] = text
    return texts
