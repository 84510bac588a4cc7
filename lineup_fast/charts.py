"""Line charts of series, as the captioner sees them: pixels, patches and PNG bytes."""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lineup_fast import kernels

CHART_VERSION = "1"
"""Raised whenever the drawing rules change, because trained weights depend on the pixels."""

MEAN = (0.48145466, 0.4578275, 0.40821073)
STD = (0.26862954, 0.26130258, 0.27577711)
"""Per-channel normalisation (RGB, values in [0, 1]) of CLIP, which Qwen2.5-VL uses."""


@dataclass(frozen=True)
class ChartStyle:
    """What a chart looks like; part of every fingerprint that depends on pixels.

    Parameters
    ----------
    name : label of the style in results
    width, height : image size in pixels; below 400 x 200 texts and lines are drawn smaller
    y_limits : fixed range of the y-axis (values beyond it are cut off at the frame), or None
        for the range of the series padded by 8 %
    axis_words : whether "time" and "value" stand beside the axes
    markers : whether a dot marks every point, as long as points are 2 px apart or more
    exact : whether every point of a long series is drawn; otherwise the first, lowest, highest and
        last of every pixel column, where one has more than four
    engine : "native", our own exact coverage, or "cairo", everything by Cairo and many times
        slower; they differ by a few levels of 255 where the line is, and nowhere else
    """

    name: str
    width: int
    height: int
    y_limits: tuple[float, float] | None = None
    axis_words: bool = False
    markers: bool = True
    exact: bool = False
    engine: Literal["native", "cairo"] = "native"

    tiny: ClassVar[ChartStyle]

    def __post_init__(self) -> None:
        for name, size, least in (("width", self.width, 168), ("height", self.height, 84)):
            if not least <= size <= 8192:
                raise ValueError(f"{name}: expected {least} to 8192 pixels, got {size}")
        if self.y_limits is not None:
            lo, hi = self.y_limits
            if not -1e150 <= lo < hi <= 1e150:
                raise ValueError(f"y_limits: expected lo < hi within 1e150, got {self.y_limits}")
        if self.engine not in ("native", "cairo"):
            raise ValueError(f"engine: expected native or cairo, got {self.engine!r}")

    @property
    def fingerprint(self) -> str:
        """Hash of everything that decides the pixels, but for the Cairo version."""
        words = repr((CHART_VERSION, *astuple(self)[1:]))
        return hashlib.sha256(words.encode()).hexdigest()[:16]


DEFAULT_STYLE = ChartStyle("default", 588, 308)
PAPER_STYLE = ChartStyle("paper", 600, 300, axis_words=True)
# The weights of the tiny captioner were trained on Cairo's pixels.
TINY_STYLE = ChartStyle("tiny", 224, 112, y_limits=(0.0, 100.0), engine="cairo")
ChartStyle.tiny = TINY_STYLE
STYLES = {style.name: style for style in (DEFAULT_STYLE, PAPER_STYLE, TINY_STYLE)}


def render(
    series: Sequence[ArrayLike],
    style: ChartStyle = DEFAULT_STYLE,
    *,
    out: NDArray[np.uint8] | None = None,
    threads: int = 0,
) -> NDArray[np.uint8]:
    """Draw one chart per series.

    Parameters
    ----------
    series : B arrays f64[T_i] of any lengths >= 1, finite, magnitudes up to 1e150
    out : u8[B, H, W, 3], C-contiguous, written and returned when given
    threads : worker threads, 0 = all cores; the pixels do not depend on it

    Returns
    -------
    RGB images u8[B, H, W, 3]

    Raises
    ------
    ValueError
        A series is empty, not one-dimensional or not finite, or ``out`` does not fit.
    """
    return kernels.render_charts(series, style, out=out, threads=threads)


def patches(
    images: NDArray[np.uint8], *, patch: int = 14, merge: int = 2, temporal: int = 2
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Image patches in the order and scale of Qwen2.5-VL's image processor, without resizing.

    Parameters
    ----------
    images : u8[B, H, W, 3]; H and W are multiples of ``patch * merge``

    Returns
    -------
    pixel_values : f32[B * h * w, 3 * temporal * patch * patch] with h = H / patch, w = W / patch;
        ``merge`` x ``merge`` neighbours follow each other, the frame is repeated ``temporal`` times
    image_grid_thw : i64[B, 3], rows (1, h, w)

    Source: the image processor of Qwen2-VL in transformers (same mean, std and order).
    """
    images = np.asarray(images)
    if images.ndim != 4 or images.shape[3] != 3 or images.dtype != np.uint8:
        raise ValueError(f"images: expected u8[B, H, W, 3], got {images.dtype}{images.shape}")
    n, height, width, _ = images.shape
    unit = patch * merge
    if height % unit or width % unit:
        raise ValueError(
            f"images: expected sides that are multiples of {unit}, got {height}x{width}"
        )
    rows, columns = height // patch, width // patch
    scale = (1.0 / (255.0 * np.array(STD))).astype(np.float32)
    shift = (np.array(MEAN) / np.array(STD)).astype(np.float32)
    pixels = images.astype(np.float32) * scale - shift
    blocks = pixels.reshape(n, rows // merge, merge, patch, columns // merge, merge, patch, 3)
    ordered = blocks.transpose(0, 1, 4, 2, 5, 7, 3, 6)  # image, block, in block, channel, y, x
    frames = np.repeat(ordered[:, :, :, :, :, :, None], temporal, axis=6)
    grid = np.tile(np.array([1, rows, columns], dtype=np.int64), (n, 1))
    return frames.reshape(n * rows * columns, 3 * temporal * patch * patch), grid


def png(image: NDArray[np.uint8]) -> bytes:
    """PNG file bytes of one image u8[H, W, 3]."""
    image = np.ascontiguousarray(image)
    if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8:
        raise ValueError(f"image: expected u8[H, W, 3], got {image.dtype}{image.shape}")
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
