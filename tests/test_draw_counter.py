"""Counted draws: G captions share one, retries count once, nothing returned is ever forgotten."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lineup_fast import draw_counter
from lineup_fast.draw_counter import DrawCounter


def test_g_captions_of_an_item_share_a_draw() -> None:
    counter = DrawCounter(3)
    assert counter.assign(["a", "a", "b", "a", "a"]) == [0, 0, 0, 0, 1]
    assert counter.assign(["b", "b", "b"]) == [0, 0, 1]
    assert counter.assign([]) == []


def test_a_retry_gets_the_index_it_had() -> None:
    counter = DrawCounter(1)
    assert counter.assign(["a", "a"], ["r1", "r2"]) == [0, 1]
    assert counter.assign(["a", "a", "a"], ["r2", "r1", "r3"]) == [1, 0, 2]
    assert counter.assign(["b"], ["r1"]) == [0]  # another item's request of the same name
    assert counter.assign(["c", "c"], ["same", "same"]) == [0, 0]  # twice in one call


def test_released_indices_are_given_again() -> None:
    counter = DrawCounter(2)
    assert counter.assign(["a"] * 4) == [0, 0, 1, 1]
    counter.release(["a", "a"], [0, 1])
    assert counter.assign(["a"] * 4) == [0, 1, 2, 2]


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.sampled_from(["", "r", "s", "t"]), st.booleans()),
        max_size=30,
    ),
    st.integers(1, 3),
)
@settings(max_examples=60, deadline=None)
def test_a_reopened_file_goes_on_as_if_never_closed(
    tmp_path_factory: pytest.TempPathFactory, calls: list[tuple[str, str, bool]], group_size: int
) -> None:
    path = tmp_path_factory.mktemp("draws") / "draws.jsonl"
    kept, reopened = DrawCounter(group_size), DrawCounter(group_size, path)
    for item, request, reopen in calls:
        requests = [request] if request else None
        want = kept.assign([item], requests)
        assert reopened.assign([item], requests) == want
        if not request:
            kept.release([item], want)
            reopened.release([item], want)
            assert kept.assign([item]) == reopened.assign([item])
        if reopen:
            reopened.close()
            reopened = DrawCounter(group_size, path)
    reopened.close()


def _count_until_killed(path: Path, told: str) -> None:
    counter = DrawCounter(2, path)
    with Path(told).open("a", encoding="utf-8") as file:
        for number in range(10_000):
            (index,) = counter.assign(["a"], [f"r{number}"])
            file.write(f"{index}\n")
            file.flush()


def test_a_killed_process_loses_nothing_that_it_returned(tmp_path: Path) -> None:
    told = tmp_path / "told"
    told.touch()
    path = tmp_path / "draws.jsonl"
    child = multiprocessing.get_context("spawn").Process(
        target=_count_until_killed, args=(path, str(told))
    )
    child.start()
    while told.stat().st_size < 400:
        assert child.is_alive()
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    indices = [int(line) for line in told.read_text().splitlines(keepends=True) if "\n" in line]
    assert indices == [number // 2 for number in range(len(indices))]
    with path.open("ab") as file:
        file.write(b'{"id": "a", "ask')  # as if it had been cut off in the middle of a line
    counter = DrawCounter(2, path)
    requests = [f"r{number}" for number in range(len(indices))]
    assert counter.assign(["a"] * len(indices), requests) == indices
    (following,) = counter.assign(["a"])
    assert following in (len(indices) // 2, (len(indices) + 1) // 2)  # one may have gone untold
    counter.close()
    assert all(json.loads(line) for line in path.read_text().splitlines())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hello\n", r"draws.jsonl:1: expected a JSON object"),
        ("[" * 100_000 + "\n", r"draws.jsonl:1: expected a JSON object"),
        ("{}\n", "expected a file of draws of lineup-fast"),
        ('{"format": "lineup_fast.draws", "version": 2, "group_size": 2}\n', "expected a file of"),
        ('{"format": "lineup_fast.draws", "version": 1, "group_size": 8}\n', "group size 8, which"),
        (
            '{"format": "lineup_fast.draws", "version": 1, "group_size": 2}\n{"id": "a"}\n',
            r"draws.jsonl:2: expected a draw",
        ),
    ],
)
def test_a_damaged_or_foreign_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "draws.jsonl"
    path.write_text(text)
    for _ in range(2):  # and left as it was, not locked
        with pytest.raises(ValueError, match=message):
            DrawCounter(2, path)
        assert path.read_text() == text


def test_two_servers_never_share_a_file(tmp_path: Path) -> None:
    first = DrawCounter(2, tmp_path / "draws")
    with pytest.raises(ValueError, match="expected a file that no other server uses"):
        DrawCounter(2, tmp_path / "draws")
    first.close()
    DrawCounter(2, tmp_path / "draws").close()
    with pytest.raises(ValueError, match="counter: expected an open one"):
        first.assign(["a"])


@pytest.mark.parametrize("group_size", [0, -1, True, 2.0])
def test_group_size_is_checked(group_size: int) -> None:
    with pytest.raises(ValueError, match="group_size: expected at least 1"):
        DrawCounter(group_size)


def test_the_file_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draw_counter, "SPARE_LINES", 10)
    monkeypatch.setattr(draw_counter, "REMEMBERED", 5)
    path = tmp_path / "draws"
    counter = DrawCounter(2, path)
    for number in range(200):
        assert counter.assign(["a"], [f"r{number}"]) == [number // 2]
        assert len(path.read_text().splitlines()) <= 2 * 6 + 10 + 1
    with pytest.raises(ValueError, match="no other server"):  # the new file is locked as well
        DrawCounter(2, path)
    counter.close()
    again = DrawCounter(2, path)
    assert again.assign(["a", "a"], ["r199", "new"]) == [99, 100]
    again.close()
    assert [entry.name for entry in tmp_path.iterdir()] == ["draws"]


def test_what_cannot_be_written_is_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "draws"
    counter = DrawCounter(1, path)
    counter.assign(["a"])
    before = path.read_bytes()
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[: len(data) // 2]))
    with pytest.raises(OSError, match="bytes written"):
        counter.assign(["a", "b"], ["r1", "r2"])
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert counter.assign(["a", "b"], ["r1", "r2"]) == [1, 0]
    counter.close()


def test_threads_count_every_caption_once() -> None:
    counter = DrawCounter(4)
    seen: list[int] = []

    def ask() -> None:
        for _ in range(250):
            seen.extend(counter.assign(["a"]))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == [number // 4 for number in range(2000)]
