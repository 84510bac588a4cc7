from __future__ import annotations

import re
import time

import numpy as np
import pytest

from trainer.report.anatomy import anatomy, check, opening
from trainer.report.claims import (
    claims,
    time_is_true,
    tolerance,
    value_is_true,
)
from trainer.report.numerals import numbers
from trainer.tiny import captions as templates

SERIES = np.array([34, 40, 55, 70, 92, 80, 60, 40, 12, 30, 50, 78], dtype=np.float64)


def roles(caption: str) -> list[tuple[str, str]]:
    return [(number.text, number.role) for number in numbers(caption, 12)]


@pytest.mark.parametrize(
    ("caption", "expected"),
    [
        ("peak 92 at step 4", [("92", "value"), ("4", "time")]),
        ("between time 3 and 7", [("3", "time"), ("7", "time")]),
        ("steps 3, 5 and 9 are high", [("3", "time"), ("5", "time"), ("9", "time")]),
        ("At step 8, 12 is the lowest", [("8", "time"), ("12", "value")]),
        ("t=4: 92", [("4", "time"), ("92", "value")]),
        ("92 at 4 and 12 at 8", [("92", "value"), ("4", "time"), ("12", "value"), ("8", "time")]),
        ("At 4: 92", [("4", "time"), ("92", "value")]),
        (
            "up 10% over 12 steps, 2 peaks",
            [("10", "other"), ("12", "other"), ("2", "other")],
        ),
        ("falls by 80, a drop of 80", [("80", "other"), ("80", "other")]),
        ("after 5 steps it is 80", [("5", "time"), ("80", "value")]),
        ("1,234.5 then -3 then 1e3.", [("1,234.5", "value"), ("-3", "value"), ("1e3", "value")]),
        ("from 20-30", [("20", "value"), ("30", "value")]),
        ("the 4th of B2B v1.2.3", []),
    ],
)
def test_roles_of_numbers(caption: str, expected: list[tuple[str, str]]) -> None:
    assert roles(caption) == expected


@pytest.mark.parametrize(
    ("caption", "kinds", "truth"),
    [
        ("Starts at 34 and ends at 78.", ["start", "end"], [True, True]),
        ("Starts at 78 and ends at 34.", ["start", "end"], [False, False]),
        ("It begins low around 34.", ["start"], [True]),
        ("A peak of 92, a low of 12.", ["max", "min"], [True, True]),
        ("A peak of 78, a low of 34.", ["max", "min"], [False, False]),
        ("92 is the highest value.", ["max"], [True]),
        ("At step 4 it is 92.", ["step"], [True]),
        ("At step 0 it is 92.", ["step"], [False]),
        ("At step 40 it is 92.", ["step"], [False]),
        ("From 34 to 78.", ["any", "any"], [True, True]),
        ("From 22 to 99.", ["any", "any"], [False, False]),
        ("The mean is 53.", ["mean"], [True]),
        ("The first quarter averages 43, the last quarter 53.", ["part", "part"], [True, True]),
        ("Quarters near 43, 81, 37, 53.", ["part"] * 4, [True, True, True, True]),
        ("Quarters near 81, 43, 53, 37.", ["part"] * 4, [False] * 4),
        ("Ends about where it began, 92 at step 4.", ["step"], [True]),
        ("Up to 1e99 at step 99999999999.", ["step"], [False]),
    ],
)
def test_kind_and_truth_of_values(caption: str, kinds: list[str], truth: list[bool]) -> None:
    values, _ = claims(caption, len(SERIES))
    assert [claim.kind for claim in values] == kinds
    assert [value_is_true(claim, SERIES) for claim in values] == truth


@pytest.mark.parametrize(
    ("caption", "truth"),
    [
        ("peaks at step 4, dips at step 8", [True, True]),
        ("peaks at step 9, dips at step 1", [False, False]),
        ("highest 92 at step 5", [True]),  # off by one is forgiven
        ("highest 92 at step 6", [False]),
        ("changes direction at step 6", [None]),
    ],
)
def test_truth_of_times(caption: str, truth: list[bool | None]) -> None:
    _, times = claims(caption, len(SERIES))
    assert [time_is_true(claim, SERIES) for claim in times] == truth


def test_tolerance_is_range_last_digit_or_axis() -> None:
    assert tolerance(SERIES, "34.50") == pytest.approx(4.0)
    flat = np.full(5, 7.3)
    assert tolerance(flat, "7") == pytest.approx(0.5)
    assert tolerance(flat, "7.3") == pytest.approx(0.05)
    assert tolerance(flat, "7", (0.0, 100.0)) == pytest.approx(2.0)
    assert tolerance(flat, "1e3") == pytest.approx(500.0)


RUNS = ["34, 40, 55", "70, 92, 80", "30, 50, 78"]  # at steps 0, 3 and 9 of SERIES
BACKWARD = ["55, 40, 34", "80, 70, 92", "78, 50, 30"]


