"""Teacher captions: read from JSONL, matched to the corpus, filtered, every loss counted."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from trainer.collapse import distinct_openings

ENDINGS = '.!?")'


@dataclass(frozen=True)
class TeacherCaption:
    """A caption of the item `id` of a corpus."""

    id: str
    text: str


@dataclass
class Teacher:
    """Captions that were kept, in the order of the file.

    dropped: how many captions each reason cost. fingerprint: of the file's bytes.
    """

    captions: list[TeacherCaption]
    dropped: Counter[str] = field(default_factory=Counter)
    fingerprint: str = ""

    def summary(self) -> dict[str, object]:
        """Counts, lengths in characters (5, 50, 95 %), and how alike the captions are."""
        texts = [caption.text for caption in self.captions]
        lengths = np.percentile([len(t) for t in texts], [5, 50, 95]) if texts else np.zeros(3)
        return {
            "kept": len(texts),
            "dropped": dict(self.dropped),
            "characters_p5_p50_p95": lengths.round().astype(int).tolist(),
            "distinct_openings_frac": distinct_openings(texts),
            "repeated": len(texts) - len(set(texts)),
        }


def read_teacher(path: Path, known: Collection[str], *, min_characters: int) -> Teacher:
    """Captions of known items that are whole.

    path: JSONL, one object a line with "id" and "caption" (what `python -m trainer caption`
        writes). known: ids of the corpus. A caption is dropped, and counted, when its item is
        unknown, when it is empty or shorter than `min_characters`, when it does not end like a
        sentence (cut off), or when the same caption of the same item came before.

    Raises:
        ValueError: no such file, a line that is no such object, or nothing kept.

    Source: reference quality control: 80 characters, last character one of . ! ? " ).
    """
    if not path.is_file():
        raise ValueError(f"data: expected a JSONL file with captions, got {path}")
    raw = path.read_bytes()
    teacher = Teacher([], fingerprint=hashlib.sha256(raw).hexdigest()[:12])
    seen: set[TeacherCaption] = set()
    for number, line in enumerate(raw.decode("utf-8").splitlines(), 1):
        if not line.strip():
            continue
        caption = _parsed(line, f"{path.name}, line {number}")
        why = _flaw(caption, known, min_characters) or ("repeated" if caption in seen else None)
        if why is None:
            teacher.captions.append(caption)
            seen.add(caption)
        else:
            teacher.dropped[why] += 1
    if not teacher.captions:
        raise ValueError(
            f"data: expected captions of items of the corpus, got none in {path.name} "
            f"({dict(teacher.dropped)})"
        )
    return teacher


def _parsed(line: str, where: str) -> TeacherCaption:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ValueError(f"data: expected JSON in {where}, got {error}") from None
    if not isinstance(row, dict) or not all(isinstance(row.get(k), str) for k in ("id", "caption")):
        raise ValueError(f'data: expected "id" and "caption" in {where}, got {line[:80]}')
    return TeacherCaption(row["id"], row["caption"].strip())


def _flaw(caption: TeacherCaption, known: Collection[str], min_characters: int) -> str | None:
    if caption.id not in known:
        return "unknown item"
    if not caption.text:
        return "empty"
    if len(caption.text) < min_characters:
        return "too short"
    if caption.text[-1] not in ENDINGS:
        return "cut off"
    return None


def split(
    captions: Sequence[TeacherCaption], train: Collection[str], val: Collection[str]
) -> tuple[list[TeacherCaption], list[TeacherCaption]]:
    """Captions of training and of validation items; those of other splits are in neither."""
    return [c for c in captions if c.id in train], [c for c in captions if c.id in val]
