"""Slow, obvious twin of the native ticks and charts: the oracle of their tests.

Ticks are worked out in exact decimal arithmetic; charts are drawn through cairocffi, one call
after the other. With the same Cairo library the pixels equal those of the native renderer.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lineup_fast.reference import require_values

if TYPE_CHECKING:
    from lineup_fast.charts import ChartStyle

_EXACT = Context(prec=1000, Emin=-9999, Emax=9999)


# ---------------------------------------------------------------------------------------- ticks
def nice_ticks(
    lo: float, hi: float, n: int, integer: bool = False
) -> tuple[NDArray[np.float64], list[str]]:
    """Positions f64[m] and texts of the ticks of an axis; see `lineup_fast.kernels.nice_ticks`."""
    for name, value in (("lo", lo), ("hi", hi)):
        if not abs(value) <= 1e300:
            raise ValueError(f"{name}: expected a finite number up to 1e300, got {value!r}")
    if not lo < hi:
        raise ValueError(f"hi: expected more than lo ({lo!r}), got {hi!r}")
    if not 1 <= n <= 1000:
        raise ValueError(f"n: expected 1 to 1000 intervals, got {n}")
    for mantissa, exponent in _steps_from((hi - lo) / n, integer):
        marks = _multiples(Decimal(mantissa).scaleb(exponent, _EXACT), lo, hi)
        positions = [float(mark) for mark in marks]
        if not marks and not integer:
            marks, positions = [Decimal(repr(lo)), Decimal(repr(hi))], [lo, hi]
        if len(marks) <= n + 1 and len(set(positions)) == len(positions):
            return np.array(positions, dtype=np.float64), _tick_texts(marks)
    raise AssertionError("the ladder of steps has no end")


def _steps_from(smallest: float, integer: bool) -> Iterator[tuple[int, int]]:
    """Steps mantissa * 10**exponent of the 1-2-2.5-5 ladder that are at least ``smallest``."""
    exponent = -326 if smallest == 0 else max(-326, math.floor(math.log10(smallest)) - 2)
    while True:
        for mantissa, shift in ((1, 0), (2, 0), (25, -1), (5, 0)):
            whole = exponent + shift >= 0
            if (whole or not integer) and float(f"{mantissa}e{exponent + shift}") >= smallest:
                yield mantissa, exponent + shift
        exponent += 1


def _multiples(step: Decimal, lo: float, hi: float) -> list[Decimal]:
    """Multiples of ``step`` whose nearest float64 lies in [lo, hi]."""
    width = Fraction(step)
    first = math.floor(Fraction(math.nextafter(lo, -math.inf)) / width)
    last = math.ceil(Fraction(math.nextafter(hi, math.inf)) / width)
    marks = (_EXACT.multiply(step, Decimal(k)) for k in range(first, last + 1))
    return [mark for mark in marks if lo <= float(mark) <= hi]


def _tick_texts(marks: list[Decimal]) -> list[str]:
    decimals = max([0] + [-int(_stripped(mark).as_tuple().exponent) for mark in marks])
    plain = [format(mark, f".{decimals}f") for mark in marks]
    scientific = [_scientific(mark) for mark in marks]
    longest = max(map(len, plain), default=0)
    if longest > 10 and max(map(len, scientific)) < longest:
        return scientific
    return plain


def _stripped(mark: Decimal) -> Decimal:
    return Decimal(0) if mark == 0 else mark.normalize(_EXACT)


def _scientific(mark: Decimal) -> str:
    """Text like -2.5e-13: the shortest mantissa, no plus sign, no padded exponent."""
    sign, digits, exponent = _stripped(mark).as_tuple()
    text = "".join(map(str, digits))
    if text == "0":
        return "0"
    power = int(exponent) + len(text) - 1
    fraction = f".{text[1:]}" if len(text) > 1 else ""
    return f"{'-' if sign else ''}{text[0]}{fraction}e{power}"


# --------------------------------------------------------------------------------------- glyphs
# Pen strokes in a box of 60 x 60 units, y upwards from the baseline: width, then a path of
# M(ove) x y, L(ine) x y, C(urve) x1 y1 x2 y2 x y.
_GLYPHS: dict[str, tuple[int, str]] = {
    "0": (60, "M30 60 C52 60 60 48 60 30 C60 12 52 0 30 0 C8 0 0 12 0 30 C0 48 8 60 30 60"),
    "1": (60, "M10 47 L40 60 L40 0 M16 0 L60 0"),
    "2": (60, "M2 48 C6 56 16 60 30 60 C48 60 60 54 60 43 C60 32 48 26 30 17 C14 9 2 5 0 0 L60 0"),
    "3": (
        60,
        "M2 54 C8 58 18 60 28 60 C46 60 57 55 57 45 C57 36 46 31 28 31 L20 31"
        " M28 31 C48 31 60 26 60 15 C60 5 48 0 28 0 C16 0 6 2 0 6",
    ),
    "4": (60, "M40 0 L40 60 L0 20 L60 20"),
    "5": (
        60,
        "M54 60 L6 60 L4 34 C12 37 20 38 30 38 C48 38 60 31 60 19 C60 7 48 0 28 0 C16 0 6 2 0 6",
    ),
    "6": (
        60,
        "M54 56 C48 59 42 60 34 60 C12 60 0 46 0 24 C0 8 12 0 30 0 C48 0 60 7 60 19"
        " C60 31 48 37 31 37 C16 37 2 32 0 20",
    ),
    "7": (60, "M0 60 L60 60 L22 0"),
    "8": (
        60,
        "M30 60 C46 60 56 54 56 46 C56 37 46 31 30 31 C14 31 4 37 4 46 C4 54 14 60 30 60"
        " M30 31 C48 31 60 25 60 16 C60 6 48 0 30 0 C12 0 0 6 0 16 C0 25 12 31 30 31",
    ),
    "9": (
        60,
        "M6 4 C12 1 18 0 26 0 C48 0 60 14 60 36 C60 52 48 60 30 60 C12 60 0 53 0 41"
        " C0 29 12 23 29 23 C44 23 58 28 60 40",
    ),
    ".": (0, "M0 0 L0 3"),
    "-": (48, "M0 30 L48 30"),
    "e": (52, "M1 22 L52 22 C52 36 42 42 28 42 C10 42 0 34 0 21 C0 8 10 0 29 0 C38 0 45 2 50 6"),
    "t": (30, "M12 56 L12 12 C12 3 16 0 24 0 L30 0 M0 42 L30 42"),
    "i": (0, "M0 0 L0 42 M0 58 L0 61"),
    "m": (
        84,
        "M0 0 L0 42 M0 28 C2 38 10 42 22 42 C36 42 42 36 42 24 L42 0"
        " M42 26 C44 38 52 42 64 42 C78 42 84 36 84 24 L84 0",
    ),
    "v": (54, "M0 42 L27 0 L54 42"),
    "a": (
        50,
        "M4 37 C10 41 18 42 26 42 C42 42 50 36 50 24 L50 0"
        " M50 25 L28 25 C10 25 0 20 0 12 C0 4 8 0 20 0 C36 0 50 8 50 20",
    ),
    "l": (0, "M0 0 L0 62"),
    "u": (50, "M0 42 L0 16 C0 5 8 0 20 0 C36 0 50 6 50 20 M50 42 L50 0"),
}


@dataclass(frozen=True)
class _Sizes:
    """Pixel sizes of what is drawn; text sizes are those of the pen's centre line."""

    box_width: int
    box_height: int
    spacing: int
    pen: float
    tick: int
    gap: int
    inset: int
    line: float
    marker: float
    pad_left: int
    pad_right: int
    pad_top: int
    pad_bottom: int
    y_intervals: int


