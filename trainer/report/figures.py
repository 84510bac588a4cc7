"""Curves as inline SVG: drawn by matplotlib, coloured by the page's CSS, read by its hover script.

Colours are written as stand-ins and replaced by CSS variables, so that one drawing serves the light
and the dark page. Numbers for the hover script travel beside the drawing, in data units.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FuncFormatter, MaxNLocator

COLOURS = ("accent", "warm", "blue", "rose", "violet", "olive", "muted", "line", "ink")
POSITION_COLOURS = COLOURS[:6]
_STAND_IN = {name: f"#0a0b{i + 16:02x}" for i, name in enumerate(COLOURS)}
_RC: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "report",
    "font.size": 8.5,
    "path.simplify": True,
}

_LARGE, _SMALL = (390.0, 200.0), (250.0, 130.0)  # points; the page scales them

Look = Literal["line", "faint", "points", "dashed", "dotted", "area"]


@dataclass(frozen=True, slots=True)
class Curve:
    """One named curve: ``y`` at ``x``; a level (one value for all steps) has a single ``y``."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    colour: str = "accent"
    look: Look = "line"
    digits: int = 3


@dataclass(frozen=True, slots=True)
class Figure:
    """A drawn figure: the SVG, its legend and what the hover script needs."""

    name: str
    title: str
    svg: Markup
    legend: list[dict[str, str]]
    data: dict[str, Any]
    note: str = ""
    small: bool = False


def draw(
    name: str,
    title: str,
    curves: Sequence[Curve],
    *,
    small: bool = False,
    limits: tuple[float | None, float | None] = (None, None),
    percent: bool = False,
    note: str = "",
) -> Figure | None:
    """Return the figure of ``curves`` over training steps, or None when no curve has a point.

    Parameters
    ----------
    small : draw it for a third of the page's width instead of half
    limits : lower and upper end of the y-axis, None = from the data
    percent : label the y-axis in percent of 1
    """
    size = _SMALL if small else _LARGE
    curves = [curve for curve in curves if len(curve.y)]
    moving = [curve for curve in curves if len(curve.x)]
    if not moving:
        return None
    low = min(min(curve.x) for curve in moving)
    high = max(max(curve.x) for curve in moving)
    high = high if high > low else low + 1
    with mpl.rc_context(_RC):
        canvas = Canvas(figsize=(size[0] / 72, size[1] / 72), dpi=72)
        FigureCanvasSVG(canvas)
        axes = canvas.add_axes((0.1, 0.1, 0.8, 0.8))
        _draw_curves(axes, curves, (low, high))
        _dress(axes, size, (low, high), limits, percent)
        box = axes.get_position()
        y_low, y_high = axes.get_ylim()
        svg = _inline(canvas, name, f"{title}: {', '.join(c.name for c in curves)}")
    data = {
        "box": [
            round(box.x0 * size[0], 2),
            round((1 - box.y1) * size[1], 2),
            round(box.x1 * size[0], 2),
            round((1 - box.y0) * size[1], 2),
        ],
        "x": [low, high],
        "y": [float(y_low), float(y_high)],
        "percent": percent,
        "curves": [_hover_curve(curve) for curve in curves if curve.look != "faint"],
    }
    legend = [{"name": c.name, "colour": c.colour, "look": c.look} for c in curves]
    return Figure(name, title, svg, legend, data, note, small)


def _hover_curve(curve: Curve) -> dict[str, Any]:
    return {
        "name": curve.name,
        "colour": curve.colour,
        "digits": curve.digits,
        "area": curve.look == "area",
        "x": [_short(v) for v in curve.x],
        "y": [_short(v) for v in curve.y],
    }


def _short(value: float) -> float:
    return float(f"{value:.6g}")


