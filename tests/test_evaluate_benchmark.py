"""Benchmarks in memory and on disk."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lineup_fast.corpus import build
from lineup_fast.readers import Channel
from trainer.evaluate.benchmark import Benchmark


def _benchmark() -> Benchmark:
    values = np.random.default_rng(0).normal(size=200)
    corpus = build([Channel("walk/x", values)], lengths=[12], k=2, split=(1, 0, 0), stride=12)
    ids = corpus.ids(k=1)
    return Benchmark(
        "walk",
        corpus,
        {ids[0]: ("up, dann ↓", "down")},
        {ids[1]: "too long"},
        {"walk/x": values},
        {"made": "here"},
    )


def test_a_benchmark_tells_where_a_series_comes_from() -> None:
    found = _benchmark()
    id_ = found.ids[3]
    start, values = found.start(id_), found.channels["walk/x"]
    assert found.source(id_) == "walk/x"
    assert start == 36
    assert np.array_equal(found.series(id_), values[start : start + 12])
    assert np.array_equal(found.after(id_, 5), values[start + 12 : start + 17])
    assert set(found.neighbours(id_)) <= set(found.ids) - {id_}
    assert found.asked_ids == [found.ids[0], *found.ids[2:]]
    with pytest.raises(ValueError, match="expected at most 8 values behind"):
        found.after(found.ids[-1], 9)


def test_a_benchmark_comes_back_from_its_folder(tmp_path: Path) -> None:
    made = _benchmark()
    made.save(tmp_path / "b")
    made.save(tmp_path / "b")  # an earlier one is replaced
    found = Benchmark.load(tmp_path / "b")
    assert (found.name, found.ids, found.references) == (made.name, made.ids, made.references)
    assert (found.not_asked, found.meta) == (made.not_asked, made.meta)
    assert np.array_equal(found.channels["walk/x"], made.channels["walk/x"])
    assert found.fingerprint == made.fingerprint


def test_a_changed_or_missing_benchmark_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected a folder made by"):
        Benchmark.load(tmp_path)
    _benchmark().save(tmp_path / "b")
    file = tmp_path / "b" / "benchmark.json"
    document = json.loads(file.read_text())
    document["references"] = {}
    file.write_text(json.dumps(document))
    with pytest.raises(ValueError, match="expected fingerprint"):
        Benchmark.load(tmp_path / "b")


def test_ids_that_are_not_there_are_refused() -> None:
    made = _benchmark()
    with pytest.raises(ValueError, match="references: expected ids of the corpus, got 'x'"):
        replace(made, references={"x": ("a",)})
    with pytest.raises(ValueError, match="not_asked: expected ids of the corpus, got 'x'"):
        replace(made, not_asked={"x": "a"})
    with pytest.raises(ValueError, match="references: expected at least one text"):
        replace(made, references={made.ids[0]: ()})
