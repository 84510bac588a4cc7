"""Identification: can a frozen reader match captions and series, in both directions.

c→s (`identify_series`): from a caption alone, which of K series; s→c (`identify_caption`): from a
series alone, which of K captions of the same captioner. K - 1 others are the evaluation neighbours
of the benchmark; every position of the target is asked; the mean over verifiers counts.
Source: paper, "identification".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from lineup_fast.prompts import Recipe
from lineup_fast.verifiers.base import Verifier
from trainer.evaluate.benchmark import Benchmark
from trainer.evaluate.caption_questions import recipe_name
from trainer.evaluate.line_up import ARMS, Answers, CaptionLineUp, Examiner, SeriesLineUp
from trainer.evaluate.statistics import chance_corrected
from trainer.evaluate.table import Table, checked_name

AT_ONCE = 32  # series per call of a verifier: between two steps of the progress bar
Progress = Callable[[str, int, int], None]


def identify_series(
    captions: Mapping[str, str],
    benchmark: Benchmark,
    verifiers: Mapping[str, Verifier],
    recipe: Recipe | None = None,
    *,
    seed: int = 0,
    progress: Progress = lambda *_: None,
) -> list[Table]:
    """c→s as tables `identify_series` (the mean over verifiers) and, of several verifiers,
    `identify_series@NAME` of each: accuracy per series over all K positions.

    captions: by id, of every series of the benchmark; an empty one is asked about like any other.
    verifiers: by the name that results give them. recipe: K, layout, scoring and number format.
    controls: empty (what the candidate sets leak), mismatch (a caption of another series of the
    same length outside of the set), order (candidates in one seeded order, asked once). meta:
    chance-corrected accuracy, accuracy by position, label shares without captions, tokens.
    Series that are not asked about, or got no answer from a verifier, are in `missing`.

    Raises:
        ValueError: a caption is missing, no verifier, a recipe that asks one position only.
    """
    recipe = recipe or Recipe()
    return _run(
        "identify_series", SeriesLineUp, recipe.name,
        Examiner(captions, benchmark, recipe, seed), verifiers, progress,
    )  # fmt: skip


def identify_caption(
    captions: Mapping[str, str],
    benchmark: Benchmark,
    verifiers: Mapping[str, Verifier],
    recipe: Recipe | None = None,
    *,
    seed: int = 0,
    progress: Progress = lambda *_: None,
) -> list[Table]:
    """s→c as tables `identify_caption` and, of several verifiers, `identify_caption@NAME`.

    As `identify_series`, but a series comes first and K captions follow, those of the same
    candidate series; layout does not matter. controls: empty (all captions: 1/K by itself, what
    the reader then picks is in meta), mismatch (the target's caption replaced), order.
    """
    recipe = recipe or Recipe()
    return _run(
        "identify_caption", CaptionLineUp, recipe_name(recipe),
        Examiner(captions, benchmark, recipe, seed), verifiers, progress,
    )  # fmt: skip


def _run(
    metric: str,
    kind: type[SeriesLineUp] | type[CaptionLineUp],
    name: str,
    examiner: Examiner,
    verifiers: Mapping[str, Verifier],
    progress: Progress,
) -> list[Table]:
    """All verifiers, one after the other, and their tables."""
    benchmark, recipe = examiner.benchmark, examiner.recipe
    silent = [id_ for id_ in benchmark.ids if id_ not in examiner.captions]
    if silent:
        raise ValueError(
            f"captions: expected one for every series of {benchmark.name}, got none for "
            f"{len(silent)} ({silent[0]}, …)"
        )
    if not verifiers:
        raise ValueError("verifiers: expected at least one, got none")
    if recipe.positions is not None:
        raise ValueError(
            f"recipe: expected one that asks all positions, got positions={recipe.positions}"
        )
    for label in verifiers:
        checked_name("verifiers", label)
    answers = {}
    for label, verifier in verifiers.items():
        line_up, answers[label] = kind(examiner, verifier), Answers()
        total = len(benchmark.asked_ids)
        for done, ids in _chunks(benchmark.asked_ids):
            progress(f"{metric} by {label}", done, total)
            line_up.run(ids, answers[label])
        progress(f"{metric} by {label}", total, total)
    prints = {label: verifier.fingerprint() for label, verifier in verifiers.items()}
    meta = {"recipe": name, "k": recipe.k, "seed": examiner.seed}
    tables = [_table(metric, answers, prints, benchmark, meta)]
    if len(verifiers) > 1:
        tables += [
            _table(f"{metric}@{label}", {label: own}, prints, benchmark, meta)
            for label, own in answers.items()
        ]
    return tables


def _table(
    metric: str,
    answers: Mapping[str, Answers],
    fingerprints: Mapping[str, str],
    benchmark: Benchmark,
    meta: Mapping[str, Any],
) -> Table:
    """The mean over these verifiers; a series counts where all of them answered."""
    means = {arm: _mean_accuracy(answers, arm) for arm in ARMS}
    missing: dict[str, str] = {}
    for label, own in answers.items():
        for id_, reason in own.reasons["caption"].items():
            missing.setdefault(id_, f"{label}: {reason}")
    missing |= benchmark.not_asked
    if not means["caption"]:
        raise ValueError(
            f"{metric}: expected answers, got none for {benchmark.name} "
            f"({next(iter(missing.values()), 'no series')})"
        )
    controls = {
        arm: float(np.mean([*values.values()]))
        for arm, values in means.items()
        if arm != "caption" and values
    }
    k = meta["k"]
    mean = float(np.mean([*means["caption"].values()]))
    told = {
        **meta,
        "chance": 1.0 / k,
        "chance_corrected": chance_corrected(mean, k),
        "by_position": np.mean([own.by_position("caption") for own in answers.values()], 0)
        .tolist(),
        "n_controls": {arm: len(values) for arm, values in means.items() if arm != "caption"},
        "verifiers": {
            label: _about(own, fingerprints[label]) for label, own in answers.items()
        },
    }  # fmt: skip
    table = Table(metric, means["caption"], controls=controls, meta=told, missing=missing)
    return table.check(benchmark.ids)


def _mean_accuracy(answers: Mapping[str, Answers], arm: str) -> dict[str, float]:
    """By id, over the verifiers; without the series that one of them did not answer."""
    each = [own.accuracy(arm) for own in answers.values()]
    return {
        id_: float(np.mean([accuracy[id_] for accuracy in each]))
        for id_ in each[0]
        if all(id_ in accuracy for accuracy in each)
    }


def _about(own: Answers, fingerprint: str) -> dict[str, Any]:
    """What one verifier answered, for meta."""
    accuracy = {arm: own.accuracy(arm) for arm in ARMS}
    return {
        "fingerprint": fingerprint,
        **{arm: float(np.mean([*values.values()])) for arm, values in accuracy.items() if values},
        "by_position": own.by_position("caption"),
        "picked_when_empty": own.picked("empty"),
        **own.counts,
    }


def _chunks(ids: Sequence[str]) -> Iterator[tuple[int, Sequence[str]]]:
    """(how many came before, up to AT_ONCE ids) of all of them."""
    for start in range(0, len(ids), AT_ONCE):
        yield start, ids[start : start + AT_ONCE]
