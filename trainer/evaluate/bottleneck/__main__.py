"""``python -m trainer.evaluate.bottleneck``: write template captions of a benchmark's windows.

They are what the bottleneck is tested with: captions that are known to be true, with exact values
or without a number.
"""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import dataclass
from pathlib import Path

from lineup_fast.cli import one_line


@dataclass(frozen=True)
class TemplatesConfig:
    """Write true captions by template: OUT/exact.jsonl with values, OUT/vague.jsonl without."""

    benchmark: Path
    """Folder made by `python -m trainer benchmark` out of a long channel."""
    out: Path
    """Folder of the caption files; those that are there are replaced."""
    seed: int = 2020
    """Of the vague captions' wording."""


def write(config: TemplatesConfig) -> list[Path]:
    """Writes the files and returns them. Raises ValueError as `windows.of_benchmark`."""
    from trainer.evaluate.benchmark import Benchmark
    from trainer.evaluate.bottleneck.templates import TEMPLATES, templates
    from trainer.evaluate.bottleneck.windows import of_benchmark

    benchmark = Benchmark.load(config.benchmark)
    windows = of_benchmark(benchmark)
    config.out.mkdir(parents=True, exist_ok=True)
    files = []
    for kind in TEMPLATES:
        rows = [
            json.dumps({"id": id_, "caption": text, "finished": True})
            for id_, text in templates(windows, kind, config.seed).items()
        ]
        file = config.out / f"{kind}.jsonl"
        file.write_text("\n".join(rows) + "\n", encoding="utf-8")
        settings = {
            "template": kind,
            "seed": config.seed,
            "corpus_fingerprint": benchmark.corpus.fingerprint,
        }
        beside = file.with_suffix(".json")
        beside.write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
        files.append(file)
    return files


def main(arguments: list[str]) -> int:
    """Runs the command; returns the exit status."""
    import tyro

    told = "python -m trainer.evaluate.bottleneck"
    config = tyro.cli(TemplatesConfig, args=arguments, prog=told)
    try:
        for file in write(config):
            print(file)
    except (ValueError, OSError) as error:
        print(f"{told}: {one_line(error)}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    sys.exit(main(sys.argv[1:]))
