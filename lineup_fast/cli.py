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
    add("--lengths", type=_numbers, default=[24, 48, 96], metavar="N,N", help="series lengths")
    add("--sample", type=int, metavar="N", help="take N series, in equal shares per length")
    add("--stride", type=int, metavar="N", help="steps between windows (default: half a length)")
    add("--seed", type=int, default=0, metavar="N")
    add("--scale", type=_pair, metavar="LOW,HIGH", help="map channels to whole numbers in a range")
    add("--eta", type=float, default=0.2, metavar="X", help="overlap budget as share of the length")
    add("--overlap", choices=("run", "window"), default="run", help="compare values or positions")
    add("--features-scale", choices=("zscore", "none"), default="zscore", help="before distances")
    add("--k", type=int, default=4, metavar="K", help="candidates of a question")
    add("--split", type=_shares, default=(0.8, 0.1, 0.1), metavar="X,X,X", help="train:val:test")
    add("--test-sources", type=_words, metavar="NAME,NAME", help="data sets to hold out as test")
    add("--threads", type=int, default=0, metavar="N", help="0: all cores")
    add("--dry-run", action="store_true", help="show the summary, write nothing")
    parser.set_defaults(run=_index)


def _index(args: argparse.Namespace) -> int:
    from lineup_fast import corpus, default_data, readers, store

    if not args.files and not args.default_data:
        raise ValueError("FILE: expected at least one, or --default-data")
    if not args.output and not args.dry_run:
        raise ValueError("--output: expected a folder, or --dry-run")
    if not args.dry_run:
        store.check_target(args.output)  # before minutes of work
    channels, refusals = default_data.read_default() if args.default_data else ([], [])
    test_sources = args.test_sources
    if args.default_data and not args.files and test_sources is None:
        test_sources = default_data.TEST_SOURCES
    read_from: dict[str, str] = {}
    for number, file in enumerate(args.files):
        _progress(f"reading {file}", number, len(args.files))
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
        progress=_progress,
    )
    print(made.summary.table())
    if not len(made):
        raise ValueError(f"items: expected some with {args.k - 1} neighbours or more, got none")
    if not args.dry_run:
        made.save(args.output)
        print(f"{len(made)} items in {args.output}, fingerprint {made.fingerprint[:16]}")
    return 0


def add_score(commands: Subparsers) -> None:
    """``score``: captions → rewards."""
    parser = commands.add_parser(
        "score",
        help="score anybody's captions with the identification reward",
        description="Ask a verifier, which reads only the caption, to pick the described series "
        "among its neighbours. Input: one JSON object per line with the strings id and caption.",
    )
    add = parser.add_argument
    add("captions", metavar="CAPTIONS.jsonl")
    add("--corpus", required=True, metavar="DIR", help="made by lineup-fast index")
    add("--verifier", required=True, metavar="MODEL", help="folder or hub id of a language model")
    add("-o", "--output", metavar="FILE", help="one JSON object per caption")
    add("--k", type=int, default=4, metavar="K", help="candidates of a question")
    add("--layout", choices=("caption_first", "candidates_first"), default="caption_first")
    add("--scoring", choices=("label_logprobs", "generate", "soft"), default="label_logprobs")
    add(
        "--decimals",
        type=_decimals,
        default="auto",
        metavar="N",
        help="auto (from the series) or 0 to 12",
    )
    add("--separator", choices=(", ", ","), default=", ", metavar="SEP", help="', ' or ','")
    add("--seed", type=int, default=0, metavar="N", help="of the draws")
    add("--index", type=int, metavar="N", help="redraw the distractors (default: the nearest)")
    add("--device", default="cpu")
    add("--dtype", default="float32")
    add("--threads", type=int, metavar="N", help="of torch")
    add("--one-at-a-time", action="store_true", help="stock attention, no shared prefixes")
    parser.set_defaults(run=_score)


