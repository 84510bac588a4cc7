"""Banks of multiple-choice questions about series: made from templates, or written by a VLM and
checked. Whatever its origin, every question of a bank has been verified against its series.

A bank is JSONL, one question a line: {"id", "stem", "options", "answer", "spec"}; answer is the
place of the right option, spec says by which rule it is right (see `specs`).
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lineup_fast import counters
from lineup_fast.prompts import LABELS
from lineup_fast.scoring import check_target, write_rows
from trainer.baselines.specs import METRICS, SHAPE_WORDS, SHAPES, classify, verify
from trainer.record import write_json

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainer.baselines.questions_config import QuestionsConfig
    from trainer.validate import Series

    Floats = NDArray[np.float64]

STEMS: dict[str, tuple[str, ...]] = {
    "highest": (
        "Where is the highest value?",
        "Which stretch holds the maximum of the series?",
    ),
    "lowest": (
        "Where is the lowest value?",
        "Which stretch holds the minimum of the series?",
    ),
    "mean_high": ("Which stretch has the highest average level?", "Where is the mean highest?"),
    "mean_low": ("Which stretch has the lowest average level?", "Where is the mean lowest?"),
    "rise": (
        "Over which stretch does the series rise the most?",
        "Where is the strongest increase?",
    ),
    "fall": (
        "Over which stretch does the series fall the most?",
        "Where is the strongest decrease?",
    ),
    "range_wide": (
        "Which stretch spans the widest range of values?",
        "Where is the range of values largest?",
    ),
    "std_high": ("Where is the series most variable?", "Which stretch is the most volatile?"),
    "std_low": ("Where is the series the most stable?", "Which stretch is the steadiest?"),
    "jump": (
        "Which stretch holds the biggest change from one step to the next?",
        "Where is the largest jump within a single step?",
    ),
    "shape": (
        "Which pattern describes the series overall?",
        "What is the overall shape of the series?",
    ),
}
N_OPTIONS = 4
LEAST_STEPS = 6  # of a series that is cut into stretches


@dataclass(frozen=True)
class Question:
    """One verified question: options in the bank's order, answer the place of the right one."""

    id: str
    stem: str
    options: tuple[str, ...]
    answer: int
    spec: dict[str, Any] = field(default_factory=dict)


@dataclass
class Survival:
    """How many questions were looked at, kept as they were, given another answer, and dropped."""

    tried: int = 0
    kept: int = 0
    relabelled: int = 0
    dropped: Counter[str] = field(default_factory=Counter)

    def table(self) -> str:
        """Shares for the terminal."""
        lines = [("tried", self.tried), ("kept", self.kept)]
        if self.relabelled:
            lines.append(("given another answer", self.relabelled))
        lines += [(f"dropped: {reason}", n) for reason, n in self.dropped.most_common()]
        total = max(self.tried, 1)
        return "\n".join(f"{name:<22} {n:>8,} {n / total:>7.1%}" for name, n in lines)

    def record(self) -> dict[str, Any]:
        """Counts and the share kept, for JSON."""
        return {
            "tried": self.tried,
            "kept": self.kept,
            "kept_frac": self.kept / max(self.tried, 1),
            "relabelled": self.relabelled,
            "dropped": dict(self.dropped),
        }


def made(item: str, x: Floats, n: int, seed: int, survival: Survival) -> list[Question]:
    """Up to n questions about a series x float64 [T]; a pure function of (seed, item, x)."""
    found: list[Question] = []
    kinds = [*METRICS, "shape"]
    for place in counters.order(len(kinds), "questions", seed, item):
        if len(found) == n:
            break
        kind = kinds[place]
        survival.tried += 1
        stem = STEMS[kind][int(counters.order(len(STEMS[kind]), "stem", seed, item, kind)[0])]
        parts = _shape_parts(item, x, seed) if kind == "shape" else _region_parts(kind, len(x))
        if isinstance(parts, str):
            survival.dropped[parts] += 1
            continue
        options, spec = parts
        verdict = verify(stem, options, spec, x)
        if verdict.answer is None:
            survival.dropped[str(verdict.reason)] += 1
            continue
        survival.kept += 1
        found.append(Question(item, stem, tuple(options), verdict.answer, spec))
    return found


