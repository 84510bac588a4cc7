"""Reader x K: how well verifiers of different sizes identify series among more and more others.

Candidate sets are the fixed ones, K - 1 nearest in order, so that a larger K only adds candidates.
All cells are about the same items. Source: the paper's reader grid.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lineup_fast.prompts import Recipe
from lineup_fast.resampling import mean_interval
from lineup_fast.rewards import IdentificationReward
from lineup_fast.scoring import check_ids, read_captions
from trainer.record import write_json

if TYPE_CHECKING:
    from lineup_fast.corpus import Corpus
    from lineup_fast.verifiers.base import Verifier

EMPTY = "empty"  # captions without a word: the floor
AT_ONCE = 64


@dataclass(frozen=True)
class Reading:
    """What is read by whom.

    captions: text by item, by captioner; readers: what makes a verifier, by name; ks: ascending.
    recipe: words of `Recipe` but k. left_out: items that some file lacks or that have too few
    neighbours for the largest K. made_for: the K that a reader was trained on, where only some.
    paths: where readers come from; cells of another path are asked again.
    """

    corpus: Corpus
    items: list[str]
    captions: dict[str, dict[str, str]]
    readers: dict[str, Callable[[], Verifier]]
    ks: list[int]
    recipe: dict[str, Any] = field(default_factory=dict)
    left_out: int = 0
    made_for: dict[str, list[int]] = field(default_factory=dict)
    paths: dict[str, str] = field(default_factory=dict)


def prepare(
    corpus: Corpus,
    files: dict[str, Path],
    readers: dict[str, Callable[[], Verifier]],
    ks: Sequence[int],
    *,
    n: int | None = None,
    recipe: dict[str, Any] | None = None,
    made_for: dict[str, list[int]] | None = None,
    paths: dict[str, str] | None = None,
) -> Reading:
    """Captions of files, for the items that all cells can be about; empty captions always with it.

    Raises:
        ValueError: ids that are not of the corpus, two captions of an item, nothing in common.
    """
    ks = sorted(set(ks))
    for k in ks:
        Recipe(k=k, **(recipe or {}))  # its own checks
    if not ks or not readers:
        raise ValueError("reading: expected at least one k and one reader, got none")
    captions: dict[str, dict[str, str]] = {}
    for name, path in files.items():
        if name == EMPTY:
            raise ValueError(f"captions: expected another name than {EMPTY}, got it")
        pairs = read_captions(path)
        check_ids(corpus, pairs)
        captions[name] = dict(pairs)
        if len(captions[name]) < len(pairs):
            raise ValueError(f"{path}: expected one caption per item, got several")
    known = [set(found) for found in captions.values()] or [set(corpus.ids("test"))]
    every = set().union(*known)
    able = set.intersection(*known) & set(corpus.ids(k=ks[-1]))
    items = sorted(able)[:n]
    if not items:
        raise ValueError(
            f"captions: expected items that all files have, with {ks[-1] - 1} neighbours, got none"
        )
    captions = {EMPTY: dict.fromkeys(items, ""), **captions}
    left_out = len(every) - len(able)
    return Reading(
        corpus, items, captions, readers, list(ks), recipe or {}, left_out,
        made_for or {}, paths or {},
    )  # fmt: skip


def cells(reading: Reading, folder: Path) -> Iterator[dict[str, Any]]:
    """Every cell, reader by reader; those that are on disk are not asked again.

    folder: of the cells' files, which hold the accuracy of every item.

    Raises:
        ValueError: candidate sets are not nested.
    """
    folder.mkdir(parents=True, exist_ok=True)
    smallest: dict[tuple[str, str], dict[str, float]] = {}
    for reader, load in reading.readers.items():
        verifier: Verifier | None = None
        for captioner in reading.captions:
            for k in reading.ks:
                path = folder / f"{captioner}.{reader}.k{k}.json"
                key = _key(reading, captioner, reader, k)
                found = json.loads(path.read_text("utf-8")) if path.is_file() else {}
                if found.get("key") != key:
                    verifier = verifier or load()
                    found = {"key": key} | _asked(reading, captioner, k, verifier)
                    write_json(path, found)
                accuracy = found["accuracy"]
                base = smallest.setdefault((captioner, reader), corrected(accuracy, reading.ks[0]))
                yield summary(reading, captioner, reader, k, found, base)
        if verifier is not None and hasattr(verifier, "close"):
            verifier.close()


def _key(reading: Reading, captioner: str, reader: str, k: int) -> str:
    """All that decides a cell, of the reader its path."""
    texts = [[item, reading.captions[captioner][item]] for item in reading.items]
    path = reading.paths.get(reader)
    words = [reading.corpus.fingerprint, Recipe(k=k, **reading.recipe).name, texts, path]
    return hashlib.sha256(json.dumps(words).encode()).hexdigest()[:16]


def _asked(reading: Reading, captioner: str, k: int, verifier: Verifier) -> dict[str, Any]:
    """One cell: the accuracy of every item that has an answer."""
    reward = IdentificationReward(reading.corpus, verifier, Recipe(k=k, **reading.recipe))
    widest = IdentificationReward(
        reading.corpus, verifier, Recipe(k=reading.ks[-1], **reading.recipe)
    )
    for item in reading.items[:AT_ONCE]:
        few = reward.candidates(item).distractors
        if widest.candidates(item).distractors[: k - 1] != few:
            raise ValueError(f"{item}: expected the sets of K to be nested, got others")
    accuracy: dict[str, float] = {}
    counts: dict[str, int] = {}
    reasons: set[str] = set()
    started = time.perf_counter()
    for start in range(0, len(reading.items), AT_ONCE):
        items = reading.items[start : start + AT_ONCE]
        batch = reward.score([reading.captions[captioner][item] for item in items], items)
        for item, right, valid in zip(items, batch.accuracy, batch.valid, strict=True):
            if valid:
                accuracy[item] = float(right)
        reasons |= {reason for reason in batch.reason if reason}
        counts = {name: counts.get(name, 0) + count for name, count in batch.counts.items()}
    return {
        "accuracy": accuracy,
        "counts": counts,
        "reasons": sorted(reasons)[:5],
        "seconds": time.perf_counter() - started,
        "recipe": reward.recipe.name,
        "fingerprints": reward.fingerprints,
    }


def corrected(accuracy: dict[str, float], k: int) -> dict[str, float]:
    """Chance-corrected accuracy of every item: 0 at 1/K, 1 where it is always identified."""
    return {item: (value - 1 / k) / (1 - 1 / k) for item, value in accuracy.items()}


def summary(
    reading: Reading,
    captioner: str,
    reader: str,
    k: int,
    found: dict[str, Any],
    base: dict[str, float],
) -> dict[str, Any]:
    """A cell as it is tabulated.

    base: corrected accuracies of the same captioner and reader at the smallest K, for the paired
    difference. Intervals resample sources, whose windows are not independent; they are too narrow
    where there are few, so that their number stands beside them.
    """
    values = corrected(found["accuracy"], k)
    exact = np.array(list(found["accuracy"].values()))
    shared = [item for item in values if item in base]
    difference = np.array([values[item] - base[item] for item in shared])

    def interval(numbers: np.ndarray, items: Sequence[str]) -> tuple[float, float]:
        if not len(numbers):
            return float("nan"), float("nan")
        return mean_interval(numbers, [reading.corpus.meta(item).source for item in items])

    low, high = interval(np.array(list(values.values())), list(values))
    low_change, high_change = interval(difference, shared)
    empty = not len(exact)
    known = reading.made_for.get(reader, reading.ks)
    return {
        "captions": captioner,
        "reader": reader,
        "k": k,
        "n": len(values),
        "sources": len({reading.corpus.meta(item).source for item in values}),
        "invalid": len(reading.items) - len(values),
        "accuracy": float("nan") if empty else float(exact.mean()),
        "corrected": float("nan") if empty else float(np.mean(list(values.values()))),
        "low": low,
        "high": high,
        "change": float(difference.mean()) if len(difference) else float("nan"),
        "change_low": low_change,
        "change_high": high_change,
        "frac_perfect": float("nan") if empty else float((exact == 1).mean()),
        "frac_zero": float("nan") if empty else float((exact == 0).mean()),
        "unparsed": found["counts"].get("unparsed", 0),
        "seconds": found["seconds"],
        "recipe": found["recipe"],
        "verifier": found["fingerprints"]["verifier"],
        "reasons": found["reasons"],
        "note": None if k in known else f"reader made for K {', '.join(map(str, known))} only",
    }
