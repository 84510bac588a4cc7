"""What each piece costs as its size grows, ours beside the peers: measured, then drawn.

python -m bench.cost               measure into bench/results/cost-plot.json, draw docs/cost.svg
python -m bench.cost --draw        draw again what was measured last

CPU time of one thread, contenders in turns, medians. Equality is asserted before anything is timed.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from bench import peers
from bench.cost_plot import draw
from bench.figures import Panels, measure_or_draw
from bench.record import seconds_of
from lineup_fast import SlidingWindows, charts, kernels
from lineup_fast.prompt_tokens import PromptBuilder
from lineup_fast.prompts import Recipe, user_text

OURS = "lineup_fast"
Call = Callable[[], Any]
Costs = dict[str, float]  # seconds per item, by contender

CHART_STEPS = (24, 96, 384, 1536, 6144, 24_576, 100_000)
WINDOWS = (1_000, 3_000, 10_000, 30_000, 100_000, 600_000)
SERIES = (100, 1_000, 10_000, 100_000, 1_000_000)
CANDIDATES = (2, 3, 4, 6, 8, 12)
PROMPT_STEPS = (12, 24, 48, 96, 192, 384, 768)
SAMPLE = 20_000  # queries that a slow tree is asked where there are more windows than 100,000


def in_turns(contenders: Mapping[str, tuple[Call, float]]) -> Costs:
    """Median CPU seconds per item of each (call, items per call); as many rounds as take about two
    seconds, at most 15."""
    first = {name: seconds_of(call) for name, (call, _) in contenders.items()}
    rounds = int(np.clip(2 / sum(first.values()), 1, 15))
    turns = [
        [seconds_of(call) / items for call, items in contenders.values()] for _ in range(rounds)
    ]
    return dict(zip(contenders, map(statistics.median, zip(*turns, strict=True)), strict=True))


def chart_costs(steps: int) -> Costs:
    """Seconds per chart; dots on the points where ours draws them."""
    markers = steps <= 96
    n, few = (64, 4) if steps <= 2_000 else (8, 2)
    series = [np.random.default_rng(i).normal(size=steps).cumsum() for i in range(n)]
    plans = [peers.plan(values) for values in series]
    figure, opencv = peers.Matplotlib(markers=markers), peers.OpenCV(markers=markers)
    out, theirs = charts.render(series, threads=1), np.empty((n, 308, 588, 3), np.uint8)

    def draw() -> None:
        for plan, image in zip(plans, theirs, strict=True):
            opencv.draw(plan, image)

    draw()
    assert np.array_equal(theirs[0][:, plans[0].left], out[0][:, plans[0].left])  # the same frame
    return in_turns(
        {
            OURS: (lambda: charts.render(series, out=out, threads=1), n),
            "OpenCV": (draw, n),
            "matplotlib": (lambda: [figure.draw(plan) for plan in plans[:few]], few),
        }
    )


def neighbour_costs(n: int) -> Costs:
    """Seconds per window to find the 8 nearest of all of them, the tree included."""
    steps, k = 96, 8
    windows = SlidingWindows.cut(peers.ett_like(n, steps), steps)
    phi = kernels.features(windows)
    pool: dict[str, Any] = {"series": windows, "decimals": 4, "max_run": 19, "rule": "window"}
    pool["z"] = (phi - phi.mean(axis=0)) / phi.std(axis=0)
    span = int(windows.start.max()) + 2 * steps
    place = windows.source.astype(np.int64) * span + windows.start
    asked = np.arange(n)
    if n > 100_000:
        asked = np.sort(np.random.default_rng(0).choice(n, SAMPLE, replace=False))

    def ours() -> Any:
        return kernels.neighbours(**pool, k=k, threads=1)

    def tree(queries: Any) -> Any:
        return peers.ckdtree(pool["z"], place, steps - pool["max_run"] - 1, k, queries)

    np.testing.assert_array_equal(tree(asked[:2_000]), ours()[asked[:2_000]])
    costs = in_turns({OURS: (ours, n), "built": (lambda: tree(asked[:1]), 1)})
    built = costs.pop("built")
    queried = in_turns({"asked": (lambda: tree(asked), 1)})["asked"] - built
    return costs | {"scipy cKDTree": built / n + queried / len(asked)}


def feature_costs(n: int) -> Costs:
    """Seconds per series of 96 values."""
    series = np.random.default_rng(0).normal(size=(n, 96))
    phi, theirs = np.empty((n, 4)), np.empty((4, n))
    kernels.features(series, out=phi, threads=1)
    peers.numpy_features(series, theirs)
    np.testing.assert_allclose(phi, theirs.T, rtol=1e-9, atol=1e-12)
    repeat = max(1, 10_000 // n)
    return in_turns(
        {
            OURS: (
                lambda: [kernels.features(series, out=phi, threads=1) for _ in range(repeat)],
                n * repeat,
            ),
            "numpy": (
                lambda: [peers.numpy_features(series, theirs) for _ in range(repeat)],
                n * repeat,
            ),
        }
    )


def prompt_costs(k: int, steps: int) -> Costs:
    """Seconds per question: the ids of its K rotations."""
    from tests.real_tokenizers import real_tokenizer

    n, decimals, caption = 8, 2, "x"
    tokenizer = real_tokenizer("qwen2.5")
    builder = PromptBuilder(tokenizer, Recipe(k=k, decimals=decimals))
    sets = 10 + 2 * np.random.default_rng(0).normal(size=(n, k, steps)).cumsum(axis=2)
    ids = [builder.caption_ids([caption])] * n
    out, offsets = builder.prompts(sets, decimals, ids, threads=1)
    user = user_text(builder.recipe, "{blocks}", caption)
    text = peers.PromptText(*builder.encoder.prompt_text(user).split("{blocks}"), decimals)
    backend = tokenizer.backend_tokenizer
    whole = [out[a:b].tolist() for a, b in itertools.pairwise(offsets)]
    assert peers.hf_batch(backend, text, sets) == whole

    def ours() -> None:
        for _ in range(20):
            builder.prompts(sets, decimals, ids, out=out, threads=1)

    return in_turns(
        {
            OURS: (ours, 20 * n),
            "HF tokenizers": (lambda: peers.hf_batch(backend, text, sets), n),
        }
    )


# Title of the x-axis, what one item is, and what measures one size.
PANELS: tuple[tuple[str, str, Iterable[int], Callable[[int], Costs]], ...] = (
    ("points T of a chart", "chart", CHART_STEPS, chart_costs),
    ("windows N, 8 nearest of each", "window", WINDOWS, neighbour_costs),
    ("series N of 96 values, features", "series", SERIES, feature_costs),
    ("candidates K of a question, T = 96", "question", CANDIDATES, lambda k: prompt_costs(k, 96)),
    ("points T of a question, K = 4", "question", PROMPT_STEPS, lambda t: prompt_costs(4, t)),
)


def measure() -> Panels:
    """Per panel, seconds per item of each contender at each size."""
    panels = []
    for title, item, sizes, cost in PANELS:
        found = {}
        for size in sizes:
            found[size] = cost(size)
            shown = "  ".join(f"{name} {x * 1e6:,.2f} µs" for name, x in found[size].items())
            print(f"{title:36} {size:>9,}  {shown}", flush=True)
        names = next(iter(found.values()))
        curves = {name: [[size, cost[name]] for size, cost in found.items()] for name in names}
        panels.append({"x": title, "item": item, "curves": curves})
    return panels


if __name__ == "__main__":
    measure_or_draw("cost", __doc__, measure, draw)
