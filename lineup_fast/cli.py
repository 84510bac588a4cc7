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


COMMANDS: tuple[Callable[[Subparsers], None], ...] = (add_doctor,)


def build_parser() -> argparse.ArgumentParser:
    """The whole parser; building it imports no command's module."""
    parser = argparse.ArgumentParser(prog="lineup-fast", description=lineup_fast.__doc__)
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
        print(f"lineup-fast {args.command}: {error}", file=sys.stderr)
        return 2
    return status


if __name__ == "__main__":
    sys.exit(main())
