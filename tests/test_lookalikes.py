"""Neighbours in a feature space of one's own, against a plain search."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lineup_fast.corpus import Corpus, build
from lineup_fast.readers import Channel
from lineup_fast.rewards import IdentificationReward
from lineup_fast.verifiers.scripted import ScriptedVerifier
from trainer.baselines import lookalikes
from trainer.baselines.lookalikes import with_lookalikes


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    rng = np.random.default_rng(0)
    channels = [
        Channel(source=f"s{n}", values=rng.standard_normal(700).cumsum().round(2)) for n in range(3)
    ]
    return build(channels, lengths=[8, 12], seed=0)


@pytest.fixture(scope="module")
def features(corpus: Corpus) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((len(corpus.ids()), 6)) * [1, 9, 1, 1, 1, 1]


def plain(corpus: Corpus, features: np.ndarray, item: str, size: int) -> list[str]:
    """Sorted by distance among equal length and split, then the admissible ones."""
    items = corpus.ids()
    meta = corpus.meta(item)
    length = [i for i, other in enumerate(items) if corpus.meta(other).length == meta.length]
    z = (features - features[length].mean(0)) / features[length].std(0)
    here = items.index(item)
    others = [i for i in length if corpus.meta(items[i]).split == meta.split and i != here]
    others.sort(key=lambda i: (np.linalg.norm(z[i] - z[here]), i))
    return [items[i] for i in others if corpus.admissible(item, items[i])][:size]


@pytest.mark.parametrize("searched", [False, True])
def test_pools_equal_a_plain_search(
    corpus: Corpus, features: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    searched: bool,
) -> None:  # fmt: skip
    if searched:
        pytest.importorskip("hnswlib")
        monkeypatch.setattr(lookalikes, "SEARCHED", 8)
        monkeypatch.setattr(lookalikes, "OVER_FETCH", 3)
    np.save(tmp_path / "f.npy", features)
    view = with_lookalikes(corpus, tmp_path / "f.npy")
    items = corpus.ids()[::17]
    hits = [len(set(view.pool(i)) & set(plain(corpus, features, i, 8))) for i in items]
    assert np.sum(hits) >= (0.95 if searched else 1) * 8 * len(items)
    assert view.recall > 0.95
    if not searched:
        assert all(view.pool(i) == plain(corpus, features, i, 8) for i in items)
        assert view.recall == 1.0
    assert view.fingerprint != corpus.fingerprint
    assert view.ids("train") == corpus.ids("train")


def test_a_poor_search_is_measured_as_such(
    corpus: Corpus, features: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Blind:
        """Proposes the first rows, whatever is asked."""

        def knn_query(self, row: Any, k: int) -> tuple[np.ndarray, None]:
            return np.arange(k)[None], None

    monkeypatch.setattr(lookalikes, "SEARCHED", 8)
    monkeypatch.setattr(lookalikes, "_index", lambda z: Blind())
    found = lookalikes.neighbours(corpus, corpus.ids(), features, 8)
    assert found.searched
    assert found.recall < 0.9


def test_the_reward_draws_from_these_pools(
    corpus: Corpus, features: np.ndarray, tmp_path: Path
) -> None:
    np.save(tmp_path / "f.npy", features)
    view = with_lookalikes(corpus, tmp_path / "f.npy")
    reward = IdentificationReward(view, ScriptedVerifier(lambda *_: [0.0] * 4))
    item = corpus.ids("train")[3]
    sets = [set(reward.candidates(item, index).distractors) for index in range(40)]
    assert set.union(*sets) == set(view.pool(item))
    assert list(reward.candidates(item).distractors) == view.pool(item)[:3]
    assert reward.score(["x"], [item], index=0).valid.all()
    assert reward.fingerprints["corpus"] == view.fingerprint


def test_features_that_do_not_fit_are_refused(corpus: Corpus, tmp_path: Path) -> None:
    n = len(corpus.ids())
    path = tmp_path / "f.npy"
    for values, match in [
        (np.zeros((n - 1, 2)), "expected shape"),
        (np.zeros(n), "expected shape"),
        (np.full((n, 2), np.nan), "finite"),
        (np.full((n, 2), "x"), "finite"),
    ]:
        np.save(path, values)
        with pytest.raises(ValueError, match=f"lookalikes: expected.*{match}|{match}"):
            with_lookalikes(corpus, path)
    path.write_text("no array")
    with pytest.raises(ValueError, match="npy"):
        with_lookalikes(corpus, path)
    np.save(path, np.zeros((n, 2)))
    with pytest.raises(ValueError, match="admissible neighbours of every series"):
        with_lookalikes(corpus, path, k=len(corpus.ids()))
