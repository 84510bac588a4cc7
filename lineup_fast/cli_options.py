"""Options and words that commands share."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lineup_fast.prompts import Recipe
    from lineup_fast.verifiers.base import Verifier


def progress(stage: str, done: int, total: int) -> None:
    """A bar on stderr, when that is a terminal."""
    if sys.stderr.isatty():
        bar = "#" * round(20 * done / max(1, total))
        end = "\n" if done == total else ""
        print(f"\r\x1b[K[{bar:20}] {done}/{total} {stage}", end=end, file=sys.stderr, flush=True)


def words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def numbers(text: str) -> list[int]:
    try:
        return [int(word) for word in words(text)]
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected whole numbers N,N, got {text!r}") from None


def decimals(text: str) -> str | int:
    try:
        return text if text == "auto" else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected auto or 0 to 12, got {text!r}") from None


def pair(text: str) -> tuple[float, float]:
    try:
        low, high = (float(word) for word in words(text))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected two numbers LOW,HIGH, got {text!r}") from None
    return low, high


def shares(text: str) -> tuple[float, float, float]:
    try:
        train, val, test = (float(word) for word in words(text))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected three numbers X,X,X, got {text!r}") from None
    return train, val, test


def add_verifier(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--verifier", required=True, metavar="MODEL", help="folder or hub id of a language model")
    add("--device", default="cpu")
    add("--dtype", default="float32")
    add("--threads", type=int, metavar="N", help="of torch")
    add("--one-at-a-time", action="store_true", help="stock attention, no shared prefixes")


def verifier_of(args: argparse.Namespace) -> Verifier:
    from lineup_fast.verifiers.transformers import TransformersVerifier

    return TransformersVerifier(
        args.verifier,
        device=args.device,
        dtype=args.dtype,
        threads=args.threads,
        shared=not args.one_at_a_time,
    )


def add_recipe(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--k", type=int, default=4, metavar="K", help="candidates of a question")
    add("--layout", choices=("caption_first", "candidates_first"), default="caption_first")
    add("--scoring", choices=("label_logprobs", "generate", "soft"), default="label_logprobs")
    add(
        "--decimals",
        type=decimals,
        default="auto",
        metavar="N",
        help="auto (from the series) or 0 to 12",
    )
    add("--separator", choices=(", ", ","), default=", ", metavar="SEP", help="', ' or ','")


def recipe_of(args: argparse.Namespace) -> Recipe:
    from lineup_fast.prompts import Recipe

    return Recipe(
        k=args.k,
        layout=args.layout,
        scoring=args.scoring,
        decimals=args.decimals,
        separator=args.separator,
        positions=getattr(args, "positions", None),
    )
