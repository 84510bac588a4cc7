"""Template captions: true of their series by a second reading, short, and pure functions."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from trainer.tiny import captions, series, tokenizer

Array = NDArray[np.float64]
TOKENIZER = tokenizer.build()
RUN = r"(\d+(?:, \d+)+)"


def _run(text: str) -> list[int]:
    return [int(word) for word in text.split(", ")]


def _levels(found: tuple[str, ...], values: Array) -> bool:
    told = [int(word) for word in found]
    size = len(values) // 4
    means = [sum(values[q * size : (q + 1) * size]) / size for q in range(4)]
    return all(abs(level - mean) <= 0.5 for level, mean in zip(told, means, strict=True))


def _at(values: Array, step: str, value: str) -> bool:
    return int(values[int(step)]) == int(value)


def _extreme(pick: Callable[[Array], float]) -> Callable[[tuple[str, ...], Array], bool]:
    return lambda found, values: int(found[0]) == pick(values) and _at(values, found[1], found[0])


def _stretch(values: Array, step: str, run: str) -> bool:
    told = _run(run)
    return [int(v) for v in values[int(step) : int(step) + len(told)]] == told


WHEN = r" (?:at step |\(step |around step |near step )(\d+)"
# A second reading, apart from the templates: a pattern and what it claims of the series.
CLAIMS: list[tuple[str, Callable[[tuple[str, ...], Array], bool]]] = [
    (
        r"(?:peaks at|highest|maximum|tops out at|peak|reaches a high of) (\d+)" + WHEN,
        _extreme(lambda values: max(values)),
    ),
    (
        r"(?:dips to|lowest|minimum|bottoms out at|low|falls to a low of) (\d+)" + WHEN,
        _extreme(lambda values: min(values)),
    ),
    (
        r"(?:quarters near|quarter levels|averages by quarter:|its quarters sit around) "
        r"(\d+), (\d+), (\d+), (\d+)",
        _levels,
    ),
    (r"level about (\d+), then (\d+), then (\d+), then (\d+)", _levels),
    (r"first quarter near (\d+), second (\d+), third (\d+), last (\d+)", _levels),
    (
        r"(?:from )?step (\d+)(?: on)?(?:: | it goes )" + RUN,
        lambda found, values: _stretch(values, found[0], found[1]),
    ),
    (RUN + r" from step (\d+)", lambda found, values: _stretch(values, found[1], found[0])),
    (
        r"(?:starts|opens with|first values|begins) " + RUN,
        lambda found, values: _stretch(values, "0", found[0]),
    ),
    (
        r"(?:ends|closes with|last values|finishes) " + RUN,
        lambda found, values: [int(v) for v in values[-len(_run(found[0])) :]] == _run(found[0]),
    ),
    (
        r"(?:starts at|begins at|opens at|first value|start|it starts near) (\d+)",
        lambda found, values: _at(values, "0", found[0]),
    ),
    (
        r"(?:ends at|finishes at|closes at|last value|end|it ends near) (\d+)",
        lambda found, values: int(values[-1]) == int(found[0]),
    ),
    (
        r"(?:at )?(?:step )?(\d+)(?:: | it is )(\d+)",
        lambda found, values: _at(values, found[0], found[1]),
    ),
    (r"(\d+) at step (\d+)", lambda found, values: _at(values, found[1], found[0])),
    (
        r"rises overall|trends up|climbs on the whole|it goes up",
        lambda _, values: bool(values[-1] - values[0] >= 5),
    ),
    (
        r"falls overall|trends down|declines on the whole|it goes down",
        lambda _, values: bool(values[0] - values[-1] >= 5),
    ),
    (
        r"roughly flat overall|no clear trend|ends about where it began|it stays level",
        lambda _, values: bool(abs(values[-1] - values[0]) < 5),
    ),
]


def unread(text: str, values: Array) -> str:
    """Return what no claim explains; raise AssertionError at a claim that is not true."""
    rest = text.lower()
    for pattern, holds in CLAIMS:
        for match in re.finditer(pattern, rest):
            assert holds(match.groups(), values), (match.group(), text, values.tolist())
        rest = re.sub(pattern, "#", rest)
    return re.sub(r"[#\s.,;)]", "", rest)


def _some_series(count: int) -> list[Array]:
    rng = np.random.default_rng(3)
    return [series.generate(1, int(rng.choice((12, 24))), rng)[0] for _ in range(count)]


def test_exact_captions_are_true_word_by_word() -> None:
    rng = np.random.default_rng(0)
    for values in _some_series(250):
        for text in (
            captions.full(values, rng),
            captions.full(values, rng, run=1, selected=2),
            captions.partial(values, rng),
            captions.readout_told(values, rng, count=4).text,
        ):
            assert unread(text, values) == "", text


def test_the_second_reading_notices_a_wrong_number() -> None:
    rng = np.random.default_rng(0)
    caught = 0
    for values in _some_series(50):
        try:
            unread(captions.full(values, rng, noise=8.0), values)
        except AssertionError:
            caught += 1
    assert caught >= 48


def test_marks_name_the_step_of_every_number() -> None:
    rng = np.random.default_rng(1)
    for values in _some_series(200):
        told = captions.full_told(values, rng)
        numbers = [int(word) for word in re.findall(r"\d+", told.text)]
        assert len(numbers) == len(told.steps), told
        for number, step in zip(numbers, told.steps, strict=True):
            # Where a step is told after its value the mark stands at the step.
            assert step == -1 or number in (int(values[step]), step), told


def test_vague_captions_have_no_number_and_the_true_direction() -> None:
    rng = np.random.default_rng(2)
    seen = set()
    for values in _some_series(200):
        text = captions.vague(values, rng)
        assert not re.search(r"\d", text)
        direction = captions.facts_of(values).direction
        assert any(shape in text for shape in captions.VAGUE_SHAPES[direction]), text
        seen.add(text)
    assert len(seen) > 60


def test_captions_fit_48_tokens_and_vary() -> None:
    rng = np.random.default_rng(4)
    texts = [captions.full(values, rng) for values in _some_series(400)]
    texts += [captions.partial(values, rng) for values in _some_series(400)]
    lengths = [len(ids) for ids in TOKENIZER(texts)["input_ids"]]
    assert max(lengths) <= 48
    openings = {re.split(r"\d", text)[0] for text in texts}
    assert len(openings) >= 25


def test_captions_depend_on_the_generator_alone() -> None:
    values = _some_series(1)[0]
    first = [captions.full(values, np.random.default_rng(7), noise=2.0) for _ in range(2)]
    assert first[0] == first[1]
    assert first[0] != captions.full(values, np.random.default_rng(8), noise=2.0)


def test_noise_moves_values_by_its_sigma_and_leaves_steps() -> None:
    values = np.full(12, 50.0)
    rng = np.random.default_rng(5)
    shifts = []
    for _ in range(300):
        told = captions.phrases(values, rng, kinds=["selected"], selected=1, noise=3.0, wording=0)
        step, value = re.findall(r"\d+", told[0])
        assert 0 <= int(step) < 12
        shifts.append(int(value) - 50)
    assert 2.4 < np.std(shifts) < 3.6


@pytest.mark.parametrize("bad", [np.arange(3.0), np.array([1.0, np.nan, 2.0, 3.0])])
def test_facts_refuse_what_has_none(bad: Array) -> None:
    with pytest.raises(ValueError, match="at least 4 finite values"):
        captions.facts_of(bad)


def test_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="kinds: expected names"):
        captions.phrases(np.arange(12.0), np.random.default_rng(0), kinds=["colour"])
