"""Teacher captions: what is kept, what is dropped and counted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainer.teacher import TeacherCaption, read_teacher, split


def written(path: Path, rows: list[object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


LONG = "Rises from 3 to 9, then falls"


def test_every_dropped_caption_is_counted_by_its_reason(tmp_path: Path) -> None:
    rows = [
        {"id": "a", "caption": f"{LONG}.", "finished": True},
        {"id": "a", "caption": f"  {LONG}!  "},  # a second one of the same item
        {"id": "a", "caption": f"{LONG}."},  # the first again
        {"id": "b", "caption": f"{LONG}."},  # the same words of another item
        {"id": "b", "caption": LONG},
        {"id": "b", "caption": "   "},
        {"id": "b", "caption": "Flat."},
        {"id": "z", "caption": f"{LONG}."},
    ]
    teacher = read_teacher(written(tmp_path / "t.jsonl", rows), {"a", "b"}, min_characters=10)
    assert teacher.captions == [
        TeacherCaption("a", f"{LONG}."),
        TeacherCaption("a", f"{LONG}!"),
        TeacherCaption("b", f"{LONG}."),
    ]
    assert teacher.dropped == {
        "repeated": 1, "cut off": 1, "empty": 1, "too short": 1, "unknown item": 1
    }  # fmt: skip
    assert len(teacher.captions) + teacher.dropped.total() == len(rows)
    summary = teacher.summary()
    assert summary["kept"] == 3
    assert summary["repeated"] == 1
    assert summary["characters_p5_p50_p95"] == [30, 30, 30]


def test_split_takes_no_item_of_another_split() -> None:
    captions = [TeacherCaption(id_, "x") for id_ in "abc"]
    assert split(captions, {"a"}, {"b"}) == ([captions[0]], [captions[1]])


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{"id": "a", "caption": "x."}\nnot json\n', "line 2"),
        ('{"id": "a"}\n', '"id" and "caption"'),
        ('{"id": 3, "caption": "x."}\n', '"id" and "caption"'),
        ('["a", "x."]\n', '"id" and "caption"'),
        ('{"id": "z", "caption": "Far away."}\n', "got none"),
        ("", "got none"),
    ],
)
def test_bad_files_are_refused(text: str, error: str, tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text(text)
    with pytest.raises(ValueError, match=error):
        read_teacher(tmp_path / "t.jsonl", {"a"}, min_characters=1)
    with pytest.raises(ValueError, match="data: expected a JSONL file"):
        read_teacher(tmp_path / "nothing", {"a"}, min_characters=1)