@pytest.mark.parametrize(
    ("template", "place"),
    [(text.replace("{r}", "%s"), 0) for text in templates.WORDING["start_run"]]
    + [(text.replace("{r}", "%s"), 2) for text in templates.WORDING["end_run"]]
    + [(text.format(r="%s", t=3), 1) for text in templates.WORDING["run"]]
    + [
        ("first 3 values %s", 0),
        ("it opens low at %s and then climbs", 0),
        ("%s at the beginning", 0),
        ("at the end %s", 2),
        ("%s at the end", 2),
        ("%s starting at step 3", 1),
        ("starting at step 3: %s", 1),
        ("between steps 3 and 5 it is %s", 1),
        ("%s at steps 3, 4 and 5", 1),
        ("it stays level, ends %s", 2),
    ],
)
def test_runs_tell_consecutive_values(template: str, place: int) -> None:
    def verdicts(run: str) -> list[bool]:
        values, times = claims(f"Peak 92 at step 4. {template % run}. Dips.", len(SERIES))
        assert (
            all(time_is_true(claim, SERIES) is not False for claim in times) or run != RUNS[place]
        )
        assert len(values) == 4
        return [value_is_true(claim, SERIES) for claim in values[1:]]

    assert verdicts(RUNS[place]) == [True] * 3
    assert verdicts(RUNS[place].replace(", ", " and ")) == [True] * 3
    for other in {0, 1, 2} - {place}:
        assert sum(verdicts(RUNS[other])) <= 1  # 30 is within the tolerance of 34
    assert sum(verdicts(BACKWARD[place])) < 3  # some fit a shifted place


@pytest.mark.parametrize(
    ("caption", "truth"),
    [
        ("17, 40, 55 from step 0", [False, True, True]),
        ("From step 4: 70, 92, 80", [True] * 3),  # off by one as a whole
        ("From step 2: 92, 40, 80", [False, False, True]),  # each off by one its own way
        ("From step 5: 70, 92, 80", [False] * 3),
        ("Starts 40, 55, 70", [False] * 3),  # no step was read: none is off
        ("From step 10: 50, 78, 78", [True, True, False]),  # beyond the last step
        ("Ends " + "34, " * 13 + "78", [False, False, True] + [False] * 8 + [True, False, True]),
        ("92 and 12 at steps 4 and 8", [True, True]),
        ("92 and 12 at steps 8 and 4", [False, False]),
        ("1, 2, 80 at step 5", [False, False, True]),
        ("Starts at 34 and 92 is the peak", [True, True]),
        ("Starts at 34, 78 at the end", [True, True]),
        ("34 at the beginning and 78 at the end", [True, True]),
        ("Starts between 30 and 40", [True, True]),
        ("Starts at 34, 92 at step 4, ends 50, 78", [True] * 4),
        ("Last values 50, 78, quarters near 43, 81, 37, 53, step 3: 70", [True] * 7),
        ("It stays level, ends 30, 50, 78", [True] * 3),
        ("From step 3: 70, 92; 12, 30 from step 8", [True] * 4),
    ],
)
def test_truth_of_runs(caption: str, truth: list[bool]) -> None:
    values, _ = claims(caption, len(SERIES))
    assert [value_is_true(claim, SERIES) for claim in values] == truth


def test_words_between_a_value_and_a_step_part_them() -> None:
    for caption in ("Starts at 34 and peaks at step 4", "Peaks at step 4, ends at 78"):
        checked = check(caption, SERIES)
        assert (checked.true_values, checked.true_times) == (1, 1), caption


@pytest.mark.parametrize("kind", ["full", "partial", "readout"])
def test_template_captions_are_true_and_not_true_elsewhere(kind: str) -> None:
    rng = np.random.default_rng(3)
    own, other, named = 0, 0, 0
    for number in range(300):
        length = 12 if number % 2 else 24
        pair = np.round(np.clip(50 + np.cumsum(rng.normal(0, 9, (2, length)), axis=1), 0, 100))
        if kind == "full":
            caption = templates.full(pair[0], rng, selected=number % 3)
        elif kind == "partial":
            caption = templates.partial(pair[0], rng)
        else:
            caption = templates.readout_told(pair[0], rng, count=1 + number % 8).text
        checked = check(caption, pair[0])
        n_times = len(re.findall(r"(?i)\bstep \d|\bat \d+:", caption))
        assert checked.true_times == checked.checked_times == checked.n_times == n_times, caption
        assert checked.true_values == checked.n_values, caption
        assert checked.n_values + n_times == len(re.findall(r"\d+", caption)), caption
        own += checked.true_values
        other += check(caption, pair[1]).true_values
        named += checked.n_values
    assert own == named > 1000
    assert other < 0.2 * named


def test_anatomy_of_a_pass() -> None:
    captions = ["Starts at 34. Peak 92 at step 4.", "Starts at 34. Peak 50 at step 1.", "Flat."]
    result = anatomy(captions, [SERIES, SERIES, SERIES[::-1].copy()])
    assert result.n_captions == 3
    assert result.values == pytest.approx(4 / 3)
    assert result.values_true == pytest.approx(3 / 4)
    assert result.values_true_elsewhere == pytest.approx(2 / 4)
    assert result.times_true == pytest.approx(1 / 2)
    assert (result.distinct_openings, result.distinct_captions) == (2, 3)
    assert result.common_opening == opening("starts at 1. peak 2 …") == "starts at #. peak #"
    assert result.common_opening_frac == pytest.approx(2 / 3)
    assert anatomy(["no number"], [SERIES]).values_true is None
    with pytest.raises(ValueError, match="captions: expected"):
        anatomy([], [])


@pytest.mark.parametrize(
    "caption",
    ["", "9" * 50_000, "1 " * 25_000, "1; " * 16_000, "at " * 16_000, "step 3, " * 6_000,
     "\x00\u202e٣٤ ½ ² −5", "0e99 1e-99 .5 5. -0"],
)  # fmt: skip
def test_any_text_is_read_in_reasonable_time(caption: str) -> None:
    started = time.process_time()
    check(caption, SERIES)
    assert time.process_time() - started < 10