def _region_parts(metric: str, length: int) -> tuple[list[str], dict[str, Any]] | str:
    """Quarters, or thirds of a short series, as options and spec."""
    if length < LEAST_STEPS:
        return "short"
    n = N_OPTIONS if length >= 2 * N_OPTIONS else N_OPTIONS - 1
    edges = np.linspace(0, length, n + 1).round().astype(int).tolist()
    regions = [[a, b - 1] for a, b in itertools.pairwise(edges)]
    options = [f"steps {first} to {last}" for first, last in regions]
    return options, {"kind": "region", "metric": metric, "regions": regions}


def _shape_parts(item: str, x: Floats, seed: int) -> tuple[list[str], dict[str, Any]] | str:
    """The series' shape among three others, as options and spec."""
    if len(x) < 2 * N_OPTIONS:
        return "short"
    if np.ptp(x) == 0:
        return "constant"
    name, reason = classify(x)
    if name is None:
        return reason
    others = [shape for shape in SHAPES if shape != name]
    order = counters.order(len(others), "shapes", seed, item)[: N_OPTIONS - 1]
    shapes = sorted([name, *(others[place] for place in order)])
    return [SHAPE_WORDS[shape] for shape in shapes], {"kind": "shape", "shapes": shapes}


def checked(
    questions: Sequence[Question],
    series: Callable[[str], Floats | None],
    survival: Survival,
    *,
    wrong: str = "relabel",
) -> list[Question]:
    """The questions that hold up, in order.

    series: values of an id, None where there is no such series. wrong: "relabel" gives a question
    with a wrong answer the right one, "drop" drops it.
    """
    found = []
    for question in questions:
        survival.tried += 1
        x = series(question.id)
        if x is None:
            survival.dropped["series"] += 1
            continue
        verdict = verify(question.stem, question.options, question.spec, x)
        if verdict.answer is None:
            survival.dropped[str(verdict.reason)] += 1
            continue
        if verdict.answer != question.answer:
            if wrong == "drop":
                survival.dropped["wrong answer"] += 1
                continue
            survival.relabelled += 1
        survival.kept += 1
        found.append(
            Question(question.id, question.stem, question.options, verdict.answer, question.spec)
        )
    return found


def read_questions(path: Path) -> list[Question]:
    """Questions of a JSONL file, not verified.

    Raises:
        ValueError: names the line that is no question.
    """
    found = []
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                found.append(_question(f"{path}:{number}", line))
    if not found:
        raise ValueError(f"{path}: expected at least one question, got none")
    return found


def _question(place: str, line: bytes) -> Question:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{place}: expected a JSON object, got {error}") from None
    if not isinstance(row, dict):
        raise ValueError(f"{place}: expected a JSON object, got {row!r:.80}")
    for key in ("id", "stem"):
        if not isinstance(row.get(key), str) or not row[key].strip():
            raise ValueError(f"{place}: expected text in {key}, got {row.get(key)!r:.80}")
    options, answer = row.get("options"), row.get("answer")
    if (
        not isinstance(options, list)
        or not 2 <= len(options) <= len(LABELS)
        or not all(isinstance(option, str) and option.strip() for option in options)
        or len(set(options)) < len(options)
    ):
        raise ValueError(
            f"{place}: expected 2 to {len(LABELS)} different options, got {options!r:.80}"
        )
    if isinstance(answer, bool) or not isinstance(answer, int) or not 0 <= answer < len(options):
        raise ValueError(f"{place}: expected answer 0 to {len(options) - 1}, got {answer!r:.80}")
    spec = row.get("spec")
    if not isinstance(spec, dict):
        raise ValueError(f"{place}: expected an object in spec, got {spec!r:.80}")
    return Question(row["id"], row["stem"], tuple(options), answer, spec)


