"""Which curves a run's page shows, section by section."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from trainer.report.anatomy import Anatomy, anatomy
from trainer.report.claims import Axis
from trainer.report.examples import SeriesSource
from trainer.report.figures import POSITION_COLOURS, Curve, Figure, Look, draw, smooth
from trainer.report.run import Run

STAGES = ("charts", "rollout", "reward", "update")
_STAGE_COLOURS = ("blue", "accent", "warm", "rose")


@dataclass(frozen=True, slots=True)
class Levels:
    """Accuracies that need no captioner: ``floor`` of an empty caption, ``chance`` = 1/K."""

    floor: float | None
    chance: float | None
    scale: float

    def curves(self, factor: float = 1.0) -> list[Curve]:
        """Return the levels as lines across a figure."""
        shown = []
        if self.floor is not None:
            shown.append(Curve("blind floor", (), [factor * self.floor], "ink", "dashed"))
        if self.chance is not None:
            shown.append(Curve("chance", (), [factor * self.chance], "muted", "dotted"))
        return shown


def _window(n: int) -> int:
    return int(np.clip(n // 12, 3, 25))


def _noisy(run: Run, metric: str, name: str, colour: str, digits: int = 3) -> list[Curve]:
    """Return a training metric as a faint line per step under its running mean."""
    x, y = run.curve(metric)
    if len(x) < 8:
        return [Curve(name, x, y, colour, "points" if len(x) < 2 else "line", digits)]
    window = _window(len(x))
    return [
        Curve(f"{name}, each step", x, y, colour, "faint", digits),
        Curve(f"{name}, mean of {window} steps", x, smooth(y, window), colour, "line", digits),
    ]


def learning(run: Run, levels: Levels) -> list[Figure]:
    """Return accuracy and reward over the run, with what a blind guesser gets."""
    x, y = run.curve("val/acc")
    accuracy = draw(
        "accuracy",
        "Accuracy",
        [
            *_noisy(run, "lineup/acc", "training", "accent"),
            Curve("validation", x, y, "warm", "points"),
            *levels.curves(),
        ],
        limits=(0, 1),
        percent=True,
        note="Share of the K positions at which the verifier, reading only the caption, "
        "picked the described series.",
    )
    x, y = run.curve("val/reward")
    reward = draw(
        "reward",
        "Reward",
        [
            *_noisy(run, "reward", "training", "accent"),
            Curve("validation", x, y, "warm", "points"),
            *levels.curves(levels.scale),
        ],
        limits=(0, None),
        note=f"{levels.scale:g} × accuracy; what the captioner is trained on.",
    )
    x, y = run.curve("val/loss")
    loss = draw(
        "loss",
        "Loss",
        [*_noisy(run, "loss", "training", "accent"), Curve("validation", x, y, "warm", "points")],
        note="Supervised: mean of -log p over caption tokens, nats.",
    )
    return [figure for figure in (accuracy, reward, loss) if figure]


def positions(run: Run, levels: Levels) -> list[Figure]:
    """Return accuracy by the position of the target: training (running mean) and validation."""
    shown = []
    kinds: tuple[tuple[str, str, str, Look], ...] = (
        ("position-train", "lineup/acc_by_position", "In training", "line"),
        ("position-val", "val/acc_by_position", "In validation", "points"),
    )
    for name, metric, title, look in kinds:
        curves, window = [], 0
        for k, (x, values) in enumerate(run.curves(metric)):
            if look == "line":
                window = _window(len(values))
                values = smooth(values, window)
            colour = POSITION_COLOURS[k % len(POSITION_COLOURS)]
            curves.append(Curve(f"target at {chr(ord('A') + k)}", x, values, colour, look))
        note = f"Mean of {window} steps." if window else ""
        if curves:
            curves += levels.curves()
        shown.append(draw(name, title, curves, limits=(0, 1), percent=True, note=note))
    return [figure for figure in shown if figure]


def throughput(run: Run) -> list[Figure]:
    """Return seconds per step by stage, and tokens per second."""
    stages = []
    for stage, colour in zip(STAGES, _STAGE_COLOURS, strict=True):
        x, y = run.curve(f"time/{stage}_s")
        stages.append(Curve(stage, x, y, colour, "area", 2))
    full = len(stages[0].x)
    stages = [s for s in stages if full and list(s.x) == list(stages[0].x)]
    shown = [draw("stages", "Seconds a step, by stage", stages, limits=(0, None))]
    rates = token_rates(run)
    curves = [Curve("tokens / s", list(rates), list(rates.values()), "accent", "line", 0)]
    shown.append(
        draw(
            "rate",
            "Tokens a second",
            curves,
            limits=(0, None),
            note="Tokens of the step (as the trainer counts them) over the step's wall time.",
        )
    )
    return [figure for figure in shown if figure]


def token_rates(run: Run) -> dict[int, float]:
    """Return tokens a second by step; ``num_tokens`` may be a running total or a step's count."""
    steps, totals = run.curve("num_tokens")
    if len(totals) > 1 and all(b > a for a, b in pairwise(totals)):
        before = [0.0, *totals[:-1]] if steps[0] <= 1 else [float("nan"), *totals[:-1]]
        counts = {s: t - b for s, t, b in zip(steps, totals, before, strict=True)}
    else:
        counts = dict(zip(steps, totals, strict=True))
    seconds = dict(zip(*run.curve("step_time"), strict=True))
    return {
        step: count / seconds[step]
        for step, count in counts.items()
        if seconds.get(step, 0) > 0 and count > 0
    }


