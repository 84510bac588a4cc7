"""The commands about the reward itself: ``audit``, ``export``, ``plan``, ``score``."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from lineup_fast import cli_options

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_audit(commands: Subparsers) -> None:
    """``audit``: can this reward be trusted?"""
    parser = commands.add_parser(
        "audit",
        help="measure what a reward set-up leaks, before training against it",
        description="Ask the verifier with captions that tell nothing, the truth, or lies, with "
        "distractors of several kinds and 2 to 12 candidates, and compare with thresholds. Exit "
        "status 1 when one is broken.",
    )
    add = parser.add_argument
    add("--corpus", required=True, metavar="DIR", help="made by lineup-fast index")
    add("-o", "--output", default="audit.json", metavar="FILE", help="default: audit.json")
    add("--items", type=int, default=200, metavar="N", help="items asked about")
    add("--split", choices=("train", "val", "test"), default="val")
    add("--kind", choices=("nearest", "random", "shuffle", "swap"), default="nearest",
        help="where training takes its distractors from")  # fmt: skip
    add("--seed", type=int, default=0, metavar="N", help="of the choice of items")
    cli_options.add_verifier(parser)
    cli_options.add_recipe(parser)
    parser.set_defaults(run=_audit)


def _audit(args: argparse.Namespace) -> int:
    from lineup_fast import scoring
    from lineup_fast.audit import audit
    from lineup_fast.corpus import Corpus

    scoring.check_target(args.output)
    corpus = Corpus.load(args.corpus)
    found = audit(
        corpus,
        cli_options.verifier_of(args),
        cli_options.recipe_of(args),
        kind=args.kind,
        items=args.items,
        split=args.split,
        seed=args.seed,
        progress=cli_options.progress,
    )
    found.write(args.output)
    print(found.table())
    return 0 if found.verdicts == ["safe"] else 1


def add_export(commands: Subparsers) -> None:
    """``export``: the data set of a training stack."""
    parser = commands.add_parser(
        "export",
        help="write charts and prompts as the data set that a training stack expects",
        description="One row per item of a corpus: chart, prompt, and the id that the reward is "
        "asked about. Parquet for TRL and verl, JSONL for OpenRLHF and verifiers.",
    )
    add = parser.add_argument
    add("corpus", metavar="CORPUS", help="made by lineup-fast index")
    add("--to", required=True, choices=("trl", "verl", "openrlhf", "verifiers"), help="the stack")
    add("-o", "--output", required=True, metavar="DIR", help="a new folder")
    add("--style", choices=("default", "paper", "tiny"), default="default", help="of the charts")
    add("--prompt", metavar="TEXT", help="of the captioner (default: prompts.CAPTION_PROMPT)")
    add("--limit", type=int, metavar="N", help="at most N items of each split")
    add("--threads", type=int, default=0, metavar="N", help="0: all cores")
    parser.set_defaults(run=_export)


def _export(args: argparse.Namespace) -> int:
    from lineup_fast import charts, export, prompts
    from lineup_fast.corpus import Corpus

    files = export.export(
        Corpus.load(args.corpus),
        args.to,
        args.output,
        style=charts.STYLES[args.style],
        prompt=prompts.CAPTION_PROMPT if args.prompt is None else args.prompt,
        limit=args.limit,
        threads=args.threads,
        progress=cli_options.progress,
    )
    print("\n".join(map(str, files)))
    return 0


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
    add(
        "--decimals", type=cli_options.decimals, default="auto", metavar="N", help="auto or 0 to 12"
    )
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
    add("-o", "--output", metavar="FILE", help="one JSON object per caption")
    add("--seed", type=int, default=0, metavar="N", help="of the draws")
    add("--index", type=int, metavar="N", help="redraw the distractors (default: the nearest)")
    cli_options.add_verifier(parser)
    cli_options.add_recipe(parser)
    parser.set_defaults(run=_score)


def _score(args: argparse.Namespace) -> int:
    from lineup_fast import scoring
    from lineup_fast.corpus import Corpus

    if args.output:
        scoring.check_target(args.output)
    recipe = cli_options.recipe_of(args)
    pairs = scoring.read_captions(args.captions)
    corpus = Corpus.load(args.corpus)
    scoring.check_ids(corpus, pairs)  # before a large model is loaded

    from lineup_fast.rewards import IdentificationReward

    reward = IdentificationReward(corpus, cli_options.verifier_of(args), recipe, seed=args.seed)
    scored = scoring.score_captions(reward, pairs, index=args.index, progress=cli_options.progress)
    if args.output:
        scoring.write_rows(args.output, scored.rows)
    print(scored.summary())
    return 0 if any(row["valid"] for row in scored.rows) else 1
