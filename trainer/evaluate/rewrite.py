"""``python -m trainer rewrite``: references of a benchmark without names, dates and numbers.

Captions that were written with the data's domain, dates and numbers at hand cannot be entailed by
one that was written from the bare chart. A language model writes them anew in two stages:

1. neutral: domain, place, unit and calendar words go, numbers stay;
2. numberless: numbers go, positions and sizes are said in words.

A text with a digit or "percent" after stage 2 is refused and asked for again with the flaw named,
up to `tries` times; what is still refused is counted, not written, and asked for again when the
command is repeated. The file grows line by line:

    {"id", "reference": the text before, "rewritten", "neutral": after stage 1, "tries"}
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lineup_fast.cli import one_line
from lineup_fast.cli_options import progress

if TYPE_CHECKING:
    from trainer.evaluate.benchmark import Benchmark
    from trainer.writers import TextWriter

NEUTRAL = """\
Rewrite the description of a time series below so that it speaks only of the line itself.
Leave out what is measured, where, in which unit, and every date or calendar word; say instead \
where on the time axis something happens: at the start, a third of the way through, near the end.
Keep every other statement and every value. Add nothing. Answer with the rewritten description only.

Description:
{text}"""

NUMBERLESS = """\
Rewrite the description of a time series below without any number.
Write no digit, no number word for a value, no percentage. Say in words how high or low, how large \
a change is, and where on the time axis it happens. Keep what is said about the shape: direction, \
peaks, dips, their order and place. Add nothing. Answer with the rewritten description only.

Description:
{text}"""

AGAIN = """

An earlier answer was refused because {flaw}:
{text}"""

_NUMBER = re.compile(r"\d|\bper\s?cent\b|%", re.IGNORECASE)


@dataclass(frozen=True)
class RewriteConfig:
    """Write the references of a benchmark anew, without names, dates and numbers."""

    checkpoint: str
    """The language model: a folder or hub id."""
    benchmark: Path
    """Folder made by `trainer benchmark`."""
    out: Path
    """JSONL to write; a file that is there is gone on with."""
    stages: Literal["both", "numberless"] = "both"
    """both: neutral, then numberless; numberless: only that, for references that name nothing."""
    tries: int = 3
    """Answers asked for at most, for one reference."""
    at_once: int = 16
    """References rewritten together; memory only."""
    max_new_tokens: int = 512
    """Longest answer in tokens; one cut off there is refused."""
    device: str = "cpu"
    """Device of the language model."""
    compute_dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Matmuls of the language model."""
    threads: int = 0
    """CPU threads, 0 = all cores."""

    def __post_init__(self) -> None:
        for name in ("tries", "at_once", "max_new_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}")
        if self.threads < 0:
            raise ValueError(f"threads: expected at least 0, got {self.threads}")


def flaw(text: str, finished: bool, *, numbers_allowed: bool = False) -> str | None:
    """Why an answer is refused; None: it is not."""
    if not finished:
        return "it was too long"
    if not text.strip():
        return "it was empty"
    found = None if numbers_allowed else _NUMBER.search(text)
    return f"it contains {found.group()!r}" if found else None


def ask(
    write: TextWriter, instruction: str, texts: Sequence[str], tries: int, *, numbers_allowed: bool
) -> list[tuple[str | None, int, str]]:
    """For each text (the accepted answer or None, answers asked for, the last flaw)."""
    prompts = [instruction.format(text=text) for text in texts]
    found: list[tuple[str | None, int, str]] = [(None, 0, "")] * len(texts)
    left = list(range(len(texts)))
    for attempt in range(1, tries + 1):
        if not left:
            break
        answers = write([prompts[i] for i in left])
        again = []
        for i, answer in zip(left, answers, strict=True):
            why = flaw(answer.text, answer.finished, numbers_allowed=numbers_allowed)
            if why is None:
                found[i] = answer.text.strip(), attempt, ""
                continue
            found[i] = None, attempt, why
            told = AGAIN.format(flaw=why, text=answer.text.strip()[:500])
            prompts[i] = instruction.format(text=texts[i]) + told
            again.append(i)
        left = again
    return found


