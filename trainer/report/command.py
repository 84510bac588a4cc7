"""``python -m trainer report RUN``: write RUN/report.html."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from lineup_fast.cli import one_line

if TYPE_CHECKING:
    from lineup_fast.corpus import Corpus


def main(argv: list[str]) -> int:
    """Write the report of a run folder and print its path; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m trainer report",
        description="Write one self-contained HTML page about a run.",
    )
    parser.add_argument("run", type=Path, help="run folder, as written by `trainer rloo`")
    parser.add_argument("--corpus", type=Path, help="corpus folder (default: as the run recorded)")
    parser.add_argument("-o", "--out", type=Path, help="page to write (default: RUN/report.html)")
    parser.add_argument("--examples", type=int, default=8, help="series shown one by one")
    args = parser.parse_args(argv)
    try:
        _write(args)
    except (ValueError, OSError) as error:
        print(f"python -m trainer report: {one_line(error)}", file=sys.stderr)
        return 2
    return 0


def _write(args: argparse.Namespace) -> None:
    from lineup_fast.corpus import Corpus
    from trainer.report.page import build
    from trainer.report.run import read_run

    if args.examples < 0:
        raise ValueError(f"examples: expected at least 0, got {args.examples}")
    out = args.out or args.run / "report.html"
    if out.is_dir() or (args.out and not out.absolute().parent.is_dir()):
        raise ValueError(f"out: expected a file in an existing folder, got {out}")
    run = read_run(args.run)
    corpus = (
        Corpus.load(args.corpus)
        if args.corpus
        else _corpus(run.get("corpus_path", "corpus"), args.run)
    )
    page = build(run, corpus, n_examples=args.examples)
    partial = out.with_name(out.name + ".partial")
    partial.write_text(page, encoding="utf-8")
    partial.replace(out)
    for note in run.notes:
        print(f"note: {note}", file=sys.stderr)
    print(out)


def _corpus(recorded: object, run: Path) -> Corpus | None:
    """Return the corpus at the recorded folder, or beside the run; None when it is not there."""
    from lineup_fast.corpus import Corpus

    if not isinstance(recorded, (str, os.PathLike)):
        return None
    for folder in (Path(recorded), run / recorded):
        if folder.is_dir():
            return Corpus.load(folder)
    return None