_NORMAL = _Sizes(5, 8, 3, 1.25, 4, 4, 5, 2.0, 2.6, 6, 10, 8, 6, 6)
_COMPACT = _Sizes(3, 6, 2, 1.0, 2, 2, 3, 1.4, 1.8, 1, 2, 1, 1, 4)


def _advance(char: str, sizes: _Sizes) -> int:
    return math.floor(_GLYPHS[char][0] * sizes.box_width / 60 + 0.5) + sizes.spacing


def _text_width(text: str, sizes: _Sizes) -> int:
    """Width of the inked pixels of ``text``."""
    return sum(_advance(char, sizes) for char in text) - sizes.spacing + 1


def _draw_text(ctx: Any, text: str, x: int, y: int, sizes: _Sizes, upwards: bool = False) -> None:
    """Stroke ``text``; (x, y) is the pixel where its baseline begins."""
    pen_x = 0.0
    for char in text:
        for op, numbers in re.findall(r"([MLC])([\d ]+)", _GLYPHS[char][1]):
            words = [float(word) for word in numbers.split()]
            points: list[float] = []
            for u, v in zip(words[::2], words[1::2], strict=True):
                across = pen_x + u * sizes.box_width / 60
                up = v * sizes.box_height / 60
                if upwards:
                    points += [x + 0.5 - up, y + 0.5 - across]
                else:
                    points += [x + 0.5 + across, y + 0.5 - up]
            {"M": ctx.move_to, "L": ctx.line_to, "C": ctx.curve_to}[op](*points)
        pen_x += _advance(char, sizes)
    ctx.stroke()


