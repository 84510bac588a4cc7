"""The figure of bench.cost: one small panel per piece, both axes in powers of ten."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

# Colours of Okabe and Ito, told apart by people who are colour-blind and in print; ours is darkest.
COLORS = ("#0072B2", "#D55E00", "#009E73")
TEXT, GRID = "#333333", "#E3E3E3"
UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def _seconds(value: float, _: object = None) -> str:
    for unit, name in UNITS:
        if value >= 0.999 * unit:
            return f"{value / unit:.0f} {name}"
    return f"{value:g} s"


def _count(value: float, _: object = None) -> str:
    for unit, name in ((1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:g}{name}"
    return f"{value:g}"


def _panel(axes: Axes, panel: dict[str, Any]) -> None:
    """Curves with their names at their right ends."""
    sizes = [x for x, _ in next(iter(panel["curves"].values()))]
    for (name, points), color in zip(panel["curves"].items(), COLORS, strict=False):
        x, y = zip(*points, strict=True)
        axes.plot(x, y, color=color, linewidth=1.8, marker="o", markersize=3.2)
        weight = "bold" if color == COLORS[0] else "normal"
        place = {"xytext": (7, 0), "textcoords": "offset points", "va": "center"}
        axes.annotate(name, (x[-1], y[-1]), color=color, fontsize=8.5, weight=weight, **place)
    axes.set_xscale("log")
    axes.set_yscale("log")
    few = sizes[-1] < 100 * sizes[0]
    axes.set_xticks(sizes if few else [10.0**p for p in range(7) if sizes[0] <= 10**p <= sizes[-1]])
    axes.xaxis.set_major_formatter(FuncFormatter(_count))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(_seconds))
    axes.yaxis.set_minor_formatter(NullFormatter())
    low, high = axes.get_ylim()
    axes.set_ylim(low / 1.3, high * 1.3)
    axes.yaxis.set_major_locator(LogLocator(10, subs=(1, 2, 5) if high < 50 * low else (1,)))
    axes.set_xlabel(panel["x"], fontsize=9)
    axes.set_ylabel(f"CPU time per {panel['item']}", fontsize=9)
    axes.grid(color=GRID, linewidth=0.7)
    axes.tick_params(which="both", length=0, labelsize=8.5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#999999")


def _caption(record: dict[str, Any]) -> str:
    build, peers = record["build"], record["peers"]
    versions = ("matplotlib", "opencv-python-headless", "scipy", "numpy", "tokenizers")
    return "\n".join(
        (
            "One thread, all sides in turns,",
            "results compared before timing.",
            "",
            f"{record['processor']}, {record['cores']} cores, {record['memory_gib']:.0f} GiB",
            f"{build['compiler']}, {build['isa']}",
            f"Python {record['python']}",
            *(f"{name} {peers[name]}" for name in versions),
            f"load {record['load'][0]} to {record['load'][1]}",
            f"{record['date'][:10]}, commit {record['commit']}",
        )
    )


def draw(measured: dict[str, Any], path: Path) -> None:
    """Write the figure as SVG; the last place holds the machine."""
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": path.name})
    figure = Figure(figsize=(10.6, 5.4), layout="constrained")
    places = figure.subplots(2, 3).ravel()
    for axes, panel in zip(places, measured["panels"], strict=False):
        _panel(axes, panel)
    places[-1].axis("off")
    places[-1].text(0.02, 0.97, _caption(measured["machine"]), va="top", color=TEXT, fontsize=8,
                    transform=places[-1].transAxes, linespacing=1.45)  # fmt: skip
    FigureCanvasSVG(figure)
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
