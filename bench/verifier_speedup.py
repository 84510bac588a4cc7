"""Speed-up of the verifier that computes each prefix once, beside the ratio of tokens.

python -m bench.verifier_speedup           measure with the tiny verifier, draw docs/verifier.svg
python -m bench.verifier_speedup --draw    draw again what was measured last

CPU time of one thread, float32, against batched scoring of whole prompts; picks compared first. The
dashed line is the ratio of tokens prefilled. A CPU shows the share of work saved, not an engine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from bench.bench_verifier import GROUP, LAYOUTS, TINY, questions
from bench.figures import Panels, measure_or_draw
from bench.naive_verifier import naive_logprobs
from bench.record import cpu_times
from lineup_fast.prompts import Layout

STEPS, GROUPS, AT = (24, 48, 96, 144, 192), (1, 2, 4, 8, 16), 96
Point = tuple[int, float, float]  # size, speed-up, ratio of tokens


def point(verifier: Any, layout: Layout, steps: int, group: int) -> tuple[float, float]:
    """Speed-up and ratio of tokens for one series."""
    asked = questions(verifier.encoder, layout, steps, group)

    def ours() -> Any:
        return verifier.score(asked.trees, asked.labels)

    def naive() -> Any:
        return naive_logprobs(verifier.model, asked.trees, asked.labels)

    for answer, expected in zip(ours(), naive(), strict=True):
        assert np.array_equal(answer.label_logprobs.argmax(axis=2), expected.argmax(axis=2))
    spent = cpu_times({"naive": naive, "ours": ours}, rounds=2)
    return spent["naive"] / spent["ours"], asked.bound


def measure() -> Panels:
    """Curves over T at G = 8 and over G at T = 96, by layout."""
    from lineup_fast.verifiers.transformers import TransformersVerifier

    verifier = TransformersVerifier(TINY, threads=1)
    verifier.max_prompt_tokens = None  # longer than it was trained for: only its speed is asked
    panels = []
    for name, sizes in (("T", STEPS), ("G", GROUPS)):
        curves: dict[str, list[Point]] = {layout: [] for layout in LAYOUTS}
        for layout in LAYOUTS:
            for size in sizes:
                steps, group = (size, GROUP) if name == "T" else (AT, size)
                got, bound = point(verifier, layout, steps, group)
                curves[layout].append((size, got, bound))
                print(
                    f"{layout:18} T={steps:<4} G={group:<3} {got:5.2f}x  bound {bound:.2f}x",
                    flush=True,
                )
        panels.append({"size": name, "curves": curves})
    return panels


def draw(measured: dict[str, Any], path: Path) -> None:
    """Two panels: measured lines with their names, the bound of each dashed, plain scoring at 1."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    from bench.cost_plot import COLORS, GRID, TEXT

    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": path.name})
    figure = Figure(figsize=(9.2, 4.0), layout="constrained")
    names = {"T": f"steps T of a series, G = {GROUP}", "G": f"captions G of a series, T = {AT}"}
    highest = max(p[2] for panel in measured["panels"] for c in panel["curves"].values() for p in c)
    for axes, panel in zip(figure.subplots(1, 2, sharey=True), measured["panels"], strict=True):
        for (layout, points), color in zip(panel["curves"].items(), COLORS, strict=False):
            sizes, got, bound = zip(*points, strict=True)
            axes.plot(sizes, bound, color=color, linewidth=1.1, linestyle=(0, (4, 3)))
            axes.plot(sizes, got, color=color, linewidth=1.8, marker="o", markersize=3.2)
            above = {
                "xytext": (0, 7),
                "textcoords": "offset points",
                "ha": "right",
                "fontsize": 8.5,
            }
            axes.annotate(layout, (sizes[-1], bound[-1]), color=color, **above)
            for size, value in zip(sizes, got, strict=True):
                below = above | {"xytext": (0, -12), "ha": "center", "fontsize": 7}
                axes.annotate(f"{value:.1f}", (size, value), color=color, **below)
        axes.axhline(1, color="#999999", linewidth=0.9)
        axes.set_xticks(sizes)
        axes.set_ylim(0, 1.12 * highest)
        axes.set_xlabel(names[panel["size"]], fontsize=9)
        axes.grid(color=GRID, linewidth=0.7)
        axes.tick_params(which="both", length=0, labelsize=8.5)
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("times less CPU time", fontsize=9)
    black = {"color": TEXT, "linewidth": 1.6}
    kinds = [
        Line2D([], [], marker="o", markersize=3.2, **black, label="measured"),
        Line2D([], [], linestyle=(0, (4, 3)), **black, label="bound: times fewer tokens prefilled"),
        Line2D([], [], color="#999999", linewidth=0.9, label="whole prompts, batched"),
    ]
    figure.legend(handles=kinds, loc="outside upper center", ncols=3, frameon=False, fontsize=8.5)
    record = measured["machine"]
    said = (
        "Tiny verifier, K = 4, CPU, one thread, float32: work saved, not the speed of an engine. "
    )
    said += f"{record['processor']}, torch {record['peers']['torch']}, {record['date'][:10]}"
    figure.supxlabel(said, fontsize=7.5, color=TEXT)
    FigureCanvasSVG(figure)
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    measure_or_draw("verifier", __doc__, measure, draw)
