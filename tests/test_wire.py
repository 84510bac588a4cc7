"""The JSON of the reward server: what one side writes the other reads, anything else is refused."""

from __future__ import annotations

import json
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lineup_fast import wire
from lineup_fast.openrlhf_contract import parse_remote
from lineup_fast.wire import ScoreRequest, parse_score, read_reply, reply, score_body
from tests.scripted_server import corpus, reward, truth

LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)
FIELDS = st.sampled_from(["captions", "ids", "index", "fixed", "request_ids", "query", "labels"])
QUICK = settings(max_examples=60, deadline=None)


@QUICK
@given(st.binary(max_size=40) | VALUES.map(lambda value: json.dumps(value).encode()))
def test_any_body_is_read_or_refused_in_words(body: bytes) -> None:
    for read in (parse_score, parse_remote):
        with pytest.raises(ValueError, match=": expected"):
            read(body)


@QUICK
@given(st.dictionaries(FIELDS, VALUES | st.lists(st.text(max_size=3), max_size=2), max_size=6))
def test_any_fields_are_read_or_refused_in_words(fields: dict[str, Any]) -> None:
    for read in (parse_score, parse_remote):
        with suppress(ValueError):
            read(json.dumps(fields).encode())


@QUICK
@given(st.data())
def test_requests_come_back(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 5))
    fixed = data.draw(st.booleans())
    number = st.integers(0, wire.MAX_INDEX)
    name = st.text(min_size=1, max_size=wire.MAX_REQUEST_ID)
    request = ScoreRequest(
        data.draw(st.lists(st.text(), min_size=n, max_size=n)),
        data.draw(st.lists(st.text(), min_size=n, max_size=n)),
        None if fixed else data.draw(st.none() | st.lists(number, min_size=n, max_size=n)),
        fixed,
        data.draw(st.none() | st.lists(name, min_size=n, max_size=n)),
    )
    assert parse_score(score_body(request)) == request


def test_replies_come_back_bit_by_bit() -> None:
    ids = corpus().ids()[:4]
    batch = reward().score(["", truth(ids[1]), "crash", "1.5"], ids, index=[0, 1, 2, 3])
    batch.label_logprobs[0, 0, 0] = -np.inf  # JSON has none: the lowest float32 stands for it
    got = read_reply(json.dumps(reply(batch), allow_nan=False).encode(), 4)
    for name in ("reward", "accuracy", "picks", "label_mass", "valid", "asked"):
        np.testing.assert_array_equal(getattr(got, name), getattr(batch, name))
    assert got.label_logprobs[0, 0, 0] == np.finfo(np.float32).min
    np.testing.assert_array_equal(got.label_logprobs[1:], batch.label_logprobs[1:])
    assert (got.reason, got.index, got.recipe) == (batch.reason, batch.index, batch.recipe)
    assert (got.counts, got.fingerprints) == (batch.counts, batch.fingerprints)


@cache
def _good_reply() -> str:
    return json.dumps(reply(reward().score(["a", "crash"], corpus().ids()[:2], index=0)))


@QUICK
@given(st.data())
def test_a_damaged_reply_is_refused(data: st.DataObject) -> None:
    value = json.loads(_good_reply())
    name = data.draw(st.sampled_from(sorted(value)))
    value[name] = data.draw(VALUES)
    try:
        got = read_reply(json.dumps(value).encode(), 2)
    except ValueError:
        return
    assert got.valid.shape == got.reward.shape == (2,)
    assert np.isfinite(got.reward[got.valid]).all()
    assert np.isnan(got.reward[~got.valid]).all()
