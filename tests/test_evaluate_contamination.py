"""Which benchmark series were trained on: source intervals, contained sources, shared runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lineup_fast import kernels, readers
from lineup_fast.corpus import Corpus, build
from lineup_fast.readers import Channel
from trainer.evaluate import benchmark_sources as sources
from trainer.evaluate.benchmark_build import Gathered, Item, make_benchmark
from trainer.evaluate.contamination import contamination, place

_FOLDERS = [parent / "shared" / "data" for parent in Path(__file__).resolve().parents]
DATA = next((folder for folder in _FOLDERS if folder.is_dir()), _FOLDERS[1])
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="needs ../shared/data")


def _walk(seed: int, n: int = 400) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=n).cumsum()


def _corpus(values: np.ndarray, source: str = "train/x", **options: object) -> Corpus:
    words = {"lengths": [16], "k": 2, "split": (0.6, 0.2, 0.2)} | options
    return build([Channel(source, values)], **words)  # type: ignore[arg-type]


def test_windows_of_the_same_stretch_are_found_and_those_beside_it_are_not() -> None:
    channel = Channel("train/x", _walk(0))
    corpus = _corpus(channel.values)
    found = contamination(
        make_benchmark("b", sources.windows(channel, lookback=16, horizon=0, n=None)), corpus
    )
    made = make_benchmark("b", sources.windows(channel, lookback=16, horizon=0, n=None))
    starts = {made.start(id_) for id_ in found.interval}
    # Windows cover the channel up to the last val window; the test part after it is free.
    last = max(corpus.meta(i).start for i in corpus.ids(k=1) if corpus.meta(i).split != "test")
    assert starts == set(range(last + 16))
    assert found.n == len(made.ids) == 385
    assert found.ids == set(found.interval)  # runs are found in no other window
    assert len(found.run) > 300


def test_contained_sources_are_compared_on_one_axis_of_time() -> None:
    assert place("etth2/OT", 10, 24) == ("ett2/ot", 40, 133)
    assert place("x:embedding_cleaned_ETTm2/OT", 40, 93) == ("ett2/ot", 40, 133)
    assert place("etth1/OT", 10, 1) == ("ett1/ot", 40, 41)
    assert place("Some/Thing", 10, 24) == ("some/thing", 10, 34)


def test_a_copied_run_is_found_under_another_name() -> None:
    trained, ours = _walk(1), _walk(2)
    corpus = _corpus(trained)
    window = next(corpus.series(i) for i in corpus.ids("train", k=1))
    items = []
    for n_shared in (3, 4):  # the budget of 16 steps is 3
        values = ours[50 * n_shared :][:40].copy()
        values[20 : 20 + n_shared] = window[5 : 5 + n_shared]
        items.append(Item(values, f"new/{n_shared}"))
    items += [Item(_walk(9, 40), f"new/{i}") for i in range(1)]
    found = contamination(make_benchmark("b", Gathered(items), k=2), corpus)
    assert set(found.run) == {items[1].id}
    assert "shares 4 of 40 steps with" in found.run[items[1].id]
    assert found.interval == {}


def test_runs_of_one_value_are_counted_and_prove_nothing() -> None:
    trained = _walk(1)
    trained[100:110] = 0.0
    ours = _walk(2, 40)
    ours[10:20] = 0.0
    items = [Item(ours, "new/0"), Item(_walk(3, 40), "new/1")]
    corpus = _corpus(trained, stride=1)
    found = contamination(make_benchmark("b", Gathered(items), k=2), corpus)
    assert (found.ids, found.constant) == (set(), 1)
    assert found.summary()["constant_run_only"] == 1


def test_found_runs_are_those_of_a_slow_comparison() -> None:
    rng = np.random.default_rng(5)
    trained = rng.integers(0, 6, 300).astype(float)
    items = [Item(rng.integers(0, 6, 20).astype(float), f"new/{i}") for i in range(120)]
    corpus = _corpus(trained, stride=3)
    made = make_benchmark("b", Gathered(items), k=2)
    found = contamination(made, corpus)
    others = [corpus.series(i) for s in ("train", "val") for i in corpus.ids(s, k=1)]
    expected, constant = set(), set()
    for id_ in made.ids:
        values = made.series(id_)
        for other in others:
            for at in range(len(values) - 3):
                gram = values[at : at + 4]
                if kernels.longest_run(gram, other, decimals=4) == 4:
                    (constant if np.ptp(gram) == 0 else expected).add(id_)
    assert 0 < len(expected) < 120
    assert found.run.keys() == expected
    assert found.constant == len(constant - expected)


def test_standardised_windows_are_compared_in_original_units() -> None:
    channel = Channel("mine/y", _walk(4))
    corpus = _corpus(channel.values, source="other/name")
    made = make_benchmark("b", sources.windows(channel, lookback=16, horizon=0, n=50))
    assert made.meta["scale"] == "standard"
    found = contamination(made, corpus)
    assert found.interval == {}
    assert len(found.run) > 20
    assert found.note == ""


def test_values_on_different_scales_are_not_compared_and_that_is_said() -> None:
    channel = Channel("mine/y", _walk(4))
    made = make_benchmark("b", sources.windows(channel, lookback=16, horizon=0, n=50))
    found = contamination(made, _corpus(channel.values, source="other/name", scale=(0, 100)))
    assert found.run == {}
    assert found.note == (
        "values not compared: those of the benchmark are in original units, of the corpus "
        "scaled to 0..100; source intervals only"
    )


@needs_data
def test_real_pools_contain_each_other_and_nothing_else() -> None:
    channels = [c for c in readers.read(DATA / "ettm2.csv.gz")[0] if c.source == "ettm2/OT"]
    corpus = build(channels, lengths=[96], stride=96)
    hourly = sources.long_channel("etth2", str(DATA))
    made = make_benchmark("e", sources.windows(hourly, lookback=128, horizon=16, n=200))
    found = contamination(made, corpus)
    boundary = max(
        corpus.meta(i).start + 96 for i in corpus.ids(k=1) if corpus.meta(i).split != "test"
    )
    assert found.interval.keys() == {i for i in made.ids if 4 * made.start(i) < boundary}
    assert len(found.interval) > 150
    flow = sources.long_channel("saugeen", str(DATA))
    other = make_benchmark("s", sources.windows(flow, lookback=128, horizon=16, n=200))
    assert contamination(other, corpus).ids == set()


@needs_data
def test_short_runs_of_whole_numbers_are_no_proof() -> None:
    weather = [c for c in readers.read(DATA / "nyc_weather.parquet")[0] if "temp" in c.source]
    corpus = build(weather, lengths=[24], sample=1000, scale=(0, 100))
    hourly = sources.long_channel("etth2", str(DATA))
    gathered = sources.windows(hourly, lookback=24, horizon=6, n=300, scale=(0.0, 100.0))
    found = contamination(make_benchmark("e", gathered), corpus)
    assert found.eta == 0.5
    assert len(found.run) <= 3
