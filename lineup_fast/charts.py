"""Line charts of series, as the captioner sees them: pixels, patches and PNG bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any, Literal

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
        last of every pixel column (engine cairo) or eighth of one (native), where there are more
    engine : "native", our own exact coverage, or "cairo", everything by Cairo and many times
        slower; they differ by a few levels of 255 where line and texts are, and nowhere else.
        With "cairo" an exact chart of 100,000 points may take ten seconds, and Ctrl+C waits for it
    """

    name: str
    width: int
    height: int
    y_limits: tuple[float, float] | None = None
    axis_words: bool = False
    markers: bool = True
    exact: bool = False
    engine: Literal["native", "cairo"] = "native"

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
# For the tiny models alone: their weights were trained on Cairo's pixels of this size.
TINY_STYLE = ChartStyle("tiny", 224, 112, y_limits=(0.0, 100.0), engine="cairo")
STYLES = {style.name: style for style in (DEFAULT_STYLE, PAPER_STYLE, TINY_STYLE)}


def render(
    series: Sequence[ArrayLike],
    style: ChartStyle = DEFAULT_STYLE,
    *,
    out: NDArray[np.uint8] | None = None,
    threads: int = 0,
) -> NDArray[np.uint8]:
    """Draw one chart per series.

    Ticks are those of :func:`lineup_fast.kernels.nice_ticks`: at most 6 intervals on either axis
    (4 on the y-axis of small charts), whole steps on the x-axis, texts that are the values.

    Parameters
    ----------
    series : B arrays f64[T_i] of any lengths >= 1, finite, magnitudes up to 1e150
    out : u8[B, H, W, 3], C-contiguous, written and returned when given; of a torch tensor on the
        CPU ``tensor.numpy()``
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


NumberType = Literal["float32", "bfloat16"]


def _numbers(shape: tuple[int, int], dtype: NumberType, out: NDArray[Any] | None) -> NDArray[Any]:
    if dtype not in ("float32", "bfloat16"):
        raise ValueError(f"dtype: expected float32 or bfloat16, got {dtype!r}")
    wanted = np.dtype(np.float32 if dtype == "float32" else np.uint16)
    if out is None:
        return np.empty(shape, dtype=wanted)
    if out.dtype != wanted or out.shape != shape or not out.flags.carray:
        raise ValueError(
            f"out: expected writable, C-contiguous {wanted} {shape}, got {out.dtype} {out.shape}"
        )
    return out


def _require_patches(name: str, height: int, width: int, unit: int) -> None:
    if height % unit or width % unit or not height or not width:
        raise ValueError(
            f"{name}: expected sides that are multiples of {unit}, got {height}x{width}"
        )


def patches(
    images: NDArray[np.uint8],
    *,
    patch: int = 14,
    merge: int = 2,
    temporal: int = 2,
    dtype: NumberType = "float32",
    out: NDArray[Any] | None = None,
    threads: int = 0,
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Image patches in the order and scale of Qwen2.5-VL's image processor, without resizing.

    Parameters
    ----------
    images : u8[B, H, W, 3]; H and W are multiples of ``patch * merge``
    dtype : "float32", or "bfloat16" as bits in uint16 (without a copy to and from torch:
        ``torch.from_numpy(values).view(torch.bfloat16)``, ``tensor.view(torch.uint16).numpy()``),
        rounded half to even
    out : an array to write to and return as pixel_values; a used one saves the system's work of
        finding fresh memory, which costs more than the patches

    Returns
    -------
    pixel_values : [B * h * w, 3 * temporal * patch * patch] with h = H / patch, w = W / patch;
        ``merge`` x ``merge`` neighbours follow each other, the frame is repeated ``temporal`` times
    image_grid_thw : i64[B, 3], rows (1, h, w)

    Source: the image processor of Qwen2-VL in transformers (same mean, std and order).
    """
    images = np.asarray(images)
    if images.ndim != 4 or images.shape[3] != 3 or images.dtype != np.uint8:
        raise ValueError(f"images: expected u8[B, H, W, 3], got {images.dtype}{images.shape}")
    for name, value in (("patch", patch), ("merge", merge), ("temporal", temporal)):
        if not 1 <= value <= 1024:
            raise ValueError(f"{name}: expected 1 to 1024, got {value}")
    n, height, width, _ = images.shape
    _require_patches("images", height, width, patch * merge)
    rows, columns = height // patch, width // patch
    values = _numbers((n * rows * columns, 3 * temporal * patch * patch), dtype, out)
    kernels.chart_kernels.patches(
        np.ascontiguousarray(images), values, patch, merge, temporal, threads
    )
    return values, np.tile(np.array([1, rows, columns], dtype=np.int64), (n, 1))


def pixel_values(
    series: Sequence[ArrayLike],
    style: ChartStyle = DEFAULT_STYLE,
    *,
    dtype: NumberType = "bfloat16",
    out: NDArray[Any] | None = None,
    threads: int = 0,
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Charts of the series as patches: ``patches(render(series, style), dtype=dtype)`` in one go,
    without the images in between.

    Raises: ValueError as :func:`render` and :func:`patches` do.
    """
    arrays = kernels.chart_series(series)
    _require_patches("style", style.height, style.width, 28)
    rows, columns = style.height // 14, style.width // 14
    values = _numbers((len(arrays) * rows * columns, 3 * 2 * 14 * 14), dtype, out)
    kernels.chart_kernels.chart_patches(arrays, style, values, threads)
    return values, np.tile(np.array([1, rows, columns], dtype=np.int64), (len(arrays), 1))


def png(image: NDArray[np.uint8]) -> bytes:
    """PNG file bytes of one image u8[H, W, 3], made for charts: fast, small where pixels repeat."""
    image = np.ascontiguousarray(image)
    if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8 or not image.size:
        raise ValueError(f"image: expected u8[H, W, 3], got {image.dtype}{image.shape}")
    data: bytes = kernels.chart_kernels.png(image)
    return data