@dataclass(frozen=True)
class Bank:
    """Questions by series id, in the order of the file; fingerprint of all of them.

    survival: how many questions were tried, kept and dropped for it, where that is on record.
    """

    questions: dict[str, tuple[Question, ...]]
    fingerprint: str
    survival: dict[str, Any] | None = None

    @classmethod
    def of(cls, questions: Sequence[Question]) -> Bank:
        """Questions put together by id."""
        grouped: dict[str, list[Question]] = {}
        for question in questions:
            grouped.setdefault(question.id, []).append(question)
        digest = hashlib.sha256()
        for question in questions:
            digest.update(json.dumps(asdict(question), sort_keys=True).encode())
        return cls({id_: tuple(q) for id_, q in grouped.items()}, digest.hexdigest()[:16])

    @classmethod
    def load(cls, path: Path) -> Bank:
        """The bank of a JSONL file, with the record of its survival if there is one beside it.

        Raises: ValueError as `read_questions`.
        """
        bank, beside = cls.of(read_questions(path)), survival_path(path)
        found = json.loads(beside.read_text(encoding="utf-8")) if beside.is_file() else {}
        if found.get("bank_fingerprint") != bank.fingerprint:  # of another bank, or edited since
            return bank
        return replace(bank, survival=found)


def survival_path(bank: Path) -> Path:
    """Where the record of a bank's survival lies."""
    return bank.with_name(f"{bank.stem}.survival.json")


def check_answers(bank: Bank, corpus: Series) -> None:
    """Raises ValueError where a question of the bank does not hold on its series."""
    known = set(corpus.ids())
    asked = [q for item, of in bank.questions.items() if item in known for q in of]
    bad = [
        question for question in asked
        if verify(question.stem, question.options, question.spec, corpus.series(question.id)).answer
        != question.answer
    ]  # fmt: skip
    if bad:
        raise ValueError(
            f"questions: expected answers that hold on the series, got {len(bad)} of "
            f"{len(asked)} that do not, the first {bad[0].stem!r} about {bad[0].id} (python -m "
            "trainer questions --check corrects or drops them)"
        )


class Questioned:
    """The series of a corpus that a bank has questions about; the rest is the corpus' own.

    Arms that train on one bank's series share them, whatever their reward.
    """

    def __init__(self, corpus: Any, bank: Bank) -> None:
        self._corpus, self.bank = corpus, bank

    def __getattr__(self, name: str) -> Any:
        return getattr(self._corpus, name)

    def ids(self, split: str | None = None) -> list[str]:
        """Ids with questions, in the corpus' order."""
        return [id_ for id_ in self._corpus.ids(split) if id_ in self.bank.questions]


def run(config: QuestionsConfig) -> int:
    """`python -m trainer questions`."""
    import sys

    from lineup_fast.cli import one_line
    from lineup_fast.corpus import Corpus

    try:
        check_target(config.out)
        corpus = Corpus.load(config.corpus)
        questions, survival = collected(config, corpus)
    except (ValueError, OSError) as error:
        print(f"python -m trainer questions: {one_line(error)}", file=sys.stderr)
        return 2
    n_charts = len({question.id for question in questions})
    print(survival.table())
    if not questions:
        print("python -m trainer questions: no question survived", file=sys.stderr)
        return 1
    write_rows(config.out, [asdict(question) for question in questions])
    record = {"bank_fingerprint": Bank.of(questions).fingerprint, **survival.record()}
    write_json(survival_path(config.out), record)
    print(f"{len(questions):,} questions about {n_charts:,} series in {config.out}")
    return 0


def collected(config: QuestionsConfig, corpus: Series) -> tuple[list[Question], Survival]:
    """Questions of the settings; series with fewer than --at-least are left out and counted."""
    survival = Survival()
    if config.check is not None:
        known = set(corpus.ids())
        questions = checked(
            read_questions(config.check),
            lambda item: corpus.series(item) if item in known else None,
            survival,
            wrong=config.wrong,
        )
    else:
        split = None if config.split == "all" else config.split
        questions = [
            question
            for item in _followed(corpus.ids(split))
            for question in made(item, corpus.series(item), config.per_chart, config.seed, survival)
        ]
    per_series = Counter(question.id for question in questions)
    enough = [q for q in questions if per_series[q.id] >= config.at_least]
    lost = len(questions) - len(enough)
    if lost:
        survival.kept -= lost
        survival.dropped[f"fewer than {config.at_least} on a chart"] += lost
    return enough, survival


def _followed(items: list[str]) -> Iterator[str]:
    """The items, with a progress bar on a terminal."""
    from lineup_fast.cli_options import progress as show

    for number, item in enumerate(items):
        if number % 64 == 0:
            show("making questions", number, len(items))
        yield item
    show("done", len(items), len(items))
