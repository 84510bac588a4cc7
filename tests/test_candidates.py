"""Candidate sets: pure draws, fixed sets, the other kinds, and decimals that tell all apart."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lineup_fast.candidates import (
    CandidateError,
    CandidateSet,
    auto_decimals,
    draw,
    fixed,
    tell_apart,
)
from lineup_fast.corpus import Corpus, build
from lineup_fast.readers import Channel


def _make(values: Any = None) -> Corpus:
    channels = [
        Channel(f"s{i}/x", np.random.default_rng(i).normal(size=240).cumsum().round(2))
        for i in range(4)
    ]
    return build(channels, lengths=[12], stride=6) if values is None else _rows(values)


def _rows(values: Any) -> Corpus:
    channels = [Channel(f"a/{i}", np.asarray(row, dtype=float)) for i, row in enumerate(values)]
    return build(channels, lengths=[len(values[0])], split=(1, 0, 0))


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return _make()


def test_draw_takes_from_the_pool(corpus: Corpus) -> None:
    seen: Counter[str] = Counter()
    item = corpus.ids("train")[5]
    for index in range(200):
        found = draw(corpus, item, k=4, seed=0, index=index)
        assert len(set(found.distractors)) == 3
        assert set(found.distractors) <= set(corpus.pool(item))
        assert found.series.shape == (4, 12)
        np.testing.assert_array_equal(found.series[0], corpus.series(item))
        np.testing.assert_array_equal(found.series[2], corpus.series(found.distractors[1]))
        seen.update(found.distractors)
    assert len(seen) == 8
    assert 45 < min(seen.values()) <= max(seen.values()) < 105  # 75 expected each


def test_draws_differ_by_seed_index_and_item(corpus: Corpus) -> None:
    a, b = corpus.ids()[:2]
    sets = [
        [draw(corpus, item, k=4, seed=seed, index=i).distractors for i in range(6)]
        for item, seed in itertools.product((a, b), (0, 1))
    ]
    assert all(len(set(found)) > 1 for found in sets)
    assert sets[0] != sets[1]


def test_order_and_process_do_not_matter(corpus: Corpus, tmp_path: Path) -> None:
    items = corpus.ids()[:12]
    asked = [(item, index, kind) for item in items for index in (0, 7)
             for kind in ("nearest", "random", "shuffle")]  # fmt: skip

    def ask(items: list[Any]) -> list[CandidateSet]:
        return [draw(corpus, i, k=4, seed=5, index=n, kind=kind) for i, n, kind in items]

    forward, backward = ask(asked), ask(asked[::-1])
    assert forward == backward[::-1]
    corpus.save(tmp_path / "c")
    code = (
        "import json, sys\n"
        "from lineup_fast.corpus import Corpus\n"
        "from lineup_fast.candidates import draw\n"
        "corpus = Corpus.load(sys.argv[1])\n"
        "asked = json.load(sys.stdin)\n"
        "rows = [draw(corpus, i, k=4, seed=5, index=n, kind=k) for i, n, k in asked]\n"
        "print(json.dumps([[r.distractors, r.series.tolist(), r.decimals] for r in rows]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "c")],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=True,
    )
    expected = [[list(r.distractors), r.series.tolist(), r.decimals] for r in forward]
    assert json.loads(done.stdout) == expected


def test_fixed_is_the_nearest_in_order(corpus: Corpus) -> None:
    for item in corpus.ids()[::9]:
        found = fixed(corpus, item, k=5)
        assert found.distractors == tuple(corpus.pool(item)[:4])
        assert found.index is None
    random = [fixed(corpus, item, k=4, kind="random") for item in corpus.ids()[:5]]
    assert random == [fixed(corpus, item, k=4, kind="random") for item in corpus.ids()[:5]]


def test_random_is_uniform_over_the_admissible(corpus: Corpus) -> None:
    item = corpus.ids("train")[3]
    mine = corpus.meta(item)
    allowed = {other for other in corpus.peers(item) if corpus.admissible(item, other)}
    seen: Counter[str] = Counter()
    for index in range(300):
        found = draw(corpus, item, k=4, seed=0, index=index, kind="random")
        assert len(set(found.distractors)) == 3
        seen.update(found.distractors)
    assert set(seen) <= allowed
    assert item not in allowed
    assert len(seen) == len(allowed)
    assert max(seen.values()) < 5 * 900 / len(allowed)
    for other in seen:
        theirs = corpus.meta(other)
        assert (theirs.split, theirs.length) == (mine.split, mine.length)
        if theirs.source == mine.source:
            assert abs(theirs.start - mine.start) >= 12 - 2


@pytest.mark.parametrize(("kind", "k"), [("shuffle", 4), ("swap", 4), ("reverse", 2),
                                         ("synthetic", 4)])  # fmt: skip
def test_made_up_distractors(corpus: Corpus, kind: Any, k: int) -> None:
    for item in corpus.ids()[::7]:
        found = draw(corpus, item, k=k, seed=0, index=3, kind=kind)
        target = found.series[0]
        assert len(np.unique(found.series, axis=0)) == k
        for name, row in zip(found.distractors, found.series[1:], strict=True):
            assert name.startswith(f"{item}:")
            np.testing.assert_array_equal(np.sort(row), np.sort(target))
            assert (row != target).mean() >= 0.25
            if ":reverse:" in name:
                np.testing.assert_array_equal(row, target[::-1])
            if ":swap:" in name:
                moved = [
                    not np.array_equal(row[a : a + 3], target[a : a + 3]) for a in (0, 3, 6, 9)
                ]
                assert sum(moved) == 2


def test_made_up_distractors_refuse_what_cannot_move() -> None:
    rows = [np.full(12, float(i)) for i in range(5)]
    flat = _make(rows)
    for kind, k in (("shuffle", 4), ("swap", 4), ("reverse", 2)):
        with pytest.raises(CandidateError, match=f"expected a {kind} that moves 25%"):
            draw(flat, flat.ids()[0], k=k, seed=0, index=0, kind=kind)  # type: ignore[arg-type]
    short = _make(np.random.default_rng(0).normal(size=(10, 4)))
    with pytest.raises(CandidateError, match="at least 8 steps"):
        draw(short, short.ids()[0], k=3, seed=0, index=0, kind="swap")
    with pytest.raises(ValueError, match="k=2 with 'reverse'"):
        draw(short, short.ids()[0], k=3, seed=0, index=0, kind="reverse")
    three = np.tile([1.0, 2.0, 4.0], 4)
    repeats = _make([three + 10 * i for i in range(5)])
    with pytest.raises(CandidateError):  # swapping quarters of a periodic series moves nothing
        draw(repeats, repeats.ids()[0], k=2, seed=0, index=0, kind="swap")


def test_too_few_neighbours_and_bad_arguments(corpus: Corpus) -> None:
    item = corpus.ids()[0]
    with pytest.raises(CandidateError, match="expected at least 9 neighbours, got 8"):
        draw(corpus, item, k=10, seed=0, index=0)
    with pytest.raises(ValueError, match="k: expected 2 to 12"):
        draw(corpus, item, k=1, seed=0, index=0)
    with pytest.raises(ValueError, match="kind: expected one of"):
        draw(corpus, item, k=4, seed=0, index=0, kind="near")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="decimals: expected auto or 0 to 12"):
        draw(corpus, item, k=4, seed=0, index=0, decimals=13)


@pytest.mark.parametrize(
    ("largest", "decimals"),
    [(0.0, 2), (0.05, 3), (0.5, 3), (1.0, 3), (9.99, 3), (10.0, 2), (123.0, 1), (1000.0, 0),
     (1e12, 0), (1e-12, 3)],
)  # fmt: skip
def test_auto_decimals(largest: float, decimals: int) -> None:
    assert auto_decimals(np.array([0.0, -largest])) == decimals


def test_decimals_grow_until_all_differ() -> None:
    rows = np.array([[1.0, 2.0], [1.0, 2.1], [1.0, 2.1004]])
    assert tell_apart(rows, 0) == 4
    assert tell_apart(rows, "auto") == 4
    assert tell_apart(rows[:2], "auto") == 3
    assert tell_apart(rows[:2], 7) == 7
    tiny = np.array([[1e-12, 3e-12], [1e-12, 5e-12]])
    assert tell_apart(tiny, "auto") == 12
    assert tell_apart(np.array([[1e12, 2e12], [1e12, 2e12 + 1]]), "auto") == 0
    for beyond in (np.array([[1e-14, 0.0], [2e-14, 0.0]]), np.array([[1.0], [1.0]])):
        with pytest.raises(CandidateError, match="print alike even at 12 decimals"):
            tell_apart(beyond)


@pytest.mark.parametrize("magnitude", [1e-12, 1e-3, 1e12])
def test_every_kept_item_can_be_asked(magnitude: float) -> None:
    rng = np.random.default_rng(0)
    channels = [Channel(f"a/{i}", rng.normal(size=240).cumsum() * magnitude) for i in range(3)]
    made = build(channels, lengths=[12], stride=6)
    assert made.ids()
    for item in made.ids():
        found = fixed(made, item, k=4)
        texts = {", ".join(f"{value:.{found.decimals}f}" for value in row) for row in found.series}
        assert len(texts) == 4