def _score(args: argparse.Namespace) -> int:
    from lineup_fast import scoring
    from lineup_fast.corpus import Corpus
    from lineup_fast.prompts import Recipe

    if args.output:
        scoring.check_target(args.output)
    recipe = Recipe(
        k=args.k,
        layout=args.layout,
        scoring=args.scoring,
        decimals=args.decimals,
        separator=args.separator,
    )
    pairs = scoring.read_captions(args.captions)
    corpus = Corpus.load(args.corpus)
    scoring.check_ids(corpus, pairs)  # before a large model is loaded

    from lineup_fast.rewards import IdentificationReward
    from lineup_fast.verifiers.transformers import TransformersVerifier

    verifier = TransformersVerifier(
        args.verifier,
        device=args.device,
        dtype=args.dtype,
        threads=args.threads,
        shared=not args.one_at_a_time,
    )
    reward = IdentificationReward(corpus, verifier, recipe, seed=args.seed)
    scored = scoring.score_captions(reward, pairs, index=args.index, progress=_progress)
    if args.output:
        scoring.write_rows(args.output, scored.rows)
    print(scored.summary())
    return 0 if any(row["valid"] for row in scored.rows) else 1


def add_plan(commands: Subparsers) -> None:
    """``plan``: tokens of a step."""
    parser = commands.add_parser(
        "plan",
        help="count the tokens a step makes the verifier read, under each layout",
        description="Build the questions of one training step from a corpus and count the tokens "
        "that the verifier prefills, one prompt at a time and with each shared prefix once.",
    )
    add = parser.add_argument
    add("corpus", metavar="CORPUS", help="made by lineup-fast index")
    add("--verifier", required=True, metavar="MODEL", help="folder or hub id; only its tokenizer")
    add("--captions", metavar="FILE.jsonl", help="real ones, as for score (default: fillers)")
    add("--caption-tokens", type=int, default=180, metavar="N", help="of the fillers")
    add("--batch", type=int, default=32, metavar="B", help="series a step")
    add("--group", type=int, default=8, metavar="G", help="captions of each")
    add("--k", type=int, default=4, metavar="K", help="candidates of a question")
    add("--decimals", type=_decimals, default="auto", metavar="N", help="auto or 0 to 12")
    add("--separator", choices=(", ", ","), default=", ", metavar="SEP", help="', ' or ','")
    add("--split", choices=("train", "val", "test"), default="train")
    add("--seed", type=int, default=0, metavar="N", help="of the draws")
    add("--tokens-per-second", type=float, metavar="X", help="prefill rate, to show seconds")
    parser.set_defaults(run=_plan)


def _plan(args: argparse.Namespace) -> int:
    from lineup_fast import hub, scoring, token_plan
    from lineup_fast.corpus import Corpus
    from lineup_fast.prompts import Recipe

    rate = args.tokens_per_second
    if rate is not None and not rate > 0:
        raise ValueError(f"--tokens-per-second: expected a positive number, got {rate}")
    captions = None
    if args.captions:
        captions = [caption for _, caption in scoring.read_captions(args.captions)]
    plan = token_plan.plan_step(
        Corpus.load(args.corpus),
        hub.load_tokenizer(args.verifier),
        Recipe(k=args.k, decimals=args.decimals, separator=args.separator),
        batch=args.batch,
        group=args.group,
        caption_tokens=args.caption_tokens,
        captions=captions,
        split=args.split,
        seed=args.seed,
    )
    print(plan.table(rate))
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
        progress=_progress,
    )
    print(f"{len(paths)} charts in {args.output}")
    return 0


def one_line(error: Exception) -> str:
    """What an error says, on one line."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split())


def _progress(stage: str, done: int, total: int) -> None:
    """A bar on stderr, when that is a terminal."""
    if sys.stderr.isatty():
        bar = "#" * round(20 * done / max(1, total))
        end = "\n" if done == total else ""
        print(f"\r\x1b[K[{bar:20}] {done}/{total} {stage}", end=end, file=sys.stderr, flush=True)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _numbers(text: str) -> list[int]:
    try:
        return [int(word) for word in _words(text)]
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected whole numbers N,N, got {text!r}") from None


def _decimals(text: str) -> str | int:
    try:
        return text if text == "auto" else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected auto or 0 to 12, got {text!r}") from None


def _pair(text: str) -> tuple[float, float]:
    try:
        low, high = (float(word) for word in _words(text))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected two numbers LOW,HIGH, got {text!r}") from None
    return low, high


def _shares(text: str) -> tuple[float, float, float]:
    try:
        train, val, test = (float(word) for word in _words(text))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected three numbers X,X,X, got {text!r}") from None
    return train, val, test


COMMANDS: tuple[Callable[[Subparsers], None], ...] = (
    add_doctor,
    add_index,
    add_plan,
    add_render,
    add_score,
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
