"""Speed-up of the verifier that computes each prefix once, beside the ratio of tokens.

python -m bench.verifier_speedup           measure with the tiny verifier, draw docs/verifier.svg
python -m bench.verifier_speedup --draw    draw again what was measured last

CPU time of one thread, float32, against batched scoring of whole prompts; picks compared first. The
dashed line is the ratio of tokens prefilled. A CPU shows the share of work saved, not an engine.
"""

from __future__ import annotations

import argparse
import datetime
import json
from pathlib import Path
from typing import Any

import numpy as np

from bench import machine
from bench.bench_verifier import GROUP, LAYOUTS, TINY, questions
from bench.naive_verifier import naive_logprobs
from bench.record import RESULTS, ratio
from lineup_fast.prompts import Layout

MEASURED = RESULTS.with_name("verifier_speedup.json")
DRAWN = Path(__file__).parents[1] / "docs" / "verifier.svg"
STEPS, GROUPS = (24, 48, 96, 144, 192), (1, 2, 4, 8, 16)
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
    return ratio(ours, naive, rounds=3).value, asked.bound


def measure() -> dict[str, Any]:
    """Curves over T at G = 8 and over G at T = 96, by layout."""
    from lineup_fast.verifiers.transformers import TransformersVerifier

    began, load = datetime.datetime.now(datetime.UTC), machine.load()
    verifier = TransformersVerifier(TINY, threads=1)
    verifier.max_prompt_tokens = None  # longer than it was trained for: only its speed is asked
    panels = []
    for name, sizes in (("T", STEPS), ("G", GROUPS)):
        curves: dict[str, list[Point]] = {layout: [] for layout in LAYOUTS}
        for layout in LAYOUTS:
            for size in sizes:
                shape = (size, GROUP) if name == "T" else (96, size)
                got, bound = point(verifier, layout, *shape)
                curves[layout].append((size, got, bound))
                print(
                    f"{layout:18} T={shape[0]:<4} G={shape[1]:<3} {got:5.2f}x  bound {bound:.2f}x"
                )
        panels.append({"size": name, "curves": curves})
    return {"machine": machine.describe(began, load), "panels": panels}


def draw(measured: dict[str, Any], path: Path) -> None:
    """Two panels: measured lines with their names, bounds dashed."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    from bench.cost_plot import COLORS, GRID, TEXT

    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": path.name})
    figure = Figure(figsize=(9.2, 3.4), layout="constrained")
    names = {"T": f"steps of a series (T), G = {GROUP}", "G": "captions of a series (G), T = 96"}
    for axes, panel in zip(figure.subplots(1, 2), measured["panels"], strict=True):
        for (layout, points), color in zip(panel["curves"].items(), COLORS, strict=False):
            sizes, got, bound = zip(*points, strict=True)
            axes.plot(sizes, bound, color=color, linewidth=1.1, linestyle="--")
            axes.plot(sizes, got, color=color, linewidth=1.8, marker="o", markersize=3.2)
            place = {"xytext": (7, 0), "textcoords": "offset points", "va": "center"}
            axes.annotate(layout, (sizes[-1], got[-1]), color=color, fontsize=8.5, **place)
        axes.set_xticks(sizes)
        axes.set_ylim(bottom=0)
        axes.set_xlabel(names[panel["size"]], fontsize=9)
        axes.set_ylabel("times faster", fontsize=9)
        axes.grid(color=GRID, linewidth=0.7)
        axes.tick_params(which="both", length=0, labelsize=8.5)
        axes.spines[["top", "right"]].set_visible(False)
    record = measured["machine"]
    said = "Tiny verifier, K = 4, one thread, float32. Dashed: ratio of tokens prefilled. "
    said += f"{record['processor']}, torch {record['peers']['torch']}, {record['date'][:10]}"
    figure.supxlabel(said, fontsize=7.5, color=TEXT)
    FigureCanvasSVG(figure)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.verifier_speedup", description=__doc__)
    parser.add_argument("--draw", action="store_true", help="draw what was measured last")
    if not parser.parse_args().draw:
        MEASURED.parent.mkdir(exist_ok=True)
        MEASURED.write_text(json.dumps(measure(), indent=1) + "\n", encoding="utf-8")
    draw(json.loads(MEASURED.read_text(encoding="utf-8")), DRAWN)
    print(DRAWN)


if __name__ == "__main__":
    main()
