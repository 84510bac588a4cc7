"""Series for the tiny models: generated ones of many kinds, real windows, and look-alike sets.

All values are whole numbers 0..100, as float64 arrays.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
LENGTHS = (12, 24)
LOW, HIGH = 0.0, 100.0


def _walk(t: Array, rng: np.random.Generator) -> Array:
    return np.cumsum(rng.normal(size=t.size))


def _smooth_walk(t: Array, rng: np.random.Generator) -> Array:
    steps = np.cumsum(rng.normal(size=t.size + 4))
    return np.convolve(steps, np.ones(5) / 5, "valid")


def _reverting(t: Array, rng: np.random.Generator) -> Array:
    keep, noise = rng.uniform(0.0, 0.95), rng.normal(size=t.size)
    out = np.empty(t.size)
    level = rng.normal()
    for i in range(t.size):
        level = keep * level + noise[i]
        out[i] = level
    return out


def _trend(t: Array, rng: np.random.Generator) -> Array:
    return rng.choice((-1.0, 1.0)) * t ** rng.uniform(0.5, 2.5) + rng.normal(0, 0.1, t.size)


def _season(t: Array, rng: np.random.Generator) -> Array:
    cycles, phase = rng.uniform(0.5, 4.0), rng.uniform(0, 2 * np.pi)
    wave = np.sin(2 * np.pi * cycles * t + phase)
    second = rng.uniform(0, 0.5) * np.sin(4 * np.pi * cycles * t + rng.uniform(0, 2 * np.pi))
    return wave + second + rng.uniform(-1, 1) * t + rng.normal(0, rng.uniform(0, 0.3), t.size)


def _level_shift(t: Array, rng: np.random.Generator) -> Array:
    levels = rng.normal(size=int(rng.integers(2, 5)))
    cuts = np.sort(rng.uniform(0, 1, levels.size - 1))
    return levels[np.searchsorted(cuts, t)] + rng.normal(0, rng.uniform(0, 0.2), t.size)


def _spikes(t: Array, rng: np.random.Generator) -> Array:
    out = rng.normal(0, 0.15, t.size)
    where = rng.permutation(t.size)[: int(rng.integers(1, 4))]
    out[where] += rng.choice((-1.0, 1.0)) * rng.uniform(0.7, 1.5, where.size)
    return out


def _hump(t: Array, rng: np.random.Generator) -> Array:
    centre, width = rng.uniform(0, 1), rng.uniform(0.08, 0.4)
    bump = np.exp(-(((t - centre) / width) ** 2))
    return rng.choice((-1.0, 1.0)) * bump + rng.normal(0, rng.uniform(0, 0.15), t.size)


def _noise(t: Array, rng: np.random.Generator) -> Array:
    return rng.normal(size=t.size)


def _saw(t: Array, rng: np.random.Generator) -> Array:
    return rng.choice((-1.0, 1.0)) * ((t * rng.uniform(1, 4) + rng.uniform(0, 1)) % 1.0)


SHAPES: tuple[Callable[[Array, np.random.Generator], Array], ...] = (
    _walk,
    _smooth_walk,
    _reverting,
    _trend,
    _season,
    _level_shift,
    _spikes,
    _hump,
    _noise,
    _saw,
)


def generate(count: int, length: int, rng: np.random.Generator) -> Array:
    """Return f64[count, length] of generated series: a random shape in a random part of 0..100."""
    t = np.arange(length) / max(1, length - 1)
    out = np.empty((count, length))
    for row in range(count):
        shape = SHAPES[int(rng.integers(len(SHAPES)))](t, rng)
        unit = (shape - shape.min()) / max(1e-9, float(np.ptp(shape)))
        # Windows of a long channel rarely fill its range: spans from a tenth to all of it.
        span = (HIGH - LOW) * rng.uniform(0.1, 1.0)
        out[row] = rng.uniform(LOW, HIGH - span) + span * unit
    return np.clip(np.floor(out + 0.5), LOW, HIGH)


def features(series: Array) -> Array:
    """Return z-scored (mean, population std, min, max) f64[N,4] of series f64[N,T]."""
    phi = np.stack([series.mean(1), series.std(1), series.min(1), series.max(1)], axis=1)
    scale = phi.std(0)
    return np.asarray((phi - phi.mean(0)) / np.where(scale == 0, 1.0, scale))


def look_alikes(series: Array, k: int, *, chunk: int = 512) -> NDArray[np.int32]:
    """Return i32[N,k]: for each series the k nearest others in z-scored features, nearest first.

    Equal series are left out. The sets of the reward itself come from ``lineup_fast``, with its
    overlap rule; here only the training mixture is built.
    """
    z = features(series).astype(np.float32)
    norm = (z * z).sum(1)
    out = np.empty((len(z), k), dtype=np.int32)
    for begin in range(0, len(z), chunk):
        part = z[begin : begin + chunk]
        distance = norm[None, :] - 2.0 * part @ z.T
        near = np.argpartition(distance, 3 * k + 1, axis=1)[:, : 3 * k + 1]
        order = np.take_along_axis(distance, near, 1).argsort(1)
        near = np.take_along_axis(near, order, 1)
        for row, candidates in enumerate(near):
            own = series[begin + row]
            other = [c for c in candidates if (series[c] != own).any()][:k]
            out[begin + row] = other + [other[-1]] * (k - len(other))
    return out
