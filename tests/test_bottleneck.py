"""The bottleneck with a small BERT of random weights: windows, encoder, decoder, controls."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from lineup_fast.corpus import item_id  # noqa: E402
from lineup_fast.readers import Channel  # noqa: E402
from tests.small_encoder import encoder_of  # noqa: E402
from trainer.evaluate.benchmark_build import Item, make_benchmark  # noqa: E402
from trainer.evaluate.benchmark_sources import windows as cut  # noqa: E402
from trainer.evaluate.bottleneck import controls, metric  # noqa: E402
from trainer.evaluate.bottleneck import windows as w  # noqa: E402
from trainer.evaluate.bottleneck.config import Decoder  # noqa: E402
from trainer.evaluate.bottleneck.decoder import fit  # noqa: E402
from trainer.evaluate.bottleneck.encoder import Encoder  # noqa: E402
from trainer.evaluate.bottleneck.templates import templates  # noqa: E402

TINY = w.Preset(8, 3, (0.0, 100.0), 200)


def channel(length: int = 900, breaks: tuple[int, ...] = ()) -> Channel:
    rng = np.random.default_rng(5)
    values = 20 * np.sin(np.arange(length) / 9) + rng.normal(size=length).cumsum()
    return Channel("made/x", values, breaks=breaks)


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Layers this small lose more to a second thread than they gain."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def windows() -> w.Windows:
    return w.of_channel("made", channel(), TINY)


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return encoder_of()


# --- windows ---------------------------------------------------------------------------------


@given(
    length=st.integers(60, 400),
    lookback=st.integers(1, 20),
    horizon=st.integers(1, 12),
)
@settings(max_examples=60, deadline=None)
def test_no_window_reaches_into_another_span(length: int, lookback: int, horizon: int) -> None:
    starts = np.arange(length - lookback - horizon + 1)
    bounds = [0, int(0.6 * length), int(0.8 * length), length]
    for start, span in zip(starts, w.spans(starts, lookback, horizon, length), strict=True):
        target = start + lookback
        own = next(i for i in range(3) if bounds[i] <= target < bounds[i + 1])
        inside = bounds[own] <= start and target + horizon <= bounds[own + 1]
        assert span == (own if inside else w.PURGED)


def test_windows_are_drawn_once_each_and_carry_what_follows(windows: w.Windows) -> None:
    again = w.of_channel("made", channel(), TINY)
    other = w.of_channel("made", channel(), TINY, seed=1)
    assert windows.ids == again.ids
    assert set(windows.ids) != set(other.ids)
    assert len(set(windows.ids)) == len(windows.ids) == TINY.n
    whole = cut(channel(), lookback=8, horizon=3, n=None, scale=(0.0, 100.0), fit_frac=0.6)
    (values,) = whole.channels.values()
    starts = {item.id: item.start for item in whole.items}
    for row, id_ in enumerate(windows.ids):
        start = starts[id_]
        assert id_ == item_id(windows.series[row], "made/x", start)
        np.testing.assert_array_equal(windows.series[row], values[start : start + 8])
        np.testing.assert_array_equal(windows.future[row], values[start + 8 : start + 11])


def test_the_scale_knows_the_train_span_only() -> None:
    plain = channel()
    wild = replace(plain, values=plain.values + np.where(np.arange(900) >= 540, 1e4, 0.0))
    preset = replace(TINY, scale="none", n=900)
    a, b = (w.of_channel("made", one, preset) for one in (plain, wild))
    np.testing.assert_array_equal(a.mean, b.mean)
    train = plain.values[:540]
    assert a.mean[0] == train.mean()
    assert a.std[0] == train.std() + 1e-8
    row = a.rows(w.TRAIN)[3]
    expected = (a.future[row] - train.mean()) / (train.std() + 1e-8)
    np.testing.assert_array_equal(a.targets("forecast")[row], expected)
    assert a.targets("reconstruct").shape == (len(a.ids), 8)


def test_gaps_are_not_crossed() -> None:
    broken = channel(breaks=(300,))
    found = w.of_channel("made", broken, replace(TINY, scale="none", n=900))
    assert len(found.ids) == 890 - 10  # 10 of the 890 starts reach over the gap
    item = Item(broken.values[295:303], "made/x", 295)
    with pytest.raises(ValueError, match="without a gap"):
        w.assemble("made", [item], {"made/x": broken.values}, 3, {"made/x": (300,)})


def test_a_benchmark_gives_the_same_windows(windows: w.Windows) -> None:
    gathered = cut(
        channel(), lookback=8, horizon=3, n=200, scale=(0.0, 100.0), fit_frac=0.6, seed=2020
    )
    benchmark = make_benchmark("made", gathered, threads=1)
    found = w.of_benchmark(benchmark)
    order = [found.ids.index(id_) for id_ in windows.ids]
    np.testing.assert_array_equal(found.targets("forecast")[order], windows.targets("forecast"))
    np.testing.assert_array_equal(found.split[order], windows.split)
    assert w.of_benchmark(benchmark, 2).future.shape == (200, 2)
    with pytest.raises(ValueError, match="at most the 3 steps"):
        w.of_benchmark(benchmark, 4)
    with pytest.raises(ValueError, match="from 90%"):
        w.of_benchmark(replace(benchmark, meta={**benchmark.meta, "fit_frac": 0.9}))
    with pytest.raises(ValueError, match="without what follows"):
        w.of_benchmark(replace(benchmark, channels={}))


def test_windows_that_do_not_fit_are_refused() -> None:
    values = channel().values
    items = [Item(values[at : at + 8], "made/x", at) for at in range(0, 880, 4)]
    channels = {"made/x": values}
    assert len(w.assemble("made", items, channels, 3).ids) == len(items)
    moved = [Item(values[1:9], "made/x", 0), *items[1:]]
    short = [Item(values[:7], "made/x", 0), *items[1:]]
    for bad, why in (
        (moved, "to equal its channel"),
        (short, "of one length"),
        ([*items, items[0]], "once, got one twice"),
        ([Item(values[-8:], "made/x", 892)], "without a gap"),
        (items[:40], "of the val span"),
    ):
        with pytest.raises(ValueError, match=why):
            w.assemble("made", bad, channels, 3)
    with pytest.raises(ValueError, match="that varies"):
        w.assemble("made", items, {"made/x": np.zeros(900)}, 3)
    with pytest.raises(ValueError, match="task: expected forecast or reconstruct"):
        w.assemble("made", items, channels, 3).targets("guess")  # type: ignore[arg-type]


# --- decoder ---------------------------------------------------------------------------------


def toy(n: int = 240) -> tuple[list[str], Any, Any]:
    """One letter per window tells its target; 60/20/20."""
    rng = np.random.default_rng(0)
    letter = rng.integers(0, 3, size=n)
    targets = np.stack([letter - 1.0, 1.0 - letter], axis=1) + 0.01 * rng.normal(size=(n, 2))
    split = np.repeat([0, 1, 2], [int(0.6 * n), int(0.2 * n), n - int(0.8 * n)]).astype(np.int8)
    return ["abc"[i] for i in letter], targets, split


def test_what_the_text_tells_is_decoded_and_nothing_else(encoder: Encoder) -> None:
    texts, targets, split = toy()
    config = Decoder(lr=1e-2, seeds=(1,))
    told = fit(texts, targets, split, encoder, config)[0]
    blind = fit(["x"] * len(texts), targets, split, encoder, config)[0]
    truth = targets[split == w.TEST]
    assert np.square(told.predicted - truth).mean() < 0.02
    assert np.square(blind.predicted - truth).mean() > 0.4
    assert np.ptp(blind.predicted, axis=0).max() < 1e-5  # one prediction for all


def test_fits_are_functions_of_their_seed(encoder: Encoder) -> None:
    texts, targets, split = toy(100)
    config = Decoder(epochs=3, seeds=(3, 4))
    torch.manual_seed(11)
    first = fit(texts, targets, split, encoder, config)
    state = torch.get_rng_state()
    torch.rand(5)
    second = fit(texts, targets, split, encoder, config)
    other = fit(texts, targets, split, encoder, replace(config, seeds=(4,)))
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a.predicted, b.predicted)
    np.testing.assert_array_equal(first[1].predicted, other[0].predicted)
    assert np.abs(first[0].predicted - first[1].predicted).max() > 1e-4
    torch.manual_seed(11)
    assert torch.equal(torch.get_rng_state(), state)  # the caller's generator is left alone


def test_the_best_state_is_what_predicts_and_patience_ends_it(encoder: Encoder) -> None:
    texts, targets, split = toy(100)
    # The validation span says the opposite of what is learned, so that an early epoch is best.
    targets[split == w.VAL] *= -1
    long = fit(texts, targets, split, encoder, Decoder(lr=1e-2, seeds=(1,), patience=4))[0]
    assert long.n_epochs == long.best_epoch + 4 < 30
    ended = Decoder(lr=1e-2, seeds=(1,), epochs=long.best_epoch)
    short = fit(texts, targets, split, encoder, ended)[0]
    np.testing.assert_array_equal(long.predicted, short.predicted)
    assert long.val_mse == short.val_mse


def test_bad_settings_are_refused(encoder: Encoder) -> None:
    texts, targets, split = toy(60)
    with pytest.raises(ValueError, match="one per target"):
        fit(texts[1:], targets, split, encoder, Decoder())
    with pytest.raises(ValueError, match="epochs: expected at least 1, got 0"):
        Decoder(epochs=0)
    with pytest.raises(ValueError, match="seeds"):
        Decoder(seeds=(1, 1))
    with pytest.raises(ValueError, match="lr: expected a finite"):
        fit(texts, targets, split, encoder, Decoder(lr=1e30, seeds=(1,)))


# --- controls and the table ------------------------------------------------------------------


def test_naive(windows: w.Windows) -> None:
    test = windows.rows(w.TEST)
    forecast = controls.naive(windows, "forecast")
    last = windows.targets("reconstruct")[test, -1]
    np.testing.assert_array_equal(forecast, np.stack([last] * 3, axis=1))
    mean = windows.targets("reconstruct")[windows.rows(w.TRAIN)].mean(axis=0)
    np.testing.assert_array_equal(controls.naive(windows, "reconstruct"), [mean] * len(test))


def test_nobody_keeps_his_caption_and_none_leaves_its_span(windows: w.Windows) -> None:
    own = {id_: f"of {id_}" for id_ in windows.ids}
    given = controls.detached(own, windows)
    assert given.keys() == own.keys()
    for span in range(3):
        ids = windows.span_ids(span)
        assert all(given[id_] != own[id_] for id_ in ids)
        assert sorted(given[id_] for id_ in ids) == sorted(own[id_] for id_ in ids)


def test_points_are_true_values_at_even_steps() -> None:
    series = np.array([0.0, 1, 2, 30, 4, 5, 6, -0.0])
    assert controls.points(series, 3, 0) == "0: 0, 4: 4, 7: 0"
    assert controls.points(series, 8, 1).count(":") == 8
    with pytest.raises(ValueError, match="2 to 8 points"):
        controls.points(series, 9, 0)


def test_decimals_show_three_digits() -> None:
    assert controls.printed_decimals(np.array([[3.0, 40.0]])) == 0
    assert controls.printed_decimals(np.array([[3.5, 40.0]])) == 1
    assert controls.printed_decimals(np.array([[0.0031, 0.002]])) == 5


def test_controls_longer_than_the_window_are_not_asked(windows: w.Windows) -> None:
    found = controls.caption_free(windows)
    assert found.keys() == {"empty", "points8"}  # 8 steps a window
    assert set(found["empty"].values()) == {""}


def test_templates(windows: w.Windows) -> None:
    exact, vague = (templates(windows, kind) for kind in ("exact", "vague"))
    row = 5
    id_, series = windows.ids[row], windows.series[row]
    assert exact[id_].startswith(f"starts at {series[0]:.0f}; peak {series.max():.0f}")
    assert not any(digit.isdigit() for text in vague.values() for digit in text)
    assert vague == templates(windows, "vague")
    with pytest.raises(ValueError, match="exact or vague"):
        templates(windows, "other")


def test_the_table_has_every_window_and_its_controls(windows: w.Windows, encoder: Encoder) -> None:
    long = encoder_of(max_length=256)
    config = Decoder(epochs=2, seeds=(1, 2))
    captions = templates(windows, "exact")
    table = metric.bottleneck(captions, windows, "reconstruct", long, config)
    assert table.check(windows.ids).metric == "reconstruct_mse"
    assert set(table.values) == set(windows.span_ids(w.TEST))
    assert set(table.missing.values()) <= {"train span", "val span", "reaches into another span"}
    assert table.controls.keys() == {"naive", "empty", "points8", "detached"}
    assert table.mean == pytest.approx(np.mean(table.meta["mse_by_seed"]))
    score = metric.decode(captions, windows, "reconstruct", long, config)
    truth = windows.targets("reconstruct")[windows.rows(w.TEST)]
    error = np.stack([one.predicted for one in score.fits]) - truth
    assert table.mean == pytest.approx(np.square(error).mean())
    assert table.meta["mae"] == pytest.approx(np.abs(error).mean())
    naive = controls.naive(windows, "reconstruct") - truth
    assert table.controls["naive"] == pytest.approx(np.square(naive).mean())
    given = metric.bottleneck(captions, windows, "reconstruct", long, config,
                              shared={"naive": 3.0})  # fmt: skip
    assert given.controls == {"naive": 3.0, "detached": table.controls["detached"]}
    assert given.values == table.values
    with pytest.raises(ValueError, match="got none for 1 "):
        metric.decode(dict(list(captions.items())[1:]), windows, "forecast", encoder, config)
