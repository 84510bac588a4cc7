"""Questions about series: every answer in a bank is right, by an independent brute force."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lineup_fast.default_data import read_default
from trainer.baselines import specs
from trainer.baselines.questions import (
    Bank,
    Question,
    Survival,
    check_answers,
    checked,
    made,
    read_questions,
)

_BESIDE = [folder / "shared" / "data" / "fragments.parquet" for folder in Path(__file__).parents]
FRAGMENTS = next((path for path in _BESIDE if path.is_file()), _BESIDE[-1])


# ------------------------------------------------------- the brute force: plain loops, own formulas


def slope_change(x: list[float]) -> float:
    line = statistics.linear_regression(range(len(x)), x)
    return line.slope * (len(x) - 1)


BRUTE = {
    "highest": lambda x: max(x),
    "lowest": lambda x: -min(x),
    "mean_high": lambda x: math.fsum(x) / len(x),
    "mean_low": lambda x: -math.fsum(x) / len(x),
    "rise": slope_change,
    "fall": lambda x: -slope_change(x),
    "range_wide": lambda x: max(x) - min(x),
    "std_high": statistics.pstdev,
    "std_low": lambda x: -statistics.pstdev(x),
    "jump": lambda x: max(abs(b - a) for a, b in itertools.pairwise(x)),
}


def explained(x: list[float], columns: list[list[float]]) -> tuple[float, float]:
    """Share of the variance of x that a least-squares fit explains, and its first coefficient."""
    design = np.array([[1.0] * len(x), *columns]).T
    fit, *_ = np.linalg.lstsq(design, np.array(x), rcond=None)
    rest = float(((np.array(x) - design @ fit) ** 2).sum())
    return 1 - rest / float(((np.array(x) - np.mean(x)) ** 2).sum()), float(fit[1])


def brute_shapes(x: list[float]) -> dict[str, float]:
    n = len(x)
    best = dict.fromkeys(specs.SHAPES, 0.0)

    def see(up: str, down: str, template: list[float]) -> None:
        share, sign = explained(x, [template])
        name = up if sign > 0 else down
        best[name] = max(best[name], share)

    see("rising", "falling", [float(t) for t in range(n)])
    for top in range(n):
        if (n - 1) / 3 <= top <= 2 * (n - 1) / 3:
            see("peak", "valley", [t / top if t < top else (n - 1 - t) / (n - 1 - top)
                                   for t in range(n)])  # fmt: skip
    for edge in range(n):
        if n / 4 <= edge <= 3 * n / 4:
            see("step up", "step down", [float(t >= edge) for t in range(n)])
    for cycles in range(2, n // 4 + 1):
        angles = [2 * math.pi * cycles * t / n for t in range(n)]
        share, _ = explained(x, [[math.cos(a) for a in angles], [math.sin(a) for a in angles]])
        best["oscillating"] = max(best["oscillating"], share)
    return best


def assert_right(question: Question, values: np.ndarray) -> None:
    """The recorded answer is the best option by a clear margin."""
    x = values.tolist()
    if question.spec["kind"] == "shape":
        shares = brute_shapes(x)
        best = max(shares, key=lambda name: shares[name])
        assert question.spec["shapes"][question.answer] == best
        assert shares[best] >= 0.5 - 1e-9
        assert all(shares[best] - s >= 0.15 - 1e-9 for n, s in shares.items() if n != best)
        return
    score = BRUTE[question.spec["metric"]]
    found = [score(x[a : b + 1]) for a, b in question.spec["regions"]]
    others = [value for at, value in enumerate(found) if at != question.answer]
    spread = max(x) - min(x)
    assert found[question.answer] - max(others) >= (0.15 - 1e-9) * spread, (question, found)


def bank_of(series: dict[str, np.ndarray], n: int = 11) -> tuple[list[Question], Survival]:
    survival = Survival()
    questions = [q for item, x in series.items() for q in made(item, x, n, 0, survival)]
    return questions, survival


def assert_all_right(series: dict[str, np.ndarray]) -> list[Question]:
    questions, survival = bank_of(series)
    assert survival.kept == len(questions)
    assert survival.tried == survival.kept + sum(survival.dropped.values())
    for question in questions:
        assert_right(question, series[question.id])
    return questions


def made_up(n: int) -> dict[str, np.ndarray]:
    """Walks, noise, ramps, tents, steps and sinusoids of many lengths and sizes."""
    rng = np.random.default_rng(5)
    series = {}
    for number in range(n):
        length = int(rng.integers(5, 60))
        t = np.arange(length) / length
        shape = [
            np.cumsum(rng.standard_normal(length)),
            rng.standard_normal(length),
            3 * t * rng.choice([-1, 1]),
            (1 - abs(2 * t - 1)) * rng.choice([-4, 4]),
            (t > rng.uniform(0.3, 0.7)) * rng.choice([-3.0, 3.0]),
            np.sin(2 * np.pi * 3 * t),
            np.round(rng.standard_normal(length)),
        ][number % 7]
        size = 10.0 ** rng.integers(-6, 7)
        series[f"s{number}"] = (shape + 0.1 * rng.standard_normal(length)) * size
    return series


def test_every_answer_about_made_up_series_is_right() -> None:
    questions = assert_all_right(made_up(140))
    kinds = Counter(q.spec.get("metric", "shape") for q in questions)
    assert set(kinds) == {*specs.METRICS, "shape"}
    right_shapes = {q.spec["shapes"][q.answer] for q in questions if q.spec["kind"] == "shape"}
    assert right_shapes == set(specs.SHAPES)


@pytest.mark.skipif(not FRAGMENTS.is_file(), reason="no real series beside the checkout")
def test_every_answer_about_500_real_series_is_right() -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    table = parquet.read_table(FRAGMENTS, columns=["id", "values"])
    rows = np.random.default_rng(0).permutation(table.num_rows)[:500]
    ids, values = table["id"].to_pylist(), table["values"]
    series = {ids[row]: np.array(values[row].as_py(), dtype=np.float64) for row in rows.tolist()}
    questions = assert_all_right(series)
    assert len(questions) > 1000
    assert len({q.spec.get("metric", "shape") for q in questions}) == 11


def test_every_answer_about_500_windows_of_the_default_data_is_right() -> None:
    """The series that users without data of their own train on, in their own units and scaled."""
    try:
        channels, _ = read_default()
    except ImportError as error:
        pytest.skip(str(error))
    rng, series = np.random.default_rng(1), {}
    while len(series) < 500:
        values = channels[int(rng.integers(len(channels)))].values
        length = int(rng.choice([12, 24, 96]))
        start = int(rng.integers(max(1, len(values) - length)))
        x = values[start : start + length]
        whole = np.round(100 * (x - x.min()) / max(float(np.ptp(x)), 1e-9))
        series[f"w{len(series)}"] = whole if len(series) % 2 else x
    questions = assert_all_right(series)
    assert len(questions) > 1000
    assert len({q.spec.get("metric", "shape") for q in questions}) == 11


# ---------------------------------------------------------------------------- what is refused


def question(**changes: Any) -> Question:
    values: dict[str, Any] = {
        "id": "a",
        "stem": "Where is the highest value?",
        "options": ("steps 0 to 3", "steps 4 to 7"),
        "answer": 1,
        "spec": {"kind": "region", "metric": "highest", "regions": [[0, 3], [4, 7]]},
    }
    return Question(**(values | changes))


RAMP = np.arange(8.0)
SPEC = {"kind": "region", "metric": "highest", "regions": [[0, 3], [4, 7]]}
SHAPES_OFFERED = ("rises from start to end", "falls from start to end")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"spec": {}}, "spec"),
        ({"spec": SPEC | {"metric": "median"}}, "spec"),
        ({"spec": SPEC | {"regions": [[0, 3]]}}, "regions"),
        ({"spec": SPEC | {"regions": [[0, 4], [4, 7]]}}, "regions"),
        ({"spec": SPEC | {"regions": [[0, 3], [4, 8]]}}, "regions"),
        ({"spec": SPEC | {"regions": [[3, 3], [4, 7]]}}, "regions"),
        ({"spec": SPEC | {"regions": [[0, 3], [4, True]]}}, "regions"),
        ({"options": ("the first half", "the second half")}, "options"),
        ({"options": ("steps 0 to 3", "higher in steps 4 to 7 than in 0 to 3")}, "options"),
        ({"stem": "Where is the lowest value?"}, "stem"),
        ({"stem": "Where is the highest average?"}, "stem"),
        ({"spec": {"kind": "shape", "shapes": ["rising", "round"]}}, "spec"),
        ({"spec": {"kind": "shape", "shapes": ["rising", "falling"]}}, "options"),
        (
            {"spec": {"kind": "shape", "shapes": ["rising", "falling"]},
             "options": SHAPES_OFFERED},
            "stem",
        ),
        (
            {"spec": {"kind": "shape", "shapes": ["peak", "falling"]},
             "options": ("rises and then falls again", SHAPES_OFFERED[1]),
             "stem": "Which overall shape?"},
            "options",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_verified_is_dropped_with_its_reason(
    changes: dict[str, Any], reason: str
) -> None:
    survival = Survival()
    assert checked([question(**changes)], {"a": RAMP}.get, survival) == []
    assert survival.dropped == {reason: 1}


def test_close_calls_and_flat_series_are_dropped() -> None:
    close = RAMP.copy()
    close[3] = 6.9  # 0.1 below the best of the other half, of a range of 7
    survival = Survival()
    series = {"a": close, "b": np.ones(8)}
    assert checked([question(), question(id="b"), question(id="c")], series.get, survival) == []
    assert survival.dropped == {"margin": 1, "constant": 1, "series": 1}
    assert "dropped: margin" in survival.table()


def test_wrong_answers_are_corrected_or_dropped() -> None:
    wrong = question(answer=0)
    survival = Survival()
    assert checked([wrong], {"a": RAMP}.get, survival) == [question()]
    assert (survival.kept, survival.relabelled) == (1, 1)
    corpus = SimpleNamespace(ids=lambda: ["a"], series={"a": RAMP}.__getitem__)
    check_answers(Bank.of([question(), question(answer=0, id="another")]), corpus)
    with pytest.raises(
        ValueError, match=r"hold on the series, got 1 of 2 .* highest value.* about a"
    ):
        check_answers(Bank.of([question(), wrong]), corpus)
    survival = Survival()
    assert checked([wrong, question()], {"a": RAMP}.get, survival, wrong="drop") == [question()]
    assert survival.dropped == {"wrong answer": 1}


def test_stems_fit_their_own_metric_and_no_other() -> None:
    from trainer.baselines.questions import STEMS

    for metric in specs.METRICS:
        for stem in STEMS[metric]:
            assert [m for m in specs.METRICS if specs.stem_fits(stem, m)] == [metric], stem


def test_making_questions_is_a_function_of_seed_and_series() -> None:
    series = made_up(30)
    first, _ = bank_of(series, 3)
    again, _ = bank_of(dict(reversed(series.items())), 3)
    assert sorted(first, key=repr) == sorted(again, key=repr)
    assert max(Counter(q.id for q in first).values()) == 3


def test_banks_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "bank.jsonl"
    row = {"id": "a", "stem": "s", "options": ["x", "y"], "answer": 1, "spec": {}}
    path.write_text(json.dumps(row) + "\n\n" + json.dumps(row | {"answer": 0}) + "\n")
    found = read_questions(path)
    assert [q.answer for q in found] == [1, 0]
    assert Bank.of(found).fingerprint != Bank.of(found[::-1]).fingerprint
    for bad in ({"answer": 2}, {"answer": True}, {"options": ["x"]}, {"options": ["x", "x"]},
                {"stem": " "}, {"id": 3}, {"spec": "max"}):  # fmt: skip
        path.write_text(json.dumps(row) + "\n" + json.dumps(row | bad) + "\n")
        with pytest.raises(ValueError, match=r"bank.jsonl:2: expected"):
            read_questions(path)
    path.write_text("\n")
    with pytest.raises(ValueError, match="at least one"):
        read_questions(path)


def test_the_command_makes_and_checks_banks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from lineup_fast.corpus import build
    from lineup_fast.readers import Channel
    from trainer.__main__ import main

    rng = np.random.default_rng(0)
    channels = [Channel(source=f"s{n}", values=rng.standard_normal(99).cumsum()) for n in range(3)]
    corpus = build(channels, lengths=[12], seed=0)
    corpus.save(tmp_path / "corpus")
    bank = tmp_path / "bank.jsonl"
    command = ["questions", "--corpus", str(tmp_path / "corpus"), "-o", str(bank)]
    assert main(command) == 0
    found = read_questions(bank)
    assert min(Counter(q.id for q in found).values()) >= 2
    assert f"{len(found)} questions about" in capsys.readouterr().out
    survived = Bank.load(bank).survival
    assert survived is not None
    assert survived["kept"] == len(found)
    assert survived["tried"] == len(found) + sum(survived["dropped"].values())
    assert survived["kept_frac"] == len(found) / survived["tried"]
    for question in found:
        assert_right(question, corpus.series(question.id))

    rows = [json.loads(line) for line in bank.read_text().splitlines()]
    rows[0]["answer"] = (rows[0]["answer"] + 1) % len(rows[0]["options"])
    foreign = tmp_path / "vlm.jsonl"
    foreign.write_text("".join(json.dumps(row) + "\n" for row in [*rows, rows[1] | {"id": "no"}]))
    foreign.with_name("vlm.survival.json").write_text((tmp_path / "bank.survival.json").read_text())
    assert Bank.load(foreign).survival is None  # that record is of other questions
    again = [*command[:-1], str(tmp_path / "again.jsonl"), "--check", str(foreign)]
    assert main(again) == 0
    assert (tmp_path / "again.jsonl").read_text() == bank.read_text()
    said = capsys.readouterr().out
    assert "given another answer" in said
    assert "dropped: series" in said
    assert main([*again, "--wrong", "drop", "--at-least", "99"]) == 1
    assert main([*command[:-1], str(tmp_path / "no" / "bank.jsonl")]) == 2