def _draw_curves(axes: Axes, curves: Sequence[Curve], span: tuple[float, float]) -> None:
    areas = [curve for curve in curves if curve.look == "area"]
    if areas:
        axes.stackplot(
            areas[0].x,
            np.array([curve.y for curve in areas]),
            colors=[_STAND_IN[curve.colour] for curve in areas],
            linewidth=0,
            alpha=0.85,
        )
    for curve in curves:
        colour = _STAND_IN[curve.colour]
        x: Sequence[float] = curve.x if len(curve.x) else span
        y = curve.y if len(curve.x) else [curve.y[0]] * 2
        if curve.look == "line":
            axes.plot(x, y, color=colour, lw=1.7, solid_capstyle="round")
        elif curve.look == "faint":
            axes.plot(x, y, color=colour, lw=0.8, alpha=0.35)
        elif curve.look == "points":
            axes.plot(x, y, color=colour, lw=1.7, marker="o", ms=4, mec="none", clip_on=False)
        elif curve.look in ("dashed", "dotted"):
            style = (0, (5, 3)) if curve.look == "dashed" else (0, (1, 2.2))
            axes.plot(x, y, color=colour, lw=1.3, ls=style, dash_capstyle="round")


def _dress(
    axes: Axes,
    size: tuple[float, float],
    span: tuple[float, float],
    limits: tuple[float | None, float | None],
    percent: bool,
) -> None:
    axes.set_xlim(*span)
    axes.set_ylim(*_y_limits(axes, limits))
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_locator(MaxNLocator(max(2, int(size[0] // 65)), integer=True))
    label = _percent_label if percent else _plain_label
    axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: label(v)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,.0f}"))
    for side in ("top", "left", "right"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(_STAND_IN["line"])
    axes.grid(axis="y", color=_STAND_IN["line"], lw=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, pad=5, labelcolor=_STAND_IN["muted"])
    axes.set_xlabel("step", color=_STAND_IN["muted"], labelpad=2)
    low, high = axes.get_ylim()
    texts = [label(v) for v in axes.yaxis.get_major_locator().tick_values(low, high)]
    left = (max(len(text) for text in texts) * 5.0 + 9) / size[0]
    bottom, top = 31 / size[1], 7 / size[1]
    axes.set_position((left, bottom, 1 - left - 9 / size[0], 1 - bottom - top))


def _y_limits(axes: Axes, limits: tuple[float | None, float | None]) -> tuple[float, float]:
    low, high = axes.dataLim.y0, axes.dataLim.y1
    pad = 0.08 * (high - low) or 0.05 * abs(high) or 0.5
    return (
        low - pad if limits[0] is None else limits[0],
        high + pad if limits[1] is None else limits[1],
    )


def _plain_label(value: float) -> str:
    if value and (abs(value) >= 1e6 or abs(value) < 1e-3):
        return f"{value:.1e}".replace("e-0", "e-").replace("e+0", "e")
    text = f"{value:,.4f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def _percent_label(value: float) -> str:
    return f"{100 * value:.4g}%"


def _inline(canvas: Canvas, name: str, label: str) -> Markup:
    """Return the drawing as an SVG element with page colours and identifiers of its own."""
    out = io.StringIO()
    canvas.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = out.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<style.*?</style>", "", svg, flags=re.DOTALL)  # would hold for the whole page
    svg = re.sub(r"<!--.*?-->\s*", "", svg, flags=re.DOTALL)
    box = re.search(r'viewBox="[^"]*"', svg)
    assert box is not None
    head = f'<svg {box.group()} role="img" aria-label="{Markup.escape(label)}">'
    svg = head + svg[svg.index(">") + 1 :]
    svg = re.sub(r'\bid="([^"]*)"', rf'id="{name}-\1"', svg)
    svg = re.sub(r"url\(#([^)]*)\)", rf"url(#{name}-\1)", svg)
    svg = re.sub(r'(?:xlink:)?href="#([^"]*)"', rf'href="#{name}-\1"', svg)
    svg = re.sub(r"font-family: [^;\"]*;\s*", "", svg)
    svg = re.sub(r"\s*\n\s*", " ", svg)
    for colour, stand_in in _STAND_IN.items():
        svg = svg.replace(stand_in, f"var(--{colour})")
    return Markup(svg)  # drawn here; matplotlib escapes texts


def smooth(values: Sequence[float], window: int) -> list[float]:
    """Return the mean of the last ``window`` values at every step (fewer at the start)."""
    return [float(np.mean(values[max(0, i + 1 - window) : i + 1])) for i in range(len(values))]