def rewrite(
    config: RewriteConfig, benchmark: Benchmark, load: Callable[[RewriteConfig], TextWriter]
) -> tuple[int, list[str]]:
    """Rewrites what is missing in the file; returns how many were written, and for each refused
    one a line with its id and flaw.

    Raises:
        ValueError: the file is of other settings, or the benchmark has no references.
    """
    pairs = [(id_, text) for id_, texts in benchmark.references.items() for text in texts]
    if not pairs:
        raise ValueError(f"benchmark: expected references, got none in {config.benchmark}")
    done = _done(config, benchmark)
    left = [pair for pair in pairs if pair not in done]
    if not left:
        return 0, []
    write, written, refused = load(config), 0, []
    with config.out.open("a", encoding="utf-8") as file:
        for start in range(0, len(left), config.at_once):
            some = left[start : start + config.at_once]
            for row, why in _rewritten(config, write, some):
                if why:
                    refused.append(f"{row['id']}: {why}")
                else:
                    file.write(json.dumps(row, ensure_ascii=False) + "\n")
                    written += 1
            file.flush()
            progress("references", min(start + config.at_once, len(left)), len(left))
    return written, refused


def _rewritten(
    config: RewriteConfig, write: TextWriter, pairs: Sequence[tuple[str, str]]
) -> list[tuple[dict[str, Any], str]]:
    """(row, why it is refused or "") for each (id, reference)."""
    texts = [text for _, text in pairs]
    rows: list[dict[str, Any]] = [{"id": i, "reference": t, "rewritten": ""} for i, t in pairs]
    why, tries = [""] * len(pairs), [0] * len(pairs)
    stages = [("neutral", NEUTRAL)] if config.stages == "both" else []
    for name, instruction in (*stages, ("rewritten", NUMBERLESS)):
        open_ = [i for i in range(len(pairs)) if not why[i]]
        allowed = name == "neutral"
        asked = ask(
            write, instruction, [texts[i] for i in open_], config.tries, numbers_allowed=allowed
        )
        for i, (text, n, flawed) in zip(open_, asked, strict=True):
            why[i], tries[i] = flawed, tries[i] + n
            if text is not None:
                rows[i][name] = texts[i] = text
    return [(row | {"tries": n}, w) for row, n, w in zip(rows, tries, why, strict=True)]


def _done(config: RewriteConfig, benchmark: Benchmark) -> set[tuple[str, str]]:
    """(id, reference) in the file already; a line cut off by a kill is removed."""
    chosen = {
        "checkpoint": config.checkpoint,
        "stages": config.stages,
        "tries": config.tries,
        "max_new_tokens": config.max_new_tokens,
        "compute_dtype": config.compute_dtype,
        "instructions": [NEUTRAL, NUMBERLESS, AGAIN],
        "benchmark_fingerprint": benchmark.fingerprint,
    }
    beside = config.out.with_suffix(".json")
    if not config.out.exists():
        beside.write_text(json.dumps(chosen, indent=1) + "\n", encoding="utf-8")
        return set()
    before = json.loads(beside.read_text(encoding="utf-8")) if beside.is_file() else {}
    if before != chosen:
        changed = sorted(k for k in chosen if before.get(k) != chosen[k])
        raise ValueError(
            f"out: expected a new file, or one of the same settings, got {config.out} with other "
            f"{', '.join(changed)}"
        )
    text = config.out.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        config.out.write_text(whole, encoding="utf-8")
    return set(read_rewritten(config.out)) if whole else set()


def read_rewritten(file: Path) -> dict[tuple[str, str], str]:
    """Rewritten text by (id, reference), out of a file that `rewrite` wrote.

    Raises:
        ValueError: no such file, or a line of another kind.
    """
    if not file.is_file():
        raise ValueError(f"rewritten: expected a JSONL file, got {file}")
    try:
        rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        return {(row["id"], row["reference"]): row["rewritten"] for row in rows}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"rewritten: expected lines of `trainer rewrite` in {file}, got {error!r}"
        ) from None


def replaced(
    references: Sequence[str], texts: Mapping[tuple[str, str], str], id_: str
) -> tuple[str, ...]:
    """The rewritten references of a series.

    Raises:
        ValueError: one of them was not rewritten.
    """
    lacking = [text for text in references if (id_, text) not in texts]
    if lacking:
        raise ValueError(f"rewritten: expected all references of {id_}, got none of {lacking[0]!r}")
    return tuple(dict.fromkeys(texts[id_, text] for text in references))


def run(config: RewriteConfig) -> int:
    """`python -m trainer rewrite`; exit status 1 where references stay refused."""
    import torch

    from trainer.evaluate.benchmark import Benchmark
    from trainer.writers import load_text_writer

    if config.threads:
        torch.set_num_threads(config.threads)
    try:
        benchmark = Benchmark.load(config.benchmark)
        written, refused = rewrite(config, benchmark, load_text_writer)
    except (ValueError, OSError) as error:
        print(f"python -m trainer rewrite: {one_line(error)}", file=sys.stderr)
        return 2
    print(f"{written} references written to {config.out}, {len(refused)} refused")
    for line in refused[:20]:
        print(f"  {line}")
    return 1 if refused else 0
