"""``python -m trainer caption``: one greedy caption for every item, into a JSONL file.

The file grows line by line and is gone on with when the command is repeated; beside it lies
NAME.json with the settings, so that captions of different settings never mix.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lineup_fast.cli import one_line
from lineup_fast.cli_options import progress
from trainer.caption_config import CaptionConfig, resolved

if TYPE_CHECKING:
    from trainer.validate import Series
    from trainer.writers import Writer


def settings(config: CaptionConfig, corpus: Series) -> dict[str, Any]:
    """What decides the captions; the same for a file and what is added to it."""
    words = ("checkpoint", "caption_prompt", "chart_style", "max_new_tokens", "compute_dtype")
    return {name: getattr(config, name) for name in words} | {
        "corpus_fingerprint": corpus.fingerprint
    }


def missing_ids(out: Path, ids: Sequence[str], chosen: dict[str, Any]) -> list[str]:
    """Items without a caption in `out`; a line cut off by a kill is removed.

    Raises:
        ValueError: the file was written with other settings.
    """
    beside = out.with_suffix(".json")
    if not out.exists():
        beside.write_text(json.dumps(chosen, indent=1) + "\n", encoding="utf-8")
        return list(ids)
    before = json.loads(beside.read_text(encoding="utf-8")) if beside.is_file() else None
    if before != chosen:
        changed = sorted(k for k in chosen if (before or {}).get(k) != chosen[k])
        raise ValueError(
            f"out: expected a new file, or captions of the same settings, got {out} with "
            f"other {', '.join(changed)}"
        )
    text = out.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        out.write_text(whole, encoding="utf-8")
    done = {json.loads(line)["id"] for line in whole.splitlines()}
    return [id_ for id_ in ids if id_ not in done]


def write_captions(
    config: CaptionConfig,
    corpus: Series,
    load: Callable[[CaptionConfig], Writer],
) -> tuple[int, int]:
    """Captions all items that have none yet; returns how many were written, and how many of them
    were cut off at `max_new_tokens`.

    config: resolved settings. load: what makes the writer, called only if something is missing.
    """
    split = None if config.split == "all" else config.split
    ids = corpus.ids(split) if split is None else _fixed(corpus, split, config.n)
    ids = ids[: config.n]
    if not ids:
        raise ValueError(f"split: expected items in {config.split}, got none")
    left = missing_ids(config.out, ids, settings(config, corpus))
    if not left:
        return 0, 0
    writer, cut = load(config), 0
    with config.out.open("a", encoding="utf-8") as file:
        for start in range(0, len(left), config.at_once):
            some = left[start : start + config.at_once]
            for id_, written in zip(some, writer([corpus.series(i) for i in some]), strict=True):
                row = {"id": id_, "caption": written.text, "finished": written.finished}
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
                cut += not written.finished
            file.flush()
            progress("captions", min(start + config.at_once, len(left)), len(left))
    return len(left), cut


def _fixed(corpus: Series, split: str, n: int | None) -> list[str]:
    from trainer.validate import fixed_ids

    return fixed_ids(corpus, split, n or len(corpus.ids(split)))


def run(config: CaptionConfig) -> int:
    """`python -m trainer caption`."""
    import torch

    from lineup_fast.corpus import Corpus
    from trainer.writers import load_writer

    if config.threads:
        torch.set_num_threads(config.threads)
    try:
        config = resolved(config)
        n, cut = write_captions(config, Corpus.load(config.data), load_writer)
    except (ValueError, OSError) as error:
        print(f"python -m trainer caption: {one_line(error)}", file=sys.stderr)
        return 2
    print(f"{n} captions written to {config.out}, {cut} of them cut off at the limit")
    return 0
