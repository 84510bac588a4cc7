from __future__ import annotations

import re
import time

import numpy as np
import pytest

from trainer.report.anatomy import anatomy, check, opening
from trainer.report.claims import (
    claims,
    numbers,
    time_is_true,
    tolerance,
    value_is_true,
)
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


def test_template_captions_are_true_and_not_true_elsewhere() -> None:
    rng = np.random.default_rng(3)
    own, other, named = 0, 0, 0
    for number in range(300):
        length = 12 if number % 2 else 24
        pair = np.round(np.clip(50 + np.cumsum(rng.normal(0, 9, (2, length)), axis=1), 0, 100))
        caption = templates.full(pair[0], rng)
        checked = check(caption, pair[0])
        assert checked.n_values >= 9, caption
        n_times = len(re.findall(r"(?i)\bstep \d", caption))
        assert checked.true_times == checked.checked_times == checked.n_times == n_times, caption
        own += checked.true_values
        other += check(caption, pair[1]).true_values
        named += checked.n_values
    assert own == named
    assert other < 0.25 * named


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
