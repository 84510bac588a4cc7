"""From a caption's vector to numbers: a small head, early stopping, one run per seed.

Source: reference, ts_downstream: Linear-GELU-Dropout-Linear behind the pooled vector, AdamW with a
constant rate, MSE, the state of the best validation restored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from trainer.evaluate.bottleneck.config import Decoder
from trainer.evaluate.bottleneck.encoder import Encoder, buckets
from trainer.evaluate.bottleneck.windows import TEST, TRAIN, VAL

Floats = NDArray[np.float64]


class Fit(NamedTuple):
    """What one seed gave: test predictions f64[n_test,out] in the order of the rows, the best
    validation MSE, and the epoch it was met in (from 1) of those that ran."""

    predicted: Floats
    val_mse: float
    best_epoch: int
    n_epochs: int


class Head(nn.Module):
    """Vector [n,h] → numbers [n,out]."""

    def __init__(self, width: int, out: int, config: Decoder) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(width, config.hidden),
            nn.GELU(),
            nn.Dropout(config.dropout),
            nn.Linear(config.hidden, out),
        )

    def forward(self, vectors: Tensor) -> Tensor:
        """f32[n,out] of f32[n,h]."""
        return self.layers(vectors)


def fit(
    texts: Sequence[str],
    targets: Floats,
    split: NDArray[np.int8],
    encoder: Encoder,
    config: Decoder,
) -> list[Fit]:
    """One fit per seed of ``config.seeds``: what the texts tell of targets f64[N,out].

    split i8[N]: TRAIN is learned from, VAL stops, TEST is predicted; other rows are not used.
    The same arguments give the same fits, whatever the state of torch's generator.

    Raises:
        ValueError: lengths that differ, or a text that is too long for the encoder.
    """
    if not len(texts) == len(targets) == len(split):
        raise ValueError(
            f"texts: expected one per target and split, got {len(texts)}, {len(targets)} and "
            f"{len(split)}"
        )
    rows = [np.flatnonzero(split == span).tolist() for span in (TRAIN, VAL, TEST)]
    if config.lora is None:
        vectors = encoder.encode(texts).to(encoder.device)
        return [_fit_frozen(vectors, targets, rows, encoder, config, s) for s in config.seeds]
    ids = encoder.token_ids(texts)
    return [_fit_lora(ids, targets, rows, encoder, config, seed) for seed in config.seeds]


def _fit_frozen(
    vectors: Tensor,
    targets: Floats,
    rows: list[list[int]],
    encoder: Encoder,
    config: Decoder,
    seed: int,
) -> Fit:
    with _seeded(seed, encoder.device):
        head = Head(vectors.shape[1], targets.shape[1], config).to(vectors.device)
        run = _Run(
            lambda some: head(vectors[some]),
            head.train,
            list(head.parameters()),
            lambda some, _: [some],
            torch.as_tensor(targets, dtype=torch.float32, device=vectors.device),
        )
        return _learn(run, rows, config, seed)


def _fit_lora(
    ids: list[list[int]],
    targets: Floats,
    rows: list[list[int]],
    encoder: Encoder,
    config: Decoder,
    seed: int,
) -> Fit:
    assert config.lora is not None
    lengths = [len(row) for row in ids]
    with _seeded(seed, encoder.device), encoder.adapted(config.lora) as learned:
        head = Head(encoder.width, targets.shape[1], config).to(encoder.device)

        def mode(on: bool) -> None:
            head.train(on)
            encoder.learn(on)

        run = _Run(
            lambda some: head(encoder.pooled([ids[row] for row in some])),
            mode,
            [*head.parameters(), *learned],
            lambda some, size: buckets(some, lengths, size),
            torch.as_tensor(targets, dtype=torch.float32, device=encoder.device),
        )
        return _learn(run, rows, config, seed)


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Torch's generators start from the seed, and are as they were afterwards."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


class _Run(NamedTuple):
    """What is learned: predict(rows) → f32[n,out]; mode(training); the parameters; how a batch of
    rows is dealt into passes; targets f32[N,out]."""

    predict: Callable[[list[int]], Tensor]
    mode: Callable[[bool], object]
    parameters: list[nn.Parameter]
    deal: Callable[[list[int], int], list[list[int]]]
    targets: Tensor


def _learn(run: _Run, rows: list[list[int]], config: Decoder, seed: int) -> Fit:
    """Epochs until validation gets no better; test predictions of the best state."""
    train, val, test = rows
    optimizer = torch.optim.AdamW(run.parameters, lr=config.lr, weight_decay=config.weight_decay)
    shuffle = torch.Generator().manual_seed(seed)
    best, best_epoch, epoch = float("inf"), 0, 0
    kept: list[Tensor] = []
    for epoch in range(1, config.epochs + 1):
        run.mode(True)
        order = [train[i] for i in torch.randperm(len(train), generator=shuffle).tolist()]
        for start in range(0, len(order), config.batch):
            batch = order[start : start + config.batch]
            optimizer.zero_grad()
            for some in run.deal(batch, config.micro_batch):
                error = (run.predict(some) - run.targets[some]).square().mean(dim=1)
                (error.sum() / len(batch)).backward()
            optimizer.step()
        found = _predict(run, val, config)
        mse = float((found - run.targets[val]).double().square().mean())
        if mse < best:
            best, best_epoch = mse, epoch
            kept = [parameter.detach().clone() for parameter in run.parameters]
        elif epoch - best_epoch >= config.patience:
            break
    if not kept:
        raise ValueError(f"lr: expected a finite validation error, got none with lr {config.lr}")
    with torch.no_grad():
        for parameter, value in zip(run.parameters, kept, strict=True):
            parameter.copy_(value)
    predicted = _predict(run, test, config).double().cpu().numpy()
    return Fit(predicted, best, best_epoch, epoch)


@torch.no_grad()
def _predict(run: _Run, rows: list[int], config: Decoder) -> Tensor:
    """Predictions in the order of rows, without dropout."""
    run.mode(False)
    found = torch.empty(len(rows), run.targets.shape[1], device=run.targets.device)
    place = {row: number for number, row in enumerate(rows)}
    for some in run.deal(rows, 4 * config.micro_batch):
        found[[place[row] for row in some]] = run.predict(some)
    return found
