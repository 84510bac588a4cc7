"""``python -m trainer COMMAND``."""

from __future__ import annotations

import logging
import os
import sys

_USAGE = """\
usage: python -m trainer COMMAND …

  rloo       train a captioner with the identification reward
  sft        train a captioner on the captions of a teacher
  caption    write captions of a corpus with any captioner
  benchmark  make a benchmark folder: BEDTime, TRUCE, CaTS-Bench, long channels, any JSONL
  rewrite    write its references anew, without names, dates and numbers
  questions  make or check a bank of questions for the answerability reward
  evaluate   measure captions on benchmarks, side by side
  grid       run or resume a set of runs and tabulate them; readers by K on captions
  export     write a checkpoint as a folder for the hub, adapters merged
  plan       memory and time of a set-up before it is started
  report     make one HTML page out of a run folder
  doctor     show what is installed, and which attention and loss head would run

python -m trainer COMMAND --help tells more; torchrun … -m trainer rloo|sft … uses several GPUs."""


def _rloo(arguments: list[str]) -> int:
    from trainer.config import parse

    config = parse(arguments)  # before torch is loaded
    from trainer.rloo import run

    return run(config)


def _sft(arguments: list[str]) -> int:
    from trainer.config import flags
    from trainer.sft_config import SftConfig

    told = "Train a captioner on the captions of a teacher, loss on the caption only."
    config = flags(SftConfig, arguments, "sft", told)
    from trainer.sft import run

    return run(config)


def _caption(arguments: list[str]) -> int:
    from trainer.caption import run
    from trainer.caption_config import CaptionConfig
    from trainer.config import flags

    return run(flags(CaptionConfig, arguments, "caption", "Write captions of a corpus."))


def _benchmark(arguments: list[str]) -> int:
    from trainer.config import flags
    from trainer.evaluate.benchmark_command import BenchmarkConfig, run

    return run(flags(BenchmarkConfig, arguments, "benchmark", "Make a benchmark folder."))


def _rewrite(arguments: list[str]) -> int:
    from trainer.config import flags
    from trainer.evaluate.rewrite import RewriteConfig, run

    told = "Write the references of a benchmark anew, without names, dates and numbers."
    return run(flags(RewriteConfig, arguments, "rewrite", told))


def _evaluate(arguments: list[str]) -> int:
    from trainer.config import flags
    from trainer.evaluate.evaluate_config import EvaluateConfig

    config = flags(EvaluateConfig, arguments, "evaluate", "Measure captions on benchmarks.")
    from trainer.evaluate.command import run

    return run(config)


def _questions(arguments: list[str]) -> int:
    from trainer.baselines.questions import run
    from trainer.baselines.questions_config import QuestionsConfig
    from trainer.config import flags

    arguments = ["--out" if word == "-o" else word for word in arguments]
    told = "Make or check a bank of questions, every answer verified against its series."
    return run(flags(QuestionsConfig, arguments, "questions", told))


def _grid(arguments: list[str]) -> int:
    from trainer.baselines.grid_command import main as grid

    return grid(arguments)


def _report(arguments: list[str]) -> int:
    from trainer.report.command import main as report

    return report(arguments)


def _doctor(arguments: list[str]) -> int:
    from trainer.config import flags
    from trainer.doctor import DoctorConfig, run

    told = "Show what is installed, and which attention and loss head would run on each device."
    return run(flags(DoctorConfig, arguments, "doctor", told))


def _export(arguments: list[str]) -> int:
    from trainer.export import main as export

    return export(arguments)


def _plan(arguments: list[str]) -> int:
    from trainer.plan.command import main as plan

    return plan(arguments)


_COMMANDS = {
    "rloo": _rloo,
    "sft": _sft,
    "caption": _caption,
    "benchmark": _benchmark,
    "rewrite": _rewrite,
    "evaluate": _evaluate,
    "export": _export,
    "plan": _plan,
    "questions": _questions,
    "grid": _grid,
    "report": _report,
    "doctor": _doctor,
}


def main(arguments: list[str]) -> int:
    """Runs one command; returns the exit status."""
    command, rest = (arguments[0], arguments[1:]) if arguments else ("--help", [])
    if command in ("-h", "--help"):
        print(_USAGE)
        return 0
    if command not in _COMMANDS:
        expected = ", ".join(_COMMANDS)
        print(f"COMMAND: expected one of {expected}, got {command!r}\n\n{_USAGE}", file=sys.stderr)
        return 2
    several = "RANK" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1"
    if several and command not in ("rloo", "sft"):
        print(f"{command}: expected one process, got several from torchrun", file=sys.stderr)
        return 2
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    return _COMMANDS[command](rest)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