# --------------------------------------------------------------------------------------- charts
_INK = (31 / 255, 119 / 255, 180 / 255)
_GRID = (230 / 255,) * 3
_FRAME = (64 / 255,) * 3
_TEXT = (32 / 255,) * 3

_SEGMENTS_PER_STROKE = 12  # where points lie 2 px apart or more; all of the line where they do not
_MARKERS_PER_FILL = 12
_POINTS_PER_COLUMN = 4  # above this many, a pixel column keeps first, lowest, highest and last


@dataclass(frozen=True)
class _Box:
    """Pixels of the frame's lines, and the data range that the inset area inside shows."""

    left: int
    right: int
    top: int
    bottom: int
    inset: int
    x_range: tuple[float, float]
    y_range: tuple[float, float]

    def x(self, value: float) -> float:
        lo, hi = self.x_range
        start, stop = self.left + 0.5 + self.inset, self.right + 0.5 - self.inset
        return start + (value - lo) / (hi - lo) * (stop - start)

    def y(self, value: float) -> float:
        lo, hi = self.y_range
        start, stop = self.bottom + 0.5 - self.inset, self.top + 0.5 + self.inset
        # The clamp keeps values far outside fixed limits within Cairo's coordinates.
        return start + max(-4.0, min(5.0, (value - lo) / (hi - lo))) * (stop - start)


