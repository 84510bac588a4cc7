"""Windows that stay in their channels: places, kernels that take them for rows, the corpus."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

from lineup_fast import NeighbourIndex, SlidingWindows, corpus, kernels, windows
from lineup_fast.readers import Channel
from tests.parity import both

CHANNELS = [np.random.default_rng(i).normal(size=n).cumsum() for i, n in enumerate((60, 3, 41))]


def _scored(phi: Any) -> Any:
    return (phi - phi.mean(axis=0)) / phi.std(axis=0)


@pytest.mark.parametrize("stride", [1, 5])
def test_windows_by_channel_and_time(stride: int) -> None:
    cut = SlidingWindows.cut(CHANNELS, 12, stride=stride)
    expected, places = [], []
    for source, channel in enumerate(CHANNELS):
        for start in range(0, len(channel) - 11, stride):
            expected.append(channel[start : start + 12])
            places.append((source, start))
    np.testing.assert_array_equal(cut.rows(slice(None)), expected)
    assert list(zip(cut.source, cut.start, strict=True)) == places
    assert cut.shape == (len(cut), 12) == np.shape(expected)
    some = cut.take(np.array([7, 2]))
    np.testing.assert_array_equal(some.rows(slice(None)), np.array(expected)[[7, 2]])
    assert np.shares_memory(some.values, cut.values)
    assert len(SlidingWindows.cut(CHANNELS, 61)) == 0


@pytest.mark.parametrize("rule", ["run", "window"])
def test_kernels_take_windows_for_rows(rule: str) -> None:
    cut = SlidingWindows.cut(CHANNELS, 12)
    cut = cut.take(np.random.default_rng(5).permutation(len(cut))[:50])
    rows = cut.rows(slice(None))
    phi = both("features", cut, rtol=1e-12)
    np.testing.assert_array_equal(phi, kernels.features(rows))
    options: dict[str, Any] = {"k": 8, "max_run": 3, "decimals": 4, "rule": rule}
    found = both("neighbours", _scored(phi), cut, **options)
    where = {"source": cut.source, "start": cut.start}
    np.testing.assert_array_equal(found, kernels.neighbours(_scored(phi), rows, **options, **where))
    assert (found >= 0).any()
    del options["k"]
    index, dense = (
        NeighbourIndex(_scored(phi), series, **options, **where) for series in (cut, rows)
    )
    asked = cut.take(slice(0, 9))
    np.testing.assert_array_equal(index.query(_scored(phi)[:9], asked, k=8), found[:9])
    np.testing.assert_array_equal(index.admissible(found), dense.admissible(found))


def test_saved_with_windows_and_loaded_with_rows(tmp_path: Any) -> None:
    cut = SlidingWindows.cut(CHANNELS, 12)
    z = _scored(kernels.features(cut))
    index = NeighbourIndex(z, cut, max_run=3, decimals=4, rule="window")
    index.save(tmp_path / "index")
    for series in (cut, cut.rows(slice(None))):
        again = NeighbourIndex.load(tmp_path / "index", series)
        np.testing.assert_array_equal(again.search(5), index.search(5))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"at": [0, 2]}, "at: expected 0 to 1, got 0 to 2"),
        ({"at": [-1, 0]}, "at: expected 0 to 1, got -1 to 0"),
        ({"steps": 0}, "steps: expected 1 to 2147483647, got 0"),
        ({"steps": 5}, "at: expected 0 to -1, got 0 to 1"),
        ({"values": [[1.0]]}, r"values: expected float64 \[V\] with no empty side, got shape"),
        ({"source": [0]}, "source: expected 2 entries as in at, got 1"),
        ({"start": [0.5, 1]}, r"start: expected int64 \[N\], got dtype float64"),
    ],
)
def test_bad_windows(change: dict[str, Any], text: str) -> None:
    good = {"values": np.arange(4.0), "at": [0, 1], "steps": 3, "source": [0, 0], "start": [0, 1]}
    SlidingWindows(**good)
    with pytest.raises(ValueError, match=text):
        SlidingWindows(**(good | change))


def test_bad_values_and_no_windows_are_refused_by_the_kernels() -> None:
    cut = SlidingWindows.cut([[1.0, 2.0, np.nan, 4.0]], 2)
    with pytest.raises(
        ValueError, match="series: expected finite values, got nan at row 1, step 1"
    ):
        both("features", cut, rtol=1e-12)
    with pytest.raises(ValueError, match="series: expected at least one window, got none"):
        kernels.features(cut.take([]))
    for channels, text in (([], "channels: expected at least one"), ([[]], r"channels\[0\]: exp")):
        with pytest.raises(ValueError, match=text):
            SlidingWindows.cut(channels, 2)


def test_windows_are_copied_only_where_they_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    channels = [
        Channel(f"set{i}/x", np.random.default_rng(i).normal(size=n).cumsum())
        for i, n in enumerate((100_000, 1_000, 1_000))
    ]
    options: dict[str, Any] = {"lengths": [96], "stride": 1, "sample": 200, "scale": (0, 100)}
    monkeypatch.setattr(windows, "BLOCK", 1 << 16)
    tracemalloc.start()
    try:
        made = corpus.build(channels, **options)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert made.summary.lengths[96]["windows"] > 90_000
    assert peak < 40e6  # all windows at once would take 77e6
    monkeypatch.setattr(windows, "BLOCK", 1 << 20)
    assert corpus.build(channels, **options).fingerprint == made.fingerprint
