"""Captions written by code: true with exact values, and true without a number."""

from __future__ import annotations

import numpy as np

from lineup_fast.probes import truth
from trainer.evaluate.bottleneck.controls import printed_decimals
from trainer.evaluate.bottleneck.windows import Windows
from trainer.tiny.captions import HIGH, vague

TEMPLATES = ("exact", "vague")


def templates(windows: Windows, kind: str, seed: int = 2020) -> dict[str, str]:
    """Captions by id. "exact": start, extremes with their steps, quarter levels, some values, end.
    "vague": the direction in words that differ from one caption to the next.

    Raises:
        ValueError: another kind.
    """
    if kind not in TEMPLATES:
        raise ValueError(f"templates: expected {' or '.join(TEMPLATES)}, got {kind!r}")
    if kind == "exact":
        decimals = printed_decimals(windows.series)
        return {i: truth(x, decimals) for i, x in zip(windows.ids, windows.series, strict=True)}
    # Its "flat" is counted in hundredths of the range.
    unit = (windows.high - windows.low) / HIGH
    rng = np.random.default_rng(seed)
    scaled = windows.series / unit[:, None]
    return {i: vague(x, rng) for i, x in zip(windows.ids, scaled, strict=True)}
