"""Charts and captions that the tiny captioner learns from, and the targets of its warm-up."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lineup_fast import charts, corpus
from lineup_fast.default_data import TEST_SOURCES, default_channels
from trainer.tiny import captioner_model as cm
from trainer.tiny import captions, series

Array = NDArray[np.float64]
LENGTHS = series.LENGTHS


class Charts:
    """Generated series, and ``windows`` real ones of the train split of the packaged data."""

    def __init__(self, windows: int, real_frac: float, seed: int) -> None:
        real = corpus.build(
            default_channels(),
            lengths=LENGTHS,
            scale=(series.LOW, series.HIGH),
            test_sources=TEST_SOURCES,
            sample=windows,
            seed=seed,
        )
        self.real_frac = real_frac
        rows: dict[int, list[Array]] = {length: [] for length in LENGTHS}
        for item in real.ids("train"):
            values = real.series(item)
            rows[len(values)].append(values)
        self.real = {length: np.stack(found) for length, found in rows.items()}

    def draw(self, length: int, count: int, rng: np.random.Generator) -> Array:
        """f64[count, length], a share of them real, the rest generated."""
        n_real = round(count * self.real_frac)
        pick = rng.integers(len(self.real[length]), size=n_real)
        made = series.generate(count - n_real, length, rng)
        return np.concatenate([self.real[length][pick], made])


def pixels(rows: list[Array]) -> Tensor:
    """f32[B * patches, 1176] of the charts of series, as the trainer computes them."""
    images = charts.render(rows, charts.TINY_STYLE, threads=1)
    return torch.from_numpy(charts.patches(images)[0])


# Shares of the kinds of captions. A captioner that always told all it sees would leave nothing to
# learn from the reward: the shipped one mostly says little, and can do better.
MIXTURES: dict[str, dict[str, float]] = {
    "reading": {"values": 0.4, "runs": 0.2, "facts": 0.4},
    "broad": {"empty": 0.04, "vague": 0.22, "few": 0.34, "some": 0.2, "full": 0.12, "values": 0.08},
    "shipped": {"empty": 0.04, "vague": 0.13, "brief": 0.61, "some": 0.14, "full": 0.06,
                "values": 0.02},
}  # fmt: skip


def told(values: Array, rng: np.random.Generator, mixture: str) -> str:
    """A true caption of the series f64[T], of a kind drawn from one of ``MIXTURES``."""
    shares = MIXTURES[mixture]
    kind = str(rng.choice(list(shares), p=list(shares.values())))
    match kind:
        case "empty":
            return captions.empty_talk(rng)
        case "vague":
            return captions.vague(values, rng)
        case "brief":
            kinds = [kind for kind in captions.KINDS if kind not in ("run", "selected")]
            first, count = int(rng.integers(len(kinds))), 1 + int(rng.random() < 0.4)
            wording = 0 if rng.random() < 0.6 else None  # so that the likeliest caption is plain
            return _facts(values, rng, kinds[first : first + count], wording=wording)
        case "few":
            return _some(values, rng, int(rng.integers(1, 3)), run=1)
        case "some":
            return _some(values, rng, int(rng.integers(3, 5)), run=int(rng.integers(1, 4)))
        case "facts":
            return _some(values, rng, int(rng.integers(3, 6)), run=int(rng.integers(1, 5)))
        case "runs":
            return _facts(values, rng, ("run", "run"), run=int(rng.integers(2, 6)))
        case "values":
            return _facts(values, rng, ("selected",), selected=int(rng.integers(3, 9)))
        case _:
            kinds = [kind for kind in captions.KINDS if kind != "selected"]
            return _facts(values, rng, kinds, run=3)


def _some(values: Array, rng: np.random.Generator, count: int, run: int) -> str:
    """``count`` kinds of facts, in their order; runs of values only where ``run`` > 1."""
    kinds = [kind for kind in captions.KINDS if run > 1 or kind != "run"]
    chosen = np.sort(rng.permutation(len(kinds))[:count])
    return _facts(values, rng, [kinds[i] for i in chosen], run=run)


def _facts(
    values: Array,
    rng: np.random.Generator,
    kinds: Sequence[str],
    *,
    run: int = 1,
    selected: int = 1,
    wording: int | None = None,
) -> str:
    parts = captions.phrases(values, rng, kinds=kinds, selected=selected, run=run, wording=wording)
    # Behind a run, commas between phrases could be taken for commas between values.
    style = int(rng.integers(3)) if run == 1 else int(rng.choice((0, 2)))
    return captions.join(parts, rng, style)


def warm_up_targets(rows: Array, columns: int) -> tuple[Tensor, Tensor, Tensor]:
    """Values [n, T], heights of the line [n, columns, 6] and facts [n, 9], all about -1..1.

    Facts: means of the quarters, highest and lowest value, the steps of those, the length.
    """
    n, length = rows.shape
    width = charts.TINY_STYLE.width
    # The first and last point of the tiny chart lie 23 and 218 pixels from its left edge.
    places = (np.arange(columns * cm.HEIGHTS) + 0.5) * width / (columns * cm.HEIGHTS)
    at = (places - 23) / (218 - 23) * (length - 1)
    heights = np.stack([np.interp(at, np.arange(length), row) for row in rows])
    facts = [
        *rows.reshape(n, 4, -1).mean(2).T,
        rows.max(1),
        rows.min(1),
        rows.argmax(1) * (100 / (length - 1)),
        rows.argmin(1) * (100 / (length - 1)),
        np.full(n, 100.0 * (length == max(LENGTHS))),
    ]
    everything = rows, heights.reshape(n, columns, -1), np.stack(facts, 1)
    values, line, told_facts = (torch.tensor(x / 50 - 1, dtype=torch.float32) for x in everything)
    return values, line, told_facts
