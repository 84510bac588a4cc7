"""``python -m trainer grid``: run or resume the arms of a grid, then read their captions."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.baselines import grid
from trainer.record import write_json
from trainer.sft_config import SftConfig

if TYPE_CHECKING:
    from lineup_fast.verifiers.base import Verifier
    from trainer.baselines.reader_grid import Reading

_ARMS = (
    "arm", "status", "reward", "k", "start_acc", "best_acc", "best_step", "floor", "corrected",
)  # fmt: skip
_CELLS = (
    "captions", "reader", "k", "n", "sources", "accuracy", "corrected", "low", "high", "change",
)  # fmt: skip


def main(arguments: list[str]) -> int:
    """Runs the command; the exit status is 1 where an arm failed, 130 after Ctrl+C."""
    parser = argparse.ArgumentParser(
        prog="python -m trainer grid",
        description="Run or resume arms, runs of rloo or sft, and tabulate them; then read "
        "captions with several readers at several K. Finished arms and cells are skipped.",
    )
    parser.add_argument("grid", type=Path, help="TOML: out, preset, [common], [arms.NAME], "
                        "[reading]; see docs/training.md")  # fmt: skip
    parser.add_argument("--only", nargs="+", metavar="ARM", help="run only these arms")
    parser.add_argument("--table", action="store_true", help="run nothing, show what is there")
    parsed = parser.parse_args(arguments)
    try:
        return run(grid.read_grid(parsed.grid), parsed.only, only_table=parsed.table)
    except (ValueError, OSError, RuntimeError) as error:
        from lineup_fast.cli import one_line

        print(f"python -m trainer grid: {one_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def run(plan: grid.Grid, only: Sequence[str] | None = None, *, only_table: bool = False) -> int:
    """Arms, then readings; grid.json is there, whole, after each of them.

    Raises:
        ValueError: a run folder was started with other settings, or nothing fits the readings.
    """
    unknown = sorted(set(only or ()) - set(plan.arms))
    if unknown:
        raise ValueError(f"only: expected some of {', '.join(plan.arms)}, got {', '.join(unknown)}")
    for config in plan.arms.values():
        grid.status(config)  # refuse before the first hour is spent
    plan.out.mkdir(parents=True, exist_ok=True)
    path = plan.out / "grid.json"
    result: dict[str, Any] = {"arms": {}, "reading": []}
    if only_table and path.is_file():
        result["reading"] = json.loads(path.read_text(encoding="utf-8"))["reading"]
    failed = False
    for name, config in plan.arms.items():
        code = None
        wanted = not only_table and (only is None or name in only)
        if wanted and grid.status(config) != "finished":
            log = config.run.with_suffix(".log")
            print(f"{name}: running, log in {log}", file=sys.stderr)
            code = grid.run_arm(config)
            if code:
                failed = True
                print(f"{name}: exit status {code}\n{grid.last_words(log)}", file=sys.stderr)
        result["arms"][name] = grid.row(config, code)
        write_json(path, result)
    if result["arms"]:
        rows = [{"arm": name, **row} for name, row in result["arms"].items()]
        print(table(rows, _ARMS))
        if (changed := grid.different_data(plan.arms)) is not None:
            print(f"not to be compared: {changed}", file=sys.stderr)
    if plan.reading and not only_table:
        reading = _reading(plan)
        if reading.left_out:
            print(f"{reading.left_out} items left out: not in all files, or too few neighbours",
                  file=sys.stderr)  # fmt: skip
        from trainer.baselines.reader_grid import cells

        for cell in cells(reading, plan.out / "reading"):
            result["reading"].append(cell)
            write_json(path, result)
    if result["reading"]:
        noted = any(cell.get("note") for cell in result["reading"])
        columns = (*_CELLS, "note") if noted else _CELLS
        print(("\n" if result["arms"] else "") + table(result["reading"], columns))
    return 1 if failed else 0


def _reading(plan: grid.Grid) -> Reading:
    """What [reading] asks for: captions of files and of finished arms."""
    from lineup_fast.corpus import Corpus
    from trainer.baselines.reader_grid import prepare

    words = plan.reading
    for name, kind in (("corpus", str), ("k", list), ("readers", dict)):
        if not isinstance(words.get(name), kind):
            raise ValueError(f"reading: expected {name} ({kind.__name__}), got {words.get(name)!r}")
    files = {name: Path(path) for name, path in words.get("captions", {}).items()}
    if words.get("arms"):
        for name, config in plan.arms.items():
            if grid.status(config) == "finished":
                files[name] = captions_of(config, words)
    options: dict[str, Any] = {name: words[name] for name in ("device", "dtype") if name in words}
    readers, made_for, paths = {}, {}, {}
    for name, reader in words["readers"].items():
        told = {"path": reader} if isinstance(reader, str) else reader
        if not isinstance(told, dict) or not {"path"} <= set(told) <= {"path", "k"}:
            raise ValueError(
                f"readers.{name}: expected a path or {{path = ..., k = [...]}}, got {reader!r}"
            )
        readers[name], paths[name] = _reader(told["path"], options), told["path"]
        if "k" in told:
            made_for[name] = list(told["k"])
    return prepare(
        Corpus.load(words["corpus"]), files, readers, words["k"],
        n=words.get("n"), recipe=words.get("recipe"), made_for=made_for,
        paths=paths,
    )  # fmt: skip


def _reader(path: str, options: dict[str, Any]) -> Callable[[], Verifier]:
    """Loads a verifier from a folder, a hub id, or SGLang's URL."""

    def load() -> Verifier:
        if path.startswith(("http://", "https://")):
            from lineup_fast.verifiers.sglang import SGLangVerifier

            return SGLangVerifier([path])
        from lineup_fast.verifiers.transformers import TransformersVerifier

        return TransformersVerifier(path, **options)

    return load


def captions_of(config: grid.Arm, words: dict[str, Any]) -> Path:
    """Captions of an arm's best checkpoint, written by `python -m trainer caption`, which goes on
    where it was interrupted.

    Raises:
        ValueError: it failed.
    """
    from trainer import checkpoint

    best = json.loads((config.run / "best.json").read_text(encoding="utf-8"))["step"]
    longest = config.max_tokens if isinstance(config, SftConfig) else config.max_new_tokens
    model = str(checkpoint.folder(config.run / "checkpoints", best)) if best else config.model
    out = config.run / "captions.jsonl"
    command = [
        sys.executable, "-m", "trainer", "caption", "--checkpoint", model,
        "--data", words["corpus"], "--out", str(out), "--split", words.get("split", "test"),
        "--caption-prompt", config.caption_prompt, "--chart-style", config.chart_style,
        "--max-new-tokens", str(longest), "--device", config.device,
        "--compute-dtype", config.compute_dtype, "--threads", str(config.threads),
    ]  # fmt: skip
    if "n" in words:
        command += ["--n", str(words["n"])]
    log = config.run / "captions.log"
    if code := grid.run_process(command, log):
        raise ValueError(
            f"{out}: expected captions, got exit status {code}\n{grid.last_words(log)}"
        )
    return out


def table(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> str:
    """Rows as text, three decimals, "-" where there is no number."""
    lines = [list(columns), *([_text(row.get(name)) for name in columns] for row in rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(columns))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _text(value: Any) -> str:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "-"
    return f"{value:.3f}" if isinstance(value, float) else str(value)
