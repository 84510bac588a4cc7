"""The command line ``lineup-fast``: argparse, no heavy import until a command runs.

Each command is one function ``add_<name>`` listed in ``COMMANDS``: it adds its parser and sets
``run``, a function from the parsed arguments to an exit status, which imports what it needs.
"""

from __future__ import annotations

import argparse
import logging
import sys
from typing import TYPE_CHECKING

import lineup_fast
from lineup_fast import cli_options as words
from lineup_fast import cli_reward, cli_serve

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_doctor(commands: Subparsers) -> None:
    """``doctor``: what is installed here, and what would be used."""
    parser = commands.add_parser(
        "doctor", help="show versions, kernels, optional packages and this machine's resources"
    )

    def run(args: argparse.Namespace) -> int:
        del args
        from lineup_fast import doctor

        print(doctor.report())
        return 0

    parser.set_defaults(run=run)


def add_index(commands: Subparsers) -> None:
    """``index``: files → corpus."""
    parser = commands.add_parser(
        "index",
        help="make a corpus out of CSV, Parquet, JSONL files or Hugging Face data sets",
        description="Cut series into windows of equal length, look up each one's nearest "
        "neighbours, divide them into train, val and test, and write the corpus.",
    )
    add = parser.add_argument
    add("files", nargs="*", metavar="FILE", help="file, folder, or hub id owner/name")
    add("-o", "--output", metavar="DIR", help="the corpus; needed unless --dry-run")
    add("--default-data", action="store_true", help="the packaged real series (see README)")
    add(
        "--lengths",
        type=words.numbers,
        default=[24, 48, 96],
        metavar="N,N",
        help="series lengths",
    )
    add("--sample", type=int, metavar="N", help="take N series, in equal shares per length")
    add("--stride", type=int, metavar="N", help="steps between windows (default: half a length)")
    add("--seed", type=int, default=0, metavar="N")
    add(
        "--scale",
        type=words.pair,
        metavar="LOW,HIGH",
        help="map channels to whole numbers in a range",
    )
    add("--eta", type=float, default=0.2, metavar="X", help="overlap budget as share of the length")
    add("--overlap", choices=("run", "window"), default="run", help="compare values or positions")
    add("--features-scale", choices=("zscore", "none"), default="zscore", help="before distances")
    add("--k", type=int, default=4, metavar="K", help="candidates of a question")
    add(
        "--split",
        type=words.shares,
        default=(0.8, 0.1, 0.1),
        metavar="X,X,X",
        help="train:val:test",
    )
    add(
        "--test-sources",
        type=words.words,
        metavar="NAME,NAME",
        help="data sets to hold out as test",
    )
    add("--threads", type=int, default=0, metavar="N", help="0: all cores")
    add("--device", choices=("cpu", "cuda"), default="cpu", help="where neighbours are searched")
    add("--dry-run", action="store_true", help="show the summary, write nothing")
    parser.set_defaults(run=_index)


def _index(args: argparse.Namespace) -> int:
    from lineup_fast import corpus, default_data, kernels, readers, store

    if not args.files and not args.default_data:
        raise ValueError("FILE: expected at least one, or --default-data")
    if not args.output and not args.dry_run:
        raise ValueError("--output: expected a folder, or --dry-run")
    if not args.dry_run:
        store.check_target(args.output)  # before minutes of work
    try:
        kernels.require_device(args.device)
    except RuntimeError as error:
        raise ValueError(f"--device: {error}") from error
    channels, refusals = default_data.read_default() if args.default_data else ([], [])
    test_sources = args.test_sources
    if args.default_data and not args.files and test_sources is None:
        test_sources = default_data.TEST_SOURCES
    read_from: dict[str, str] = {}
    for number, file in enumerate(args.files):
        words.progress(f"reading {file}", number, len(args.files))
        found, refused = readers.read(file)
        for channel in found:
            if not channel.window and read_from.setdefault(channel.source, file) != file:
                raise ValueError(
                    f"FILE: expected files of different names, got {channel.source!r} from "
                    f"{read_from[channel.source]} and from {file}"
                )
        channels += found
        refusals += refused
    made = corpus.build(
        channels,
        lengths=args.lengths,
        sample=args.sample,
        seed=args.seed,
        scale=args.scale,
        eta=args.eta,
        overlap=args.overlap,
        features_scale=args.features_scale,
        k=args.k,
        split=args.split,
        test_sources=test_sources,
        stride=args.stride,
        refusals=refusals,
        threads=args.threads,
        device=args.device,
        progress=words.progress,
    )
    print(made.summary.table())
    if not len(made):
        raise ValueError(f"items: expected some with {args.k - 1} neighbours or more, got none")
    if not args.dry_run:
        made.save(args.output)
        print(f"{len(made)} items in {args.output}, fingerprint {made.fingerprint[:16]}")
    return 0


def add_render(commands: Subparsers) -> None:
    """``render``: charts as PNG files."""
    parser = commands.add_parser(
        "render",
        help="draw the charts of a corpus or a file as PNG files",
        description="Draw items of a corpus, or whole channels of a file, as the captioner sees "
        "them.",
    )
    add = parser.add_argument
    add("source", metavar="SOURCE", help="corpus, file, folder, or hub id owner/name")
    add("names", nargs="*", metavar="ID", help="item ids or channel names (default: all)")
    add("-o", "--output", required=True, metavar="DIR", help="folder for the pictures")
    add("--style", choices=("default", "paper", "tiny"), default="default", help="size and look")
    add("--threads", type=int, default=0, metavar="N", help="0: all cores")
    parser.set_defaults(run=_render)


def _render(args: argparse.Namespace) -> int:
    from lineup_fast import charts, gallery

    series, refusals = gallery.select(args.source, args.names)
    for refusal in refusals:
        print(f"left out: {refusal}", file=sys.stderr)
    paths = gallery.write(
        series,
        args.output,
        charts.STYLES[args.style],
        threads=args.threads,
        progress=words.progress,
    )
    print(f"{len(paths)} charts in {args.output}")
    return 0


def one_line(error: Exception) -> str:
    """What an error says, on one line."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split())


COMMANDS: tuple[Callable[[Subparsers], None], ...] = (
    cli_reward.add_audit,
    add_doctor,
    cli_reward.add_export,
    add_index,
    cli_reward.add_plan,
    add_render,
    cli_reward.add_score,
    cli_serve.add_serve,
)


def build_parser() -> argparse.ArgumentParser:
    """The whole parser; building it imports no command's module."""
    parser = argparse.ArgumentParser(
        prog="lineup-fast", description=(lineup_fast.__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--version", action="version", version=lineup_fast.__version__)
    parser.add_argument("-v", "--verbose", action="store_true", help="log what is being done")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for add in COMMANDS:
        add(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit status (bad input: 2, with the reason on stderr)."""
    args = build_parser().parse_args(argv)
    logging.basicConfig(
        level=logging.INFO if args.verbose else logging.WARNING, format="%(name)s: %(message)s"
    )
    try:
        status: int = args.run(args)
    except (ValueError, OSError, ImportError) as error:
        print(f"lineup-fast {args.command}: {one_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"lineup-fast {args.command}: interrupted", file=sys.stderr)
        return 130
    return status


if __name__ == "__main__":
    sys.exit(main())