def health(run: Run) -> list[Figure]:
    """Return the small charts that show whether a run is well."""
    wanted = (
        ("entropy", "Entropy", "nats a token", "accent", 3),
        ("grad_norm", "Gradient norm", "before clipping", "blue", 3),
        ("completions/mean_length", "Caption length", "tokens", "warm", 1),
        ("completions/clipped_ratio", "Cut at the limit", "share of captions", "warm", 3),
        ("lineup/invalid_frac", "Invalid", "share of captions without a reward", "rose", 3),
        ("frac_reward_zero_std", "Silent groups", "all rewards equal, nothing learned", "rose", 3),
        ("lineup/label_mass", "Label mass", "probability on the K letters", "violet", 3),
        ("lr", "Learning rate", "", "blue", 7),
        ("lineup/distinct_openings_frac", "Distinct openings", "first eight words", "violet", 3),
        ("mismatch/logp_gap_mean", "Engine mismatch", "mean |log-prob gap| a token", "rose", 4),
        ("lineup/unique_frac", "Distinct captions", "share of a step's captions", "violet", 3),
        ("reward_std", "Reward spread", "standard deviation within groups", "accent", 3),
    )
    shown = []
    for metric, title, note, colour, digits in wanted:
        share = metric in ("completions/clipped_ratio", "lineup/invalid_frac")
        curves = _noisy(run, metric, title.lower(), colour, digits)
        name = "health-" + metric.replace("/", "-")
        limits = (0, None if not share or any(curves[0].y) else 1)
        shown.append(draw(name, title, curves, small=True, limits=limits, percent=share, note=note))
    return [figure for figure in shown if figure]


def anatomies(run: Run, corpus: SeriesSource | None, axis: Axis) -> dict[int, Anatomy]:
    """Return the anatomy of the captions of every validation pass whose series are at hand."""
    found = {}
    for step, rows in sorted(run.validation.items()):
        captions: list[str] = []
        series: list[NDArray[np.float64]] = []
        for row in rows:
            try:
                values = corpus.series(row.id) if corpus is not None else None
            except (KeyError, ValueError):
                values = None
            if values is not None:
                captions.append(row.caption)
                series.append(np.asarray(values, dtype=np.float64))
        if captions:
            found[step] = anatomy(captions, series, axis)
    return found


def anatomy_figures(found: Mapping[int, Anatomy]) -> list[Figure]:
    """Return how captions change over the run."""
    steps = list(found)

    def curve(name: str, field: str, colour: str, look: Look = "points", digits: int = 2) -> Curve:
        kept = [(s, getattr(found[s], field)) for s in steps]
        kept = [(s, v) for s, v in kept if v is not None]
        x: Sequence[float] = [s for s, _ in kept]
        return Curve(name, x, [v for _, v in kept], colour, look, digits)

    truth = [
        curve("values that are true", "values_true", "accent", digits=3),
        curve("values, held against another series", "values_true_elsewhere", "accent", "dashed"),
        curve("times that are true", "times_true", "warm", digits=3),
        curve("times, held against another series", "times_true_elsewhere", "warm", "dashed"),
    ]
    figures = [
        draw("truth", "True of the series", truth, limits=(0, 1), percent=True),
        draw(
            "named",
            "Named in a caption",
            [
                curve("values", "values", "accent"),
                curve("time positions", "times", "warm"),
            ],
            limits=(0, None),
        ),
        draw(
            "characters",
            "Length",
            [curve("characters", "characters", "blue", digits=1)],
            small=True,
            limits=(0, None),
        ),
        draw(
            "openings",
            "Distinct openings",
            [curve("openings", "distinct_openings", "violet", digits=0)],
            small=True,
            limits=(0, None),
        ),
        draw(
            "opening",
            "Share of the commonest opening",
            [curve("share", "common_opening_frac", "rose", digits=3)],
            small=True,
            limits=(0, 1),
            percent=True,
        ),
    ]
    return [figure for figure in figures if figure]
