"""Slow, obvious twin of the native patches and PNG files: the oracle of their tests."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lineup_fast import reference_charts

if TYPE_CHECKING:
    from lineup_fast.charts import ChartStyle

nice_ticks = reference_charts.nice_ticks
render_charts = reference_charts.render_charts

_MEAN = np.array([0.48145466, 0.4578275, 0.40821073])
_STD = np.array([0.26862954, 0.26130258, 0.27577711])


def patches(
    images: NDArray[np.uint8],
    out: NDArray[Any],
    patch: int,
    merge: int,
    temporal: int,
    threads: int = 0,
) -> None:
    """Cut images u8[N, H, W, 3] into patches; see `lineup_fast.charts.patches`."""
    del threads  # the oracle is serial
    n, height, width, _ = images.shape
    scale = (1.0 / (255.0 * _STD)).astype(np.float32)
    shift = (_MEAN / _STD).astype(np.float32)
    pixels = images.astype(np.float32) * scale - shift
    rows, columns = height // (patch * merge), width // (patch * merge)
    blocks = pixels.reshape(n, rows, merge, patch, columns, merge, patch, 3)
    ordered = blocks.transpose(0, 1, 4, 2, 5, 7, 3, 6)  # image, block, in block, channel, y, x
    frames = np.repeat(ordered[:, :, :, :, :, :, None], temporal, axis=6)
    values = frames.reshape(out.shape)
    out[...] = values if out.dtype == np.float32 else _bfloat16(values)


def _bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The upper halves of float32 bits, rounded half to even."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def chart_patches(
    series: Sequence[NDArray[np.float64]],
    style: ChartStyle,
    out: NDArray[Any],
    threads: int = 0,
) -> None:
    """Draw charts and cut them; see `lineup_fast.charts.pixel_values`."""
    images = np.empty((len(series), style.height, style.width, 3), dtype=np.uint8)
    render_charts(series, style, images)
    patches(images, out, 14, 2, 2, threads)


def png(image: NDArray[np.uint8]) -> bytes:
    """PNG file bytes of an image u8[H, W, 3]; the native ones differ but hold the same pixels."""
    height, width, _ = image.shape
    lines = np.zeros((height, 1 + 3 * width), dtype=np.uint8)  # every line starts with filter 0
    lines[:, 1:] = image.reshape(height, 3 * width)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 6)), (b"IEND", b""))
    body = b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + body
