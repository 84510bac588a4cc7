"""The corpus: splits, scaling, filters, pools against a brute force, fingerprint, save and load."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lineup_fast import corpus, windows
from lineup_fast.corpus import Corpus, build
from lineup_fast.readers import Channel


def _walk(seed: int, length: int = 400) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.random.default_rng(seed).normal(size=length).cumsum().round(3)


def _channels(n: int = 5, length: int = 400) -> list[Channel]:
    return [Channel(f"set{i}/x", _walk(i, length), f"domain{i}", "m") for i in range(n)]


@pytest.fixture(scope="module")
def small() -> Corpus:
    return build(_channels(), lengths=[12, 24], stride=5)


def _run(a: Any, b: Any) -> int:
    """Longest common contiguous run of equal values, the slow way."""
    best = 0
    for i in range(len(a)):
        for j in range(len(b)):
            n = 0
            while i + n < len(a) and j + n < len(b) and a[i + n] == b[j + n]:
                n += 1
            best = max(best, n)
    return best


@pytest.mark.parametrize("overlap", ["run", "window"])
@pytest.mark.parametrize("features_scale", ["zscore", "none"])
def test_pools_equal_a_brute_force(overlap: Any, features_scale: Any) -> None:
    made = build(
        _channels(4, 130), lengths=[12], stride=4, overlap=overlap, features_scale=features_scale
    )
    everything = made.ids(k=1)
    x = np.stack([made.series(item) for item in everything])
    phi = np.stack([x.mean(1), x.std(1), x.min(1), x.max(1)], axis=1)
    z = (phi - phi.mean(0)) / phi.std(0) if features_scale == "zscore" else phi
    metas = [made.meta(item) for item in everything]
    checked = 0
    for i, item in enumerate(everything):
        np.testing.assert_allclose(made.phi(item), phi[i], rtol=1e-12)
        distance = ((z - z[i]) ** 2).sum(1)
        expected = []
        for j in np.lexsort((np.arange(len(z)), distance)):
            if j == i or metas[j].split != metas[i].split or (x[i] == x[j]).all():
                continue
            if overlap == "run":
                shared = _run(x[i].round(4), x[j].round(4))
            else:
                same = metas[i].source == metas[j].source
                shared = 12 - abs(metas[i].start - metas[j].start) if same else 0
            if shared <= 2:
                expected.append(everything[j])
        assert made.pool(item) == expected[:8]
        checked += len(expected[:8])
    assert checked > 400


def test_overlapping_windows_of_one_source_are_never_neighbours(small: Corpus) -> None:
    checked = 0
    for item in small.ids():
        mine = small.meta(item)
        for other in small.pool(item):
            theirs = small.meta(other)
            assert (theirs.length, theirs.split) == (mine.length, mine.split)
            if theirs.source == mine.source:
                overlap = mine.length - abs(mine.start - theirs.start)
                assert overlap <= max(1, int(0.2 * mine.length))
                checked += 1
    assert checked > 50


def test_splits_are_disjoint_by_source_and_time(small: Corpus) -> None:
    spans: dict[str, dict[str, list[int]]] = {}
    for item in small.ids(k=1):
        meta = small.meta(item)
        spans.setdefault(meta.source, {}).setdefault(meta.split, []).extend(
            [meta.start, meta.start + meta.length]
        )
    held = {f"{name}/x" for name in small.settings["test_sources"]}
    assert len(held) == 1
    for source, splits in spans.items():
        if source in held:
            assert set(splits) == {"test"}
        else:
            assert set(splits) == {"train", "val"}
            assert max(splits["train"]) <= min(splits["val"])


def test_named_and_timed_test_splits() -> None:
    named = build(_channels(4), lengths=[12], test_sources=["set1", "set3"])
    assert {named.meta(item).source for item in named.ids("test")} == {"set1/x", "set3/x"}
    timed = build(_channels(2), lengths=[12], split=(0.6, 0.2, 0.2))
    assert timed.summary.split_by == {"set0": "time", "set1": "time"}
    ends = {s: [timed.meta(i).start for i in timed.ids(s, k=1)] for s in ("train", "val", "test")}
    assert max(ends["train"]) + 12 <= 240 <= min(ends["val"])
    assert max(ends["val"]) + 12 <= 320 <= min(ends["test"])
    with pytest.raises(ValueError, match="test_sources: expected among"):
        build(_channels(4), lengths=[12], test_sources=["set9"])


def test_windows_cross_no_break() -> None:
    channel = Channel("a/x", _walk(0, 100), breaks=(30, 31, 77))
    made = build([channel], lengths=[10], stride=1, split=(1, 0, 0))
    starts = [made.meta(item).start for item in made.ids(k=1)]
    assert starts == [*range(21), *range(31, 68), *range(77, 91)]


def test_bad_values_are_cut_out_and_counted() -> None:
    values = _walk(0, 200)
    values[[50, 51, 120]] = np.nan, np.inf, -np.inf
    made = build(
        [Channel("a/x", values), Channel("a/y", _walk(1, 200)), Channel("a/z", np.array([]))],
        lengths=[10],
    )
    assert sum(r.count for r in made.summary.refusals if r.file == "a/x") == 3
    assert any(r.file == "a/z" and "no values" in r.reason for r in made.summary.refusals)
    good = values[np.isfinite(values)]
    for item in made.ids(k=1):
        meta, series = made.meta(item), made.series(item)
        if meta.source == "a/x":
            np.testing.assert_array_equal(series, good[meta.start : meta.start + 10])
            assert not meta.start < 50 < meta.start + 10
            assert not meta.start < 118 < meta.start + 10
    with pytest.raises(ValueError, match="expected at least one with finite values"):
        build([Channel("a/x", np.full(9, np.nan))], lengths=[3])
    with pytest.raises(ValueError, match="longest channel: 9 values"):
        build([Channel("a/x", _walk(0, 9))], lengths=[30])


def test_duplicates_and_constants_are_counted() -> None:
    values = np.concatenate([np.full(40, 5.0), _walk(1, 160)])
    made = build(
        [Channel("a/x", values), Channel("b/x", values)], lengths=[10], stride=10, split=(1, 0, 0)
    )
    counts = made.summary.lengths[10]
    assert counts["windows"] == 40
    assert counts["duplicates"] == 20 + 3
    assert counts["series"] == counts["windows"] - counts["duplicates"]
    assert counts["constant"] == 1
    assert counts["constant_runs"] >= 1
    x = np.stack([made.series(item) for item in made.ids(k=1)])
    assert len(np.unique(x, axis=0)) == len(x)


def test_constant_windows_of_different_level_are_kept_and_compared() -> None:
    channels = [Channel(f"a/{i}", np.full(12, float(i))) for i in range(6)]
    made = build(channels, lengths=[12], split=(1, 0, 0))
    assert len(made.ids()) == 6
    assert made.summary.lengths[12]["constant_runs"] == 6
    assert np.isfinite([made.phi(item) for item in made.ids()]).all()


def test_one_point_series() -> None:
    made = build([Channel("a/x", np.arange(20.0))], lengths=[1], split=(1, 0, 0))
    item = made.ids()[0]
    assert made.series(item).shape == (1,)
    assert made.phi(item).tolist() == [0.0, 0.0, 0.0, 0.0]
    # with one step to share, the budget max(1, ...) admits everything but equal values
    assert len(made.pool(item)) == 8


@pytest.mark.parametrize("magnitude", [1e-12, 1e12, 1e140])
def test_extreme_magnitudes(magnitude: float) -> None:
    channels = [replace(c, values=c.values * magnitude) for c in _channels(3, 300)]
    made = build(channels, lengths=[12], stride=6)
    plain = build(_channels(3, 300), lengths=[12], stride=6)
    group = made._groups[12]
    largest = np.abs(group.windows.values).max()
    assert group.decimals == max(4, 4 - int(np.floor(np.log10(largest))))
    if magnitude >= 1:
        assert len(made.ids()) == len(plain.ids())
        assert all(len(made.pool(item)) >= 3 for item in made.ids())
    else:  # printed with 12 decimals many of these are equal: they are left out and counted
        assert made.summary.lengths[12]["duplicates"] >= plain.summary.lengths[12]["duplicates"]
        assert len(made.ids()) > 20


def test_too_few_neighbours_are_left_out_but_known() -> None:
    channels = [Channel(f"a/{i}", _walk(i, 12)) for i in range(3)]
    made = build(channels, lengths=[12], k=4, split=(1, 0, 0))
    assert made.ids() == []
    assert made.summary.lengths[12]["left_out"] == 3
    assert len(made.ids(k=3)) == 3
    more = [Channel(f"a/{i}", _walk(i, 12)) for i in range(3, 5)]
    short = build([*channels, *more], lengths=[12], k=4, split=(1, 0, 0))
    assert short.summary.lengths[12]["short_pool"] == 5
    assert len(short.ids()) == 5


def test_scale_uses_the_train_part_only() -> None:
    values = _walk(0, 400)
    later = values.copy()
    later[320:] += 1000.0  # beyond the cut of train and val: must not change the scaling
    first, second = (
        build([Channel("a/x", v), Channel("b/x", v)], lengths=[12], scale=(0, 100))
        for v in (values, later)
    )
    assert first.settings["scale_bounds"] == second.settings["scale_bounds"]
    for item in second.ids(k=1):
        x = second.series(item)
        assert ((x >= 0) & (x <= 100) & (x == np.rint(x))).all()
        assert not np.signbit(x).any()
    low, high = first.settings["scale_bounds"]["a/x"]
    np.testing.assert_allclose([low, high], np.quantile(values[:320], [0.005, 0.995]))
    item = first.ids("train")[0]
    start = first.meta(item).start
    expected = np.rint(np.clip((values[start : start + 12] - low) / (high - low), 0, 1) * 100)
    np.testing.assert_array_equal(first.series(item), expected)


def test_scale_refuses_constants_and_leaves_out_flat_windows() -> None:
    spiky = np.zeros(200)
    spiky[::20] = np.arange(10) + 1.0
    made = build(
        [Channel("a/constant", np.ones(200)), Channel("a/spiky", spiky), *_channels(2)],
        lengths=[10],
        scale=(0, 100),
    )
    refused = [r for r in made.summary.refusals if r.file == "a/constant"]
    assert "constant" in refused[0].reason
    assert made.summary.lengths[10]["flat"] >= 30
    values = np.stack([made.series(item) for item in made.ids(k=1)])
    assert not windows.flat(values, (0, 100)).any()
    assert windows.flat(
        np.array([[1.0, 1, 1, 50], [1, 1, 50, 50], [1, 2, 3, 4]]), (0, 100)
    ).tolist() == [
        True,
        False,
        True,
    ]


def test_sample_has_equal_shares() -> None:
    channels = [Channel("long/x", _walk(9, 20_000)), *_channels(3, 1_000)]
    made = build(channels, lengths=[12, 24, 48], sample=301, split=(0.8, 0.1, 0.1), seed=3)
    counts = made.summary.lengths
    assert [counts[n]["series"] for n in (12, 24, 48)] == [101, 100, 100]
    sources = [made.meta(item).source for item in made.ids("train", k=1)]
    assert sources.count("long/x") < len(sources) / 2
    again = build(channels, lengths=[12, 24, 48], sample=301, split=(0.8, 0.1, 0.1), seed=3)
    other = build(channels, lengths=[12, 24, 48], sample=301, split=(0.8, 0.1, 0.1), seed=4)
    assert again.fingerprint == made.fingerprint
    assert set(other.ids(k=1)) != set(made.ids(k=1))


@pytest.mark.parametrize(
    ("available", "total", "expected"),
    [([5, 5, 5], 6, [2, 2, 2]), ([1, 9, 9], 9, [1, 4, 4]), ([2, 0, 1], 9, [2, 0, 1]),
     ([5, 5, 5], 2, [1, 1, 0]), ([], 3, [])],
)  # fmt: skip
def test_fair_shares(available: list[int], total: int, expected: list[int]) -> None:
    assert windows.fair_shares(available, total) == expected


CHANGES: list[dict[str, Any]] = [
    {"lengths": [12]},
    {"sample": 40},
    {"seed": 1},
    {"scale": (0, 100)},
    {"scale": (0, 99)},
    {"eta": 0.1},
    {"overlap": "window"},
    {"features_scale": "none"},
    {"k": 5},
    {"split": (0.7, 0.2, 0.1)},
    {"test_sources": ["set0"]},
    {"stride": 7},
]


def test_fingerprint_changes_with_any_setting(small: Corpus) -> None:
    base: dict[str, Any] = {"lengths": [12, 24], "stride": 5}
    assert build(_channels(), **base).fingerprint == small.fingerprint
    found = {build(_channels(), **(base | change)).fingerprint for change in CHANGES}
    found.add(small.fingerprint)
    one = _channels()
    one[2] = replace(one[2], values=one[2].values + 1e-3)
    found.add(build(one, **base).fingerprint)
    one[2] = replace(_channels()[2], source="renamed/x")
    found.add(build(one, **base).fingerprint)
    assert len(found) == len(CHANGES) + 3


def test_ids_are_content_hashes(small: Corpus) -> None:
    items = small.ids(k=1)
    assert len(set(items)) == len(items)
    meta = small.meta(items[7])
    assert items[7] == corpus.item_id(small.series(items[7]), meta.source, meta.start)
    assert items[7] != corpus.item_id(small.series(items[7]), meta.source, meta.start + 1)
    with pytest.raises(ValueError, match="id: expected an item"):
        small.series("nothing")
    with pytest.raises(ValueError, match="read-only"):
        small.series(items[0])[0] = 1.0


def test_save_and_load(small: Corpus, tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "c"
    small.save(folder)
    small.save(folder)  # replaces itself
    loaded = Corpus.load(folder)
    assert loaded.fingerprint == small.fingerprint
    assert loaded.settings == small.settings
    assert loaded.lengths == small.lengths == (12, 24)
    assert loaded.summary.table() == small.summary.table()
    for split in ("train", "val", "test", None):
        assert loaded.ids(split) == small.ids(split)
    for item in small.ids()[::17]:
        np.testing.assert_array_equal(loaded.series(item), small.series(item))
        assert loaded.meta(item) == small.meta(item)
        assert loaded.pool(item) == small.pool(item)
    assert sorted(path.name for path in folder.parent.iterdir()) == ["c"]


def test_load_and_save_refuse_what_is_no_corpus(small: Corpus, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected a corpus"):
        Corpus.load(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(ValueError, match="expected a new folder or a corpus"):
        small.save(tmp_path / "mine")
    small.save(tmp_path / "c")
    values = np.load(tmp_path / "c" / "length-12.values.npy")
    values[0, 0] += 1
    np.save(tmp_path / "c" / "length-12.values.npy", values)
    with pytest.raises(ValueError, match="expected fingerprint"):
        Corpus.load(tmp_path / "c")


def test_ready_made_windows_keep_captions_and_places() -> None:
    walk = _walk(0, 600)
    rows = [
        Channel("hub/OT", walk[s : s + 12], start=s, window=True, caption=f"from {s}")
        for s in range(0, 580, 6)
    ]
    made = build([*rows, rows[3]], lengths=[12, 24])
    assert made.lengths == (12,)
    assert made.summary.lengths[12]["duplicates"] == 1
    by_split = {s: [made.meta(i).start for i in made.ids(s, k=1)] for s in ("train", "val", "test")}
    assert max(by_split["train"]) + 12 <= min(by_split["val"])
    for item in made.ids():
        assert made.caption(item) == f"from {made.meta(item).start}"
    rows = [replace(c, source=f"hub/{i}", start=0) for i, c in enumerate(rows)]
    placeless = build(rows, lengths=[12], split=(0.5, 0.25, 0.25))
    assert placeless.summary.split_by == {"hub": "row"}
    counts = placeless.summary.lengths[12]
    assert min(counts["train"], counts["val"], counts["test"]) > 5


@pytest.mark.parametrize(
    ("bad", "name"),
    [({"lengths": []}, "lengths"), ({"lengths": [0]}, "lengths"), ({"sample": 0}, "sample"),
     ({"scale": (1, 1)}, "scale"), ({"eta": 2.0}, "eta"), ({"overlap": "x"}, "overlap"),
     ({"features_scale": "x"}, "features_scale"), ({"k": 1}, "k"), ({"k": 13}, "k"),
     ({"split": (0, 1, 1)}, "split"), ({"stride": 0}, "stride")],
)  # fmt: skip
def test_bad_arguments(bad: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name}: expected"):
        build(_channels(), **({"lengths": [12]} | bad))


@pytest.mark.parametrize("damage", ["{}", "{", '{"settings": {"format": 1}}', None])
def test_a_damaged_corpus_is_one_clear_error(
    small: Corpus, tmp_path: Path, damage: str | None
) -> None:
    small.save(tmp_path / "c")
    if damage is None:
        (tmp_path / "c" / "length-12.phi.npy").write_bytes(b"")
    else:
        (tmp_path / "c" / "corpus.json").write_text(damage)
    with pytest.raises(ValueError, match="expected an undamaged corpus"):
        Corpus.load(tmp_path / "c")
