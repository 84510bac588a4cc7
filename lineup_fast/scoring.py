"""Scoring a file of captions: the work behind ``lineup-fast score``."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    from lineup_fast.corpus import Corpus
    from lineup_fast.rewards import IdentificationReward, RewardBatch

BATCH = 64  # captions per call of the verifier: between two steps of the progress bar


@dataclass(frozen=True)
class ScoredFile:
    """Rewards of a file of captions: rows as written, and the same for empty captions per item."""

    rows: list[dict[str, Any]]
    by_position: npt.NDArray[np.float64]
    floor: float
    counts: dict[str, int]
    recipe: str

    def summary(self) -> str:
        """A table for the terminal."""
        valid = [row for row in self.rows if row["valid"]]
        lines = [
            ("captions", f"{len(self.rows)} ({len(self.rows) - len(valid)} without an answer)"),
            ("accuracy", _mean(row["accuracy"] for row in valid)),
            ("reward", _mean(row["reward"] for row in valid)),
            ("accuracy, empty caption", f"{self.floor:.3f}"),
            ("accuracy by position", "  ".join(f"{share:.3f}" for share in self.by_position)),
            ("label mass", _mean(mass for row in valid for mass in row["label_mass"] or [])),
            ("ties, unparsed", f"{self.counts['ties']}, {self.counts['unparsed']}"),
            ("tokens prefilled", self._tokens()),
            ("recipe", self.recipe),
        ]
        width = max(len(name) for name, _ in lines)
        text = "\n".join(f"{name:<{width}}  {value}" for name, value in lines)
        reasons = sorted({row["reason"] for row in self.rows if row["reason"]})
        return "\n".join([text, *(f"no answer: {reason}" for reason in reasons[:5])])

    def _tokens(self) -> str:
        spent, naive = self.counts["prefilled_tokens"], self.counts["prompt_tokens"]
        ratio = f", {naive / spent:.1f} times fewer" if spent else ""
        return f"{spent:,} of {naive:,}{ratio}"


def read_captions(path: str | os.PathLike[str]) -> list[tuple[str, str]]:
    """(id, caption) of every line of a JSONL file.

    Raises: ValueError that names the line that is not an object with the strings id and caption.
    """
    pairs = []
    with Path(path).open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{path}:{number}: expected a JSON object, got {error}") from None
            if not isinstance(row, dict) or not all(
                isinstance(row.get(key), str) for key in ("id", "caption")
            ):
                raise ValueError(
                    f"{path}:{number}: expected strings id and caption, got {row!r:.80}"
                )
            pairs.append((row["id"], row["caption"]))
    if not pairs:
        raise ValueError(f"{path}: expected at least one caption, got none")
    return pairs


def check_ids(corpus: Corpus, pairs: Sequence[tuple[str, str]]) -> None:
    """Raises ValueError where a caption is of an item that the corpus does not hold."""
    unknown = sorted({item for item, _ in pairs if item not in corpus})
    if unknown:
        raise ValueError(
            f"captions: expected ids of the corpus, got {len(unknown)} unknown, "
            f"such as {unknown[0]!r}"
        )


def score_captions(
    reward: IdentificationReward,
    pairs: Sequence[tuple[str, str]],
    *,
    index: int | None = None,
    progress: Callable[[str, int, int], None] = lambda *_: None,
) -> ScoredFile:
    """Score (id, caption) pairs, and an empty caption for every item, in batches.

    index: draw index of the candidate sets; None asks the fixed ones.
    Raises: ValueError on ids that the corpus does not hold, before anything is scored.
    """
    check_ids(reward.corpus, pairs)
    items = list(dict.fromkeys(item for item, _ in pairs))
    first = {item: number for number, item in enumerate(items)}
    order = sorted(range(len(pairs)), key=lambda row: first[pairs[row][0]])  # groups stay together
    rows: list[dict[str, Any]] = [{}] * len(pairs)
    hits = np.zeros(reward.recipe.k)
    asked = np.zeros(reward.recipe.k)
    counts: dict[str, int] = {}
    total = len(pairs) + len(items)
    for done, members in _chunks(order):
        progress("scoring captions", done, total)
        ids = [pairs[row][0] for row in members]
        captions = [pairs[row][1] for row in members]
        batch = reward.score(captions, ids, index=index)
        counts = {name: counts.get(name, 0) + count for name, count in batch.counts.items()}
        counted = batch.asked & batch.valid[:, None]
        hits += ((batch.picks == np.arange(reward.recipe.k)) & counted).sum(axis=0)
        asked += counted.sum(axis=0)
        for at, row in enumerate(members):
            rows[row] = _row(reward, batch, at, ids[at], captions[at], index)
    floors: list[float] = []
    for done, chunk in _chunks(items):
        progress("scoring empty captions", len(pairs) + done, total)
        empty = reward.score([""] * len(chunk), chunk, index=index)
        floors += empty.accuracy[empty.valid].tolist()
    progress("done", total, total)
    shares = np.divide(hits, asked, out=np.full(len(hits), np.nan), where=asked > 0)
    floor = float(np.mean(floors)) if floors else float("nan")
    return ScoredFile(rows, shares, floor, counts, reward.recipe.name)


def check_target(path: str | os.PathLike[str]) -> None:
    """Raises ValueError where a file could not be written."""
    target = Path(path)
    if target.is_dir() or not target.absolute().parent.is_dir():
        raise ValueError(f"output: expected a file in an existing folder, got {path}")


def write_rows(path: str | os.PathLike[str], rows: Sequence[dict[str, Any]]) -> None:
    """Rows as JSONL; the file appears whole or not at all."""
    target = Path(path)
    partial = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    with partial.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")
    partial.replace(target)


def _row(
    reward: IdentificationReward,
    batch: RewardBatch,
    at: int,
    item: str,
    caption: str,
    index: int | None,
) -> dict[str, Any]:
    """One caption's result as JSON: nulls where there is no number."""
    valid = bool(batch.valid[at])
    scored = valid and bool(np.isfinite(batch.label_logprobs[at]).all())
    logprobs = batch.label_logprobs[at].astype(np.float64)
    shares = np.exp(logprobs - logprobs.max(axis=1, keepdims=True)) if scored else None
    return {
        "id": item,
        "caption": caption,
        "reward": float(batch.reward[at]) if valid else None,
        "accuracy": float(batch.accuracy[at]) if valid else None,
        "picks": batch.picks[at].tolist(),
        "probs": (shares / shares.sum(axis=1, keepdims=True)).round(6).tolist()
        if shares is not None
        else None,
        "label_mass": batch.label_mass[at].astype(float).round(6).tolist() if scored else None,
        "valid": valid,
        "reason": batch.reason[at],
        "distractors": list(reward.candidates(item, index).distractors) if valid else None,
        "recipe": batch.recipe,
        **batch.fingerprints,
    }


def _chunks(values: Sequence[Any]) -> Iterator[tuple[int, Any]]:
    """(how many came before, up to BATCH values) of the whole sequence."""
    for start in range(0, len(values), BATCH):
        yield start, values[start : start + BATCH]


def _mean(values: Iterator[float]) -> str:
    numbers = list(values)
    return f"{np.mean(numbers):.3f}" if numbers else "none"