def render_charts(
    series: Sequence[NDArray[np.float64]],
    style: ChartStyle,
    out: NDArray[np.uint8],
    threads: int = 0,
) -> None:
    """Draw ``series`` into out u8[N, H, W, 3]; see `lineup_fast.charts.render`."""
    import cairocffi

    del threads  # the oracle is serial
    for i, values in enumerate(series):
        require_values(f"series[{i}]", values)
    for values, image in zip(series, out, strict=True):
        surface = cairocffi.ImageSurface(cairocffi.FORMAT_RGB24, style.width, style.height)
        _draw_chart(cairocffi.Context(surface), values.tolist(), style)
        surface.flush()
        pixels = np.frombuffer(surface.get_data(), dtype="<u4")
        pixels = pixels.reshape(style.height, surface.get_stride() // 4)[:, : style.width]
        for channel in range(3):
            image[..., channel] = pixels >> (16 - 8 * channel) & 255


def _draw_chart(ctx: Any, values: list[float], style: ChartStyle) -> None:
    sizes = _COMPACT if style.width < 400 or style.height < 200 else _NORMAL
    n = len(values)
    x_range = (0.0, float(n - 1)) if n > 1 else (-0.5, 0.5)
    y_range = style.y_limits or _padded(min(values), max(values))
    x_ticks = nice_ticks(*x_range, 6, integer=True)
    y_ticks = nice_ticks(*y_range, sizes.y_intervals)
    word = sizes.box_height + 1 + sizes.gap if style.axis_words else 0
    text_width = max((_text_width(text, sizes) for text in y_ticks[1]), default=0)
    box = _Box(
        left=sizes.pad_left + word + text_width + sizes.gap + sizes.tick,
        right=style.width - 1 - sizes.pad_right,
        top=sizes.pad_top,
        bottom=style.height
        - (1 + sizes.pad_bottom + word + sizes.box_height + 1 + sizes.gap + sizes.tick),
        inset=sizes.inset,
        x_range=x_range,
        y_range=y_range,
    )
    ctx.set_source_rgb(1, 1, 1)
    ctx.paint()
    ctx.set_line_cap(1)  # CAIRO_LINE_CAP_ROUND
    ctx.set_line_join(1)  # CAIRO_LINE_JOIN_ROUND
    _draw_grid(ctx, box, x_ticks[0], y_ticks[0])
    _draw_series(ctx, box, values, style, sizes)
    _draw_frame(ctx, box, x_ticks[0], y_ticks[0], sizes)
    _draw_tick_texts(ctx, box, x_ticks, y_ticks, style, sizes)
    if style.axis_words:
        middle = (box.left + box.right - _text_width("time", sizes)) // 2
        _draw_text(ctx, "time", middle, style.height - 1 - sizes.pad_bottom, sizes)
        middle = (box.top + box.bottom + _text_width("value", sizes)) // 2
        _draw_text(ctx, "value", sizes.pad_left + sizes.box_height, middle, sizes, upwards=True)


def _padded(lo: float, hi: float) -> tuple[float, float]:
    """The y-range: 8 % more on either side; around a constant 8 % of it, or 1 around 0."""
    pad = 0.08 * ((hi - lo) or abs(hi)) or 1.0
    return lo - pad, hi + pad


def _draw_grid(ctx: Any, box: _Box, xs: NDArray[np.float64], ys: NDArray[np.float64]) -> None:
    for x in xs:
        ctx.rectangle(math.floor(box.x(x)), box.top, 1, box.bottom - box.top)
    for y in ys:
        ctx.rectangle(box.left, math.floor(box.y(y)), box.right - box.left, 1)
    ctx.set_source_rgb(*_GRID)
    ctx.fill()


def _draw_series(
    ctx: Any, box: _Box, values: list[float], style: ChartStyle, sizes: _Sizes
) -> None:
    points = [(box.x(i), box.y(value)) for i, value in enumerate(values)]
    columns = box.right - box.left - 1
    if not style.exact and len(points) > _POINTS_PER_COLUMN * columns:
        points = _thinned(points)
    ctx.save()
    ctx.rectangle(box.left, box.top, box.right - box.left + 1, box.bottom - box.top + 1)
    ctx.clip()
    ctx.set_source_rgb(*_INK)
    ctx.set_line_width(sizes.line)
    most = _SEGMENTS_PER_STROKE if len(points) <= columns // 2 else len(points)
    for start in range(0, len(points) - 1, most):
        ctx.move_to(*points[start])
        for point in points[start + 1 : start + most + 1]:
            ctx.line_to(*point)
        ctx.stroke()
    # Markers closer than 2 px would only make the line thicker; a lone point always has one.
    if len(values) == 1 or (style.markers and len(values) <= columns // 2):
        for start in range(0, len(points), _MARKERS_PER_FILL):
            for x, y in points[start : start + _MARKERS_PER_FILL]:
                ctx.new_sub_path()
                ctx.arc(x, y, sizes.marker, 0.0, 2 * math.pi)
            ctx.fill()
    ctx.restore()


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """First, lowest, highest and last point of every pixel column, in the order of time."""
    kept: list[tuple[float, float]] = []
    for _, group in itertools.groupby(range(len(points)), lambda i: math.floor(points[i][0])):
        column = list(group)
        extremes = {
            column[0],
            min(column, key=lambda i: points[i][1]),
            max(column, key=lambda i: points[i][1]),
            column[-1],
        }
        kept += [points[i] for i in sorted(extremes)]
    return kept


def _draw_frame(
    ctx: Any, box: _Box, xs: NDArray[np.float64], ys: NDArray[np.float64], sizes: _Sizes
) -> None:
    width, height = box.right - box.left + 1, box.bottom - box.top + 1
    ctx.rectangle(box.left, box.top, width, 1)
    ctx.rectangle(box.left, box.bottom, width, 1)
    ctx.rectangle(box.left, box.top + 1, 1, height - 2)
    ctx.rectangle(box.right, box.top + 1, 1, height - 2)
    for x in xs:
        ctx.rectangle(math.floor(box.x(x)), box.bottom + 1, 1, sizes.tick)
    for y in ys:
        ctx.rectangle(box.left - sizes.tick, math.floor(box.y(y)), sizes.tick, 1)
    ctx.set_source_rgb(*_FRAME)
    ctx.fill()


def _draw_tick_texts(
    ctx: Any,
    box: _Box,
    x_ticks: tuple[NDArray[np.float64], list[str]],
    y_ticks: tuple[NDArray[np.float64], list[str]],
    style: ChartStyle,
    sizes: _Sizes,
) -> None:
    ctx.set_source_rgb(*_TEXT)
    ctx.set_line_width(sizes.pen)
    baseline = box.bottom + sizes.tick + sizes.gap + 1 + sizes.box_height
    for x, text in zip(*x_ticks, strict=True):
        width = _text_width(text, sizes)
        start = math.floor(box.x(x)) - (width - 1) // 2
        _draw_text(ctx, text, min(max(start, 0), style.width - width), baseline, sizes)
    for y, text in zip(*y_ticks, strict=True):
        start = box.left - sizes.tick - sizes.gap - _text_width(text, sizes)
        baseline = math.floor(box.y(y)) + sizes.box_height // 2
        baseline = min(max(baseline, sizes.box_height), style.height - 1)
        _draw_text(ctx, text, start, baseline, sizes)
