"""Statistics against scipy and statsmodels, and what must hold for any data."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.weightstats import DescrStatsW

from trainer.evaluate import statistics as ours
from trainer.evaluate.table import Table

SEEDS = range(5)
P = st.floats(0, 1)


def _pairs(seed: int, n: int = 40) -> tuple[dict[str, float], dict[str, float]]:
    """Accuracies of two arms over the same n series, in quarters as K = 4 gives them."""
    rng = np.random.default_rng(seed)
    a, b = rng.integers(0, 5, (2, n)) / 4
    ids = [f"s{i}" for i in range(n)]
    return dict(zip(ids, a.tolist(), strict=True)), dict(zip(ids, b.tolist(), strict=True))


@pytest.mark.parametrize("seed", SEEDS)
def test_paired_z_is_that_of_statsmodels(seed: int) -> None:
    a, b = _pairs(seed)
    delta = np.array([*a.values()]) - np.array([*b.values()])
    z, p = DescrStatsW(delta).ztest_mean(0.0)
    assert ours.paired_z(a, b) == pytest.approx((z, p), rel=1e-12)
    shuffled = {id_: b[id_] for id_ in sorted(b)}  # pairs go by id, not by place
    assert list(shuffled) != list(b)
    assert ours.paired_z(a, shuffled) == ours.paired_z(a, b)


@pytest.mark.parametrize("seed", SEEDS)
def test_paired_t_is_that_of_scipy(seed: int) -> None:
    a, b = _pairs(seed, 5)
    t, p = scipy.stats.ttest_rel([*a.values()], [*b.values()])
    assert ours.paired_t(a, b) == pytest.approx((t, p), rel=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_holm_is_that_of_statsmodels(seed: int) -> None:
    p = np.random.default_rng(seed).random(18) ** 4
    assert ours.holm(p.tolist()) == pytest.approx(multipletests(p, method="holm")[1].tolist())


@pytest.mark.parametrize("seed", SEEDS)
def test_spearman_is_that_of_scipy_and_of_ranks(seed: int) -> None:
    a, b = _pairs(seed, 9)
    rho = ours.spearman(a, b)
    x, y = [*a.values()], [*b.values()]
    assert rho == pytest.approx(scipy.stats.spearmanr(x, y).statistic)
    ranks = scipy.stats.rankdata(x), scipy.stats.rankdata(y)
    assert rho == pytest.approx(np.corrcoef(*ranks)[0, 1])
    assert ours.spearman(a, {arm: math.exp(3 * value) for arm, value in a.items()}) == (
        pytest.approx(1.0)
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_the_interval_is_that_of_scipys_percentile_bootstrap(seed: int) -> None:
    a, _ = _pairs(seed, 60)
    low, high = ours.interval(a)
    theirs = scipy.stats.bootstrap(
        ([*a.values()],), np.mean, n_resamples=20_000, method="percentile",
        rng=np.random.default_rng(1),
    ).confidence_interval  # fmt: skip
    width = theirs.high - theirs.low
    assert (low, high) == pytest.approx((theirs.low, theirs.high), abs=0.08 * width)
    assert ours.interval(a) == (low, high)


def test_degenerate_differences() -> None:
    same = {"a": 0.5, "b": 0.25, "c": 1.0}
    assert ours.paired_z(same, same) == ours.paired_t(same, same) == (0.0, 1.0)
    # Both sides in tenths: the differences are 0.1 up to rounding, or nothing but rounding.
    rounded = {"a": 0.1 + 0.2, "b": 0.25, "c": 1.0}
    assert ours.paired_z(rounded, same | {"a": 0.3}) == (0.0, 1.0)
    below = {key: value - 0.25 for key, value in same.items()}
    assert ours.paired_z(same, below) == (math.inf, 0.0)
    assert ours.paired_t(below, same) == (-math.inf, 0.0)


def test_what_cannot_be_paired_is_refused() -> None:
    with pytest.raises(ValueError, match="expected the keys of a, got 2 in one only"):
        ours.paired_z({"a": 1.0, "b": 1.0}, {"a": 1.0, "c": 1.0})
    with pytest.raises(ValueError, match="expected at least 2 pairs, got 1"):
        ours.paired_t({"a": 1.0}, {"a": 1.0})
    with pytest.raises(ValueError, match="finite"):
        ours.paired_z({"a": 1.0, "b": math.nan}, {"a": 1.0, "b": 1.0})
    with pytest.raises(ValueError, match="p: expected 0 to 1"):
        ours.holm([0.5, 1.5])
    with pytest.raises(ValueError, match="b: expected means that differ"):
        ours.spearman({"x": 1.0, "y": 2.0}, {"x": 1.0, "y": 1.0})


@given(st.lists(P, max_size=30))
def test_holm_only_raises_and_keeps_the_order(p: list[float]) -> None:
    adjusted = ours.holm(p)
    assert all(raw <= new <= 1.0 for raw, new in zip(p, adjusted, strict=True))
    order = np.argsort(p, kind="stable")
    assert (np.diff(np.array(adjusted)[order]) >= 0).all()
    rejected = {i for i, value in enumerate(adjusted) if value < 0.05}
    bonferroni = {i for i, value in enumerate(p) if len(p) * value < 0.05}
    assert bonferroni <= rejected


@given(st.lists(P, min_size=1, max_size=12), P)
def test_a_larger_family_never_makes_holm_smaller(p: list[float], more: float) -> None:
    small, large = ours.holm(p), ours.holm([*p, more])
    assert all(a <= b for a, b in zip(small, large[:-1], strict=True))


@settings(max_examples=40)
@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=30))
def test_the_interval_contains_the_mean(values: list[float]) -> None:
    low, high = ours.interval({str(i): value for i, value in enumerate(values)})
    mean, slack = math.fsum(values) / len(values), 1e-9 * max(map(abs, values))
    assert low - slack <= mean <= high + slack
    assert min(values) - slack <= low
    assert high <= max(values) + slack


@settings(max_examples=20)
@given(st.lists(st.integers(0, 4), min_size=4, max_size=20).filter(lambda v: len(set(v)) > 1))
def test_the_interval_shrinks_with_more_series_of_the_same_kind(values: list[int]) -> None:
    def width(copies: int) -> float:
        low, high = ours.interval({str(i): v / 4 for i, v in enumerate(values * copies)})
        return high - low

    # sqrt(9) in theory; a width of few different sums of few values comes in steps.
    assert width(9) < 0.6 * width(1)


def test_windows_of_one_source_are_drawn_together() -> None:
    values = {f"s{i}": float(i // 20) for i in range(40)}
    sources = {id_: f"channel {int(value)}" for id_, value in values.items()}
    low, high = ours.interval(values)
    assert ours.interval(values, sources) == (0.0, 1.0)
    assert 0.2 < low < high < 0.8


def test_tables_are_compared_over_their_common_series() -> None:
    a, b = _pairs(0)
    mine = Table("entailment", a)
    kept = {id_: value for id_, value in b.items() if id_ != "s0"}
    theirs = Table("entailment", kept, missing={"s0": "too long"})
    found = ours.compare(mine, theirs)
    a.pop("s0")
    assert found.n == 39
    assert found.difference == pytest.approx(np.mean([*a.values()]) - np.mean([*kept.values()]))
    assert found.low < found.difference < found.high
    assert found.p == found.p_holm == ours.paired_z(a, kept)[1]
    adjusted = ours.family([found, found, found])
    assert [one.p_holm for one in adjusted] == [min(1.0, 3 * found.p)] * 3
    assert [one.p for one in adjusted] == [found.p] * 3
    with pytest.raises(ValueError, match="metric: expected entailment twice"):
        ours.compare(mine, Table("other", b))


def test_marks_and_chance() -> None:
    assert [ours.mark(p) for p in (0.2, 0.05, 0.03, 0.009, 0.0001)] == ["", "", "*", "**", "***"]
    assert ours.chance_corrected(0.25, 4) == 0.0
    assert ours.chance_corrected(1.0, 12) == 1.0
    assert ours.chance_corrected(0.0, 4) == pytest.approx(-1 / 3)
    with pytest.raises(ValueError, match="k: expected at least 2"):
        ours.chance_corrected(1.0, 1)


@given(st.lists(st.text(max_size=3), min_size=2, max_size=40, unique=True), st.integers(0, 99))
def test_a_derangement_has_no_fixed_point(ids: list[str], seed: int) -> None:
    found = ours.derangement(ids, seed)
    assert sorted(found) == sorted(found.values()) == sorted(ids)
    assert all(id_ != other for id_, other in found.items())
    assert found == ours.derangement(ids[::-1], seed)


@given(st.lists(st.integers(0, 4), min_size=2, max_size=30), st.integers(0, 99))
def test_a_derangement_repeats_no_caption_where_avoidable(kinds: list[int], seed: int) -> None:
    texts = {f"s{i}": f"caption {kind}" for i, kind in enumerate(kinds)}
    found = ours.derangement([*texts], seed, texts)
    assert sorted(found.values()) == sorted(texts)
    assert all(id_ != other for id_, other in found.items())
    repeats = sum(texts[id_] == texts[other] for id_, other in found.items())
    # Whoever has the majority's caption must get it, beyond as many as there are others.
    assert repeats == max(0, 2 * max(Counter(kinds).values()) - len(kinds))


def test_derangements_differ_by_seed_and_refuse_what_has_none() -> None:
    ids = [f"s{i}" for i in range(20)]
    assert len({tuple(ours.derangement(ids, seed).values()) for seed in range(10)}) == 10
    for wrong in (["a"], [], ["a", "a", "b"]):
        with pytest.raises(ValueError, match="ids: expected at least 2, each once"):
            ours.derangement(wrong, 0)
