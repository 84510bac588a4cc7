"""``python -m trainer benchmark``: make a benchmark folder, to be captioned and evaluated on."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from lineup_fast.cli import one_line
from lineup_fast.store import check_target

if TYPE_CHECKING:
    from trainer.evaluate.benchmark_build import Gathered

Kind = Literal["bedtime", "truce", "cats", "etth2", "ettm2", "saugeen", "demand", "jsonl"]


@dataclass(frozen=True)
class BenchmarkConfig:
    """Make a benchmark folder. Captions of it: `trainer caption --data FOLDER --split all`."""

    kind: Kind
    """Which benchmark: described series (bedtime, truce, cats, jsonl), or windows of a long channel
    (etth2, ettm2, saugeen, demand)."""
    data: str
    """Its file or folder; bedtime and cats also take their hub ids HartvigsenGroup/BEDTime and
    mhfisher/CaTSBench."""
    out: Path
    """Folder to write."""
    name: str = ""
    """Name in tables; empty = the kind."""
    references: str = "synthetic"
    """cats: synthetic or human captions, or JSONL with "id" (ts_name) and "rewritten"."""
    rewritten: Path | None = None
    """References written anew by `trainer rewrite`, in place of those of the data."""
    n: int | None = None
    """Series: of each set (bedtime: None = 500; truce), or windows (None = 5,000); 0 = all."""
    split: str | None = None
    """truce: only this split."""
    column: str | None = None
    """Windows: the column of the channel; None = OT, flow or demand."""
    rows: int | None = None
    """Windows: only the first rows of the channel (the paper: 23,711 of saugeen)."""
    lookback: int = 128
    """Windows: steps of each."""
    horizon: int = 16
    """Windows: steps that must follow each in the channel."""
    scale: Literal["standard", "none", "0-100"] = "standard"
    """Windows: standard = z-scores by the first --fit-frac; 0-100 = whole numbers, as
    `lineup-fast index --scale 0,100` makes them; none = as in the file."""
    fit_frac: float = 0.6
    """Windows: the part of the channel that decides the scale."""
    neighbours: Literal["filtered", "reference"] = "filtered"
    """Look-alikes of identification: the nearest without overlap and duplicates, or, as the
    reference evaluation has them, the nearest whatever they share."""
    k: int = 4
    """Candidates of a question."""
    max_asked_steps: int | None = 1024
    """Identification asks no question about longer series; None = about all."""
    seed: int = 2020
    """Of the draw of series or windows."""
    threads: int = 0
    """CPU threads, 0 = all cores."""

    def __post_init__(self) -> None:
        if self.n is not None and self.n < 0:
            raise ValueError(f"n: expected at least 0, got {self.n}")
        if not 0 < self.fit_frac <= 1:
            raise ValueError(f"fit_frac: expected above 0 up to 1, got {self.fit_frac}")
        if self.threads < 0:
            raise ValueError(f"threads: expected at least 0, got {self.threads}")


def make(config: BenchmarkConfig) -> None:
    """Builds and writes the benchmark, and prints what is in it."""
    from trainer.evaluate import benchmark_build, rewrite

    check_target(config.out)
    gathered = _gather(config)
    if config.rewritten is not None:
        texts = rewrite.read_rewritten(config.rewritten)
        gathered.items = [
            replace(i, references=rewrite.replaced(i.references, texts, i.id))
            for i in gathered.items
        ]
        gathered.meta["rewritten"] = str(config.rewritten)
    made = benchmark_build.make_benchmark(
        config.name or config.kind,
        gathered,
        neighbours=config.neighbours,
        k=config.k,
        max_asked_steps=config.max_asked_steps,
        threads=config.threads,
    )
    made.save(config.out)
    n_texts = sum(len(texts) for texts in made.references.values())
    print(f"{made.name}: {len(made.ids)} series, {n_texts} references, in {config.out}")
    for why, count in gathered.dropped.items():
        print(f"  left out: {count} {why}")
    reasons = sorted(set(made.not_asked.values()))
    for why in reasons[:10]:
        count = sum(reason == why for reason in made.not_asked.values())
        print(f"  {count} not asked about: {why}")
    if len(reasons) > 10:
        print(f"  and {len(reasons) - 10} more reasons, in {config.out}/benchmark.json")


def _gather(config: BenchmarkConfig) -> Gathered:
    from trainer.evaluate import benchmark_sources as sources
    from trainer.evaluate.cats import cats

    n = config.n or None
    if config.kind == "bedtime":
        per_set = 500 if config.n is None else n
        return sources.bedtime(config.data, per_set=per_set, seed=config.seed)
    if config.kind == "truce":
        return sources.truce(config.data, per_set=n, split=config.split)
    if config.kind == "cats":
        return cats(config.data, references=config.references)
    if config.kind == "jsonl":
        return sources.jsonl(config.data)
    return sources.windows(
        sources.long_channel(config.kind, config.data, config.column, config.rows),
        lookback=config.lookback,
        horizon=config.horizon,
        n=5000 if config.n is None else n,
        scale=(0.0, 100.0) if config.scale == "0-100" else config.scale,
        fit_frac=config.fit_frac,
        seed=config.seed,
    )


def run(config: BenchmarkConfig) -> int:
    """`python -m trainer benchmark`."""
    try:
        make(config)
    except (ValueError, OSError, ImportError) as error:
        print(f"python -m trainer benchmark: {one_line(error)}", file=sys.stderr)
        return 2
    return 0
