"""Entailment: the share of references that a caption makes certain, by a frozen NLI model.

Premise is the caption, hypothesis the reference; entailed where q ≥ τ. The other direction is kept
beside it, and what an empty caption and the reference itself get: the metric reads similarity as
much as truth (repeating a caption lowers it), so it means nothing without its floor and ceiling.
Source: paper, "entailment" (τ = 0.5).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from trainer.evaluate.benchmark import Benchmark
from trainer.evaluate.nli import Floats, NliModel, Pair
from trainer.evaluate.table import Table

TAU = 0.5
TooLong = Literal["refuse", "leave out"]
NO_REFERENCE = "no reference"


def entailment(
    captions: Mapping[str, str],
    benchmark: Benchmark,
    model: NliModel,
    *,
    tau: float = TAU,
    too_long: TooLong = "refuse",
    progress: Callable[[str, int, int], None] = lambda *_: None,
) -> list[Table]:
    """Tables `entailment` (caption ⊨ reference), `entailment_reverse` (reference ⊨ caption) and
    `entailment_both`, per series the share of its references with q ≥ tau; and `entailment_q`, the
    mean q of the first.

    captions: by id, of every series of the benchmark. too_long: what becomes of a series whose
    texts are longer than the model reads, refuse all or leave it out with its reason; nothing is
    ever cut. controls: floor (empty caption), ceiling (every reference against itself).
    Series without references have no value, for that reason.

    Raises:
        ValueError: a caption is missing, there are no references, a text is too long.
    """
    if not 0.0 < tau < 1.0:
        raise ValueError(f"tau: expected between 0 and 1, got {tau}")
    silent = [id_ for id_ in benchmark.references if id_ not in captions]
    if silent:
        raise ValueError(
            f"captions: expected one for every series of {benchmark.name}, got none for "
            f"{len(silent)} ({silent[0]}, …)"
        )
    missing = {i: NO_REFERENCE for i in benchmark.ids if i not in benchmark.references}
    told = {
        id_: [(captions[id_], reference) for reference in references]
        for id_, references in benchmark.references.items()
    }
    missing |= _too_long(told, model, too_long)
    told = {id_: pairs for id_, pairs in told.items() if id_ not in missing}
    if not told:
        raise ValueError(f"{benchmark.name}: expected series with references, got none to score")
    q = _scored(told, model, lambda done, n: progress("entailment", done, n))
    meta = {
        "model": model.name,
        "fingerprint": model.fingerprint(),
        "tau": tau,
        "max_tokens": model.max_tokens,
        "n_pairs": sum(map(len, told.values())),
    }
    share = {name: (values >= tau).astype(np.float64) for name, values in q.items()}
    columns = {
        "entailment": (share["caption"], share["empty"], share["itself"]),
        "entailment_reverse": (share["reverse"], share["empty_reverse"], share["itself"]),
        "entailment_both": (
            share["caption"] * share["reverse"],
            share["empty"] * share["empty_reverse"],
            share["itself"],
        ),
        "entailment_q": (q["caption"], q["empty"], q["itself"]),
    }
    tables = [_table(metric, told, *column, meta, missing) for metric, column in columns.items()]
    return [table.check(benchmark.ids) for table in tables]


def _ways(caption: str, reference: str) -> dict[str, Pair]:
    """What is asked about one reference, premise first."""
    return {
        "caption": (caption, reference),
        "reverse": (reference, caption),
        "empty": ("", reference),
        "empty_reverse": (reference, ""),
        "itself": (reference, reference),
    }


def _too_long(told: Mapping[str, Sequence[Pair]], model: NliModel, what: TooLong) -> dict[str, str]:
    """Why series cannot be read whole, by id; raises ValueError where that is not wanted."""
    if model.max_tokens is None:
        return {}
    owners, pairs = [], []
    for id_, own in told.items():
        for pair in own:
            owners += [id_] * 2
            pairs += [pair, (pair[1], pair[1])]
    reasons: dict[str, str] = {}
    for id_, n_tokens in zip(owners, model.lengths(pairs), strict=True):
        if n_tokens > model.max_tokens:
            reasons[id_] = (
                f"caption and reference make {n_tokens} tokens, "
                f"{model.name} reads {model.max_tokens}"
            )
    if reasons and what == "refuse":
        id_ = next(iter(reasons))
        raise ValueError(
            f"captions: expected pairs of at most {model.max_tokens} tokens, got longer ones for "
            f"{len(reasons)} series ({id_}: {reasons[id_]}); nothing is cut, they can be left out"
        )
    return reasons


def _scored(
    told: Mapping[str, Sequence[Pair]], model: NliModel, progress: Callable[[int, int], None]
) -> dict[str, Floats]:
    """q f64[pairs] of every kind of question, pairs in order."""
    asked = [_ways(*pair) for pairs in told.values() for pair in pairs]
    q = model.probabilities([pair for ways in asked for pair in ways.values()], progress)
    names = list(asked[0])
    return {name: q[at :: len(names)] for at, name in enumerate(names)}


def _table(
    metric: str,
    told: Mapping[str, Sequence[Pair]],
    own: Floats,
    floor: Floats,
    ceiling: Floats,
    meta: Mapping[str, Any],
    missing: Mapping[str, str],
) -> Table:
    """Means per series of values f64[pairs] in the order of `told`."""
    ends = np.cumsum([len(pairs) for pairs in told.values()])

    def per_series(values: Floats) -> list[float]:
        return [float(part.mean()) for part in np.split(values, ends[:-1])]

    return Table(
        metric,
        dict(zip(told, per_series(own), strict=True)),
        controls={
            "floor": float(np.mean(per_series(floor))),
            "ceiling": float(np.mean(per_series(ceiling))),
        },
        meta={**meta, "mean_over_pairs": float(own.mean())},
        missing=dict(missing),
    )
