"""The bottleneck as a metric: captions and windows in, a table with its controls out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.evaluate.bottleneck.config import Decoder
from trainer.evaluate.bottleneck.controls import caption_free, detached, naive
from trainer.evaluate.bottleneck.decoder import Fit, fit
from trainer.evaluate.bottleneck.encoder import Encoder
from trainer.evaluate.bottleneck.windows import SPANS, TEST, Task, Windows
from trainer.evaluate.table import Table

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Score:
    """Errors of the test windows in units of the train span's deviation.

    mse, mae f64[n_seeds,n_test]: means over the steps of a window. fits: one per seed; none for
    what is not learned.
    """

    mse: Floats
    mae: Floats
    fits: tuple[Fit, ...] = ()

    @property
    def mean(self) -> float:
        """Test MSE, the mean over seeds and windows."""
        return float(self.mse.mean())


def score(predicted: Floats, windows: Windows, task: Task, fits: tuple[Fit, ...] = ()) -> Score:
    """Errors of predictions f64[n_seeds,n_test,out]."""
    error = predicted - windows.targets(task)[windows.rows(TEST)]
    return Score(np.square(error).mean(axis=2), np.abs(error).mean(axis=2), fits)


def decode(
    captions: Mapping[str, str],
    windows: Windows,
    task: Task,
    encoder: Encoder,
    config: Decoder,
) -> Score:
    """Trains a decoder per seed on the captions of the train span and scores it on the test span.

    Raises:
        ValueError: a window without a caption, or a caption that the encoder cannot read whole.
    """
    lacking = [id_ for id_ in windows.ids if id_ not in captions]
    if lacking:
        raise ValueError(
            f"captions: expected one for all {len(windows.ids)} windows of {windows.name}, got "
            f"none for {len(lacking)} ({lacking[0]}, …)"
        )
    texts = [captions[id_] for id_ in windows.ids]
    fits = tuple(fit(texts, windows.targets(task), windows.split, encoder, config))
    return score(np.stack([one.predicted for one in fits]), windows, task, fits)


def shared_controls(
    windows: Windows, task: Task, encoder: Encoder, config: Decoder
) -> dict[str, float]:
    """Test MSE of what needs no captioner: "naive", "empty" and few true points, "points8" …

    The same for every captioner: to be computed once per benchmark.
    """
    found = {"naive": score(naive(windows, task)[None], windows, task).mean}
    for name, captions in caption_free(windows).items():
        found[name] = decode(captions, windows, task, encoder, config).mean
    return found


def bottleneck(
    captions: Mapping[str, str],
    windows: Windows,
    task: Task,
    encoder: Encoder,
    config: Decoder,
    *,
    shared: Mapping[str, float] | None = None,
) -> Table:
    """Test MSE of what is decoded from the captions; lower is better.

    shared: what `shared_controls` gave for these windows; None computes it. The table has a value
    for every test window, averaged over seeds, and the reason for every other one.

    Raises:
        ValueError: as `decode`.

    Source: the paper's information bottleneck (forecast 16, reconstruct 128 steps).
    """
    own = decode(captions, windows, task, encoder, config)
    away = decode(detached(captions, windows), windows, task, encoder, config)
    controls = shared_controls(windows, task, encoder, config) if shared is None else dict(shared)
    test = windows.span_ids(TEST)
    why = [*(f"{span} span" for span in SPANS), "reaches into another span"]
    return Table(
        f"{task}_mse",
        dict(zip(test, own.mse.mean(axis=0).tolist(), strict=True)),
        controls=controls | {"detached": away.mean},
        meta={"better": "lower", **_meta(own, windows, encoder, config)},
        missing={
            id_: why[split]
            for id_, split in zip(windows.ids, windows.split.tolist(), strict=True)
            if split != TEST
        },
    )


def _meta(own: Score, windows: Windows, encoder: Encoder, config: Decoder) -> dict[str, Any]:
    return {
        "encoder": encoder.name,
        "decoder": {**asdict(config), "seeds": list(config.seeds)},
        "mae": float(own.mae.mean()),
        "mse_by_seed": own.mse.mean(axis=1).tolist(),
        "best_epoch_by_seed": [one.best_epoch for one in own.fits],
        "epochs_by_seed": [one.n_epochs for one in own.fits],
        "windows": {
            name: int((windows.split == number).sum())
            for number, name in zip((*range(len(SPANS)), -1), (*SPANS, "purged"), strict=True)
        },
    }
