"""Files of neighbour indexes that something has damaged, with and without a right checksum."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lineup_fast.neighbour_index import MAGIC, NeighbourIndex

RNG = np.random.default_rng(0)
SERIES = RNG.normal(size=(20, 5)).round(1)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("saved") / "index"
    NeighbourIndex(RNG.normal(size=(20, 3)), SERIES, max_run=2, decimals=1).save(path)
    return path.read_bytes()


def _load(folder: Path, content: bytes) -> NeighbourIndex:
    path = folder / "damaged"
    path.write_bytes(content)
    return NeighbourIndex.load(path, SERIES)


def _signed(body: bytes) -> bytes:
    return body + hashlib.sha256(body).digest()


BYTES = st.tuples(st.integers(0, 10**6), st.integers(1, 255))
FAST = settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))


@FAST
@given(flips=st.lists(BYTES, max_size=4), cut=st.integers(0, 10**6), more=st.binary(max_size=9))
def test_any_damage_is_noticed(
    tmp_path: Path, saved: bytes, flips: list[tuple[int, int]], cut: int, more: bytes
) -> None:
    damaged = bytearray(saved)
    for at, mask in flips:
        damaged[at % len(damaged)] ^= mask
    if cut % 3 == 0:
        del damaged[cut % len(damaged) :]
    damaged += more
    if damaged == saved:
        assert len(_load(tmp_path, saved)) == 20
        return
    with pytest.raises(ValueError, match=r"path: expected an? (undamaged|saved neighbour) index"):
        _load(tmp_path, bytes(damaged))


@FAST
@given(flips=st.lists(BYTES, max_size=4), cut=st.integers(0, 10**6), more=st.binary(max_size=9))
def test_a_right_checksum_over_anything_is_refused_or_answers(
    tmp_path: Path, saved: bytes, flips: list[tuple[int, int]], cut: int, more: bytes
) -> None:
    body = bytearray(saved[:-32])
    for at, mask in flips:
        body[at % len(body)] ^= mask
    if cut % 3 == 0:
        del body[cut % len(body) :]
    try:
        index = _load(tmp_path, _signed(bytes(body + more)))
    except ValueError as error:
        assert ": expected " in str(error)  # noqa: PT017 - or it is an index
        return
    pools = index.search(30)
    assert pools.min() >= -1
    assert pools.max() < 20


@pytest.mark.parametrize("value", [None, -1, "x", 1e9, [], True, 2**70, ...])
@pytest.mark.parametrize("word", ["n", "steps", "dims", "max_run", "decimals", "rule", "series"])
def test_other_headers_are_refused(tmp_path: Path, saved: bytes, word: str, value: Any) -> None:
    body = saved[:-32]
    end = body.index(b"\n", len(MAGIC))
    header = json.loads(body[len(MAGIC) : end])
    if value is ...:
        del header[word]
    else:
        header[word] = value
    changed = _signed(MAGIC + json.dumps(header).encode() + body[end:])
    with pytest.raises(ValueError, match=r"(path|series|rule|max_run|decimals): expected "):
        _load(tmp_path, changed)
