"""Puts a run's page together: facts, headline, figures, examples, and the template around them."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from lineup_fast import charts
from trainer.report import panels
from trainer.report.audit import audit_tables
from trainer.report.claims import AXIS_TOLERANCE, RELATIVE_TOLERANCE, STEP_SLACK
from trainer.report.evaluation import digits, run_evaluation
from trainer.report.examples import SPARK_HEIGHT, SPARK_WIDTH, SeriesSource, examples
from trainer.report.run import Run

_TEMPLATES = Path(__file__).parent / "templates"
_FACTS = (
    ("Captioner", "model"),
    ("Verifier", "verifier"),
    ("Recipe", "recipe"),
    ("Charts a step", "charts"),
    ("Captions a chart", "group_size"),
    ("Learning rate", "lr"),
    ("Seed", "seed"),
    ("Corpus", "corpus_fingerprint"),
    ("Chart style", "chart_style"),
    ("Prompt version", "prompt_version"),
    ("Kernels", "implementation"),
)
_FINGERPRINT_DIGITS = 16


@dataclass(frozen=True, slots=True)
class Score:
    """Accuracy on one fixed set before and after; ``step`` is the kept checkpoint's."""

    title: str
    note: str
    start: float
    best: float
    floor: float | None
    n: int | None


def build(run: Run, corpus: SeriesSource | None, *, n_examples: int = 8) -> str:
    """Return the page of ``run`` as one HTML document without outside references.

    ``corpus`` gives the series behind the captions; without it the charts, candidates and the
    claim check are left out and the page says so.
    """
    levels = _levels(run)
    style = chart_style(run)
    axis = style.y_limits if style is not None else None
    found = panels.anatomies(run, corpus, axis)
    script = (_TEMPLATES / "page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {"pct": percent, "num": number, "digits": digits}
    return environment.get_template("page.html.j2").render(
        name=run.path.resolve().name,
        facts=facts(run),
        scores=scores(run, levels),
        levels=levels,
        speed=speed(run),
        learning=panels.learning(run, levels),
        positions=panels.positions(run, levels),
        throughput=panels.throughput(run),
        health=panels.health(run),
        anatomy=list(found.items()),
        audit=audit_tables(run),
        evaluation=run_evaluation(run),
        anatomy_figures=panels.anatomy_figures(found),
        examples=examples(run, corpus, style, n_examples),
        spark=(SPARK_WIDTH, SPARK_HEIGHT),
        validations=validation_rows(run),
        settings=settings(run.config),
        notes=notes(run, corpus, style),
        tolerance=RELATIVE_TOLERANCE,
        axis_tolerance=AXIS_TOLERANCE if axis else None,
        slack=STEP_SLACK,
        style=Markup((_TEMPLATES / "page.css").read_text(encoding="utf-8")),
        script=Markup(script),
        script_digest=digest,
    )


def percent(value: float | None) -> str:
    """Return a share as percent with one decimal, "–" where there is none."""
    return "–" if value is None else f"{100 * value:.1f}%"


def number(value: float | None, digits: int = 3) -> str:
    """Return a number with at most ``digits`` decimals, "–" where there is none."""
    if value is None:
        return "–"
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def facts(run: Run) -> list[tuple[str, str]]:
    """Return what identifies the run, as label and text; unknown facts are left out."""
    shown = []
    for label, name in _FACTS:
        value = run.get(name)
        if value is not None and not isinstance(value, (dict, list)):
            text = str(value)
            shown.append((label, text[:_FINGERPRINT_DIGITS] if label == "Corpus" else text))
    versions = run.get("versions")
    if isinstance(versions, dict):
        shown.append(("Versions", " · ".join(f"{k} {v}" for k, v in versions.items())))
    return shown


def _levels(run: Run) -> panels.Levels:
    _, floors = run.curve("val/floor")
    floor = floors[-1] if floors else None
    k = run.get("k") if run.get("reward") in (None, "identification") else 0
    if not isinstance(k, int):
        rows = next(iter(run.validation.values()), [])
        k = next((len(row.picks) for row in rows if row.picks), None)
    scale = run.get("reward_scale")
    scale = float(scale) if isinstance(scale, (int, float)) else 2.0
    return panels.Levels(floor, 1 / k if k else None, scale)


def scores(run: Run, levels: panels.Levels) -> list[Score]:
    """Return the accuracies at the start and of the kept checkpoint, on each fixed set."""
    shown = []
    steps, accuracies = run.curve("val/acc")
    if accuracies:
        best = max(range(len(steps)), key=lambda i: (accuracies[i], -steps[i]))
        n = len(run.validation[steps[0]]) if steps[0] in run.validation else None
        note = f"kept: step {steps[best]:,}" if len(steps) > 1 else "one pass so far"
        shown.append(
            Score("Validation set", note, accuracies[0], accuracies[best], levels.floor, n)
        )
    final = {key.replace("/", "_"): value for key, value in run.final.items()}
    if isinstance(final.get("start_acc"), float) and isinstance(final.get("best_acc"), float):
        floor = final.get("floor")
        shown.append(
            Score(
                "Second fixed set",
                "selected nothing",
                final["start_acc"],
                final["best_acc"],
                floor if isinstance(floor, float) else None,
                final.get("n"),
            )
        )
    return shown


def speed(run: Run) -> list[tuple[str, str]]:
    """Return how long the run took and how fast it went."""
    steps, seconds = run.curve("step_time")
    shown = []
    if steps:
        shown.append(("Training steps", f"{len([s for s in steps if s > 0]):,}"))
        shown.append(("Time in steps", duration(sum(seconds))))
        _, validating = run.curve("time/validation_s")
        if validating:
            shown.append(("Time in validation", duration(sum(validating))))
        shown.append(("Seconds a step", number(sorted(seconds)[len(seconds) // 2], 2)))
    rates = sorted(panels.token_rates(run).values())
    if rates:
        shown.append(("Tokens a second", number(rates[len(rates) // 2], 0)))
    return shown


def duration(seconds: float) -> str:
    """Return seconds as "1 h 03 min", "4 min 10 s" or "12 s"."""
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 60} min {whole % 60:02d} s" if whole >= 60 else f"{whole} s"


def chart_style(run: Run) -> charts.ChartStyle | None:
    """Return the style the run's charts were drawn in, None when the configuration lacks it."""
    return charts.STYLES.get(run.get("chart_style") or "")


def validation_rows(run: Run) -> list[dict[str, Any]]:
    """Return the metrics rows of the validation passes."""
    return [row for row in run.metrics if isinstance(row.get("val/acc"), (int, float))]


def settings(tree: object, prefix: str = "") -> list[tuple[str, str]]:
    """Return a configuration as dotted names and texts."""
    if isinstance(tree, dict):
        return [
            line
            for key, value in tree.items()
            for line in settings(value, f"{prefix}.{key}" if prefix else str(key))
        ]
    return [(prefix, "–" if tree is None else str(tree))]


def notes(run: Run, corpus: SeriesSource | None, style: charts.ChartStyle | None) -> list[str]:
    """Return what the reader must know about gaps in the page."""
    said = list(run.notes)
    if corpus is None:
        said.append(
            "The corpus was not found: charts, candidates and the check of named values are left "
            "out (give its folder with --corpus)."
        )
    elif style is None:
        said.append("The chart style is unknown: the charts are left out.")
    elif style.fingerprint != (run.get("style") or {}).get("fingerprint"):
        said.append("The chart style has changed since the run: charts are drawn in today's form.")
    return said
