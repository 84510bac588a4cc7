"""``python -m trainer rloo|report``."""

from __future__ import annotations

import logging
import sys

_USAGE = """\
usage: python -m trainer COMMAND …

  rloo     train a captioner with the identification reward
  report   make one HTML page out of a run folder

python -m trainer COMMAND --help tells more."""


def main(arguments: list[str]) -> int:
    """Runs one command; returns the exit status."""
    command, rest = (arguments[0], arguments[1:]) if arguments else ("--help", [])
    if command in ("-h", "--help"):
        print(_USAGE)
        return 0
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    if command == "rloo":
        from trainer.config import parse

        config = parse(rest)
        from trainer.rloo import run

        return run(config)
    if command == "report":
        from trainer.report.command import main as report

        return report(rest)
    print(f"COMMAND: expected rloo or report, got {command!r}\n\n{_USAGE}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
