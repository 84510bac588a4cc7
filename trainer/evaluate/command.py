"""``python -m trainer evaluate``: captions of any captioners, measured on benchmarks.

Writes results.json and a table per captioner, benchmark and metric, a value per series, and prints
them side by side. No captioner is loaded.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

from lineup_fast.cli import one_line
from lineup_fast.cli_options import progress
from trainer.evaluate import captions, statistics_marks
from trainer.evaluate.benchmark import Benchmark
from trainer.evaluate.captions import Captioner, CaptionFile
from trainer.evaluate.evaluate_config import EvaluateConfig
from trainer.evaluate.metrics import METRICS
from trainer.evaluate.table import (
    RESULTS,
    Results,
    UnmeasuredError,
    read_results,
    write_results,
)


def evaluate(config: EvaluateConfig) -> Results:
    """Measures everything; results.json grows with every metric.

    Raises:
        ValueError: captions that lack series, an unknown metric, other settings than those of the
            evaluation to be resumed, or, without `allow`, series that a captioner was trained on.
    """
    unknown = sorted(set(config.metrics) - METRICS.keys())
    if unknown:
        raise ValueError(f"metrics: expected among {', '.join(METRICS)}, got {unknown[0]!r}")
    measured = captions.captioners(list(config.captions))
    labels = [one.label for one in measured]
    earlier = [read_results(path) for path in config.earlier]
    known = dict.fromkeys([*labels, *(name for found in earlier for name in found.captioners)])
    if config.against is not None and config.against not in known:
        raise ValueError(f"against: expected one of {', '.join(known)}, got {config.against!r}")
    folder = out_folder(config)
    benchmarks = [Benchmark.load(Path(path)) for path in config.benchmarks]
    names = [benchmark.name for benchmark in benchmarks]
    if len(set(names)) < len(names):
        raise ValueError(f"benchmarks: expected distinct names, got {', '.join(names)}")
    chosen = {(b.name, c.label): c.of(b) for b in benchmarks for c in measured}
    results = Results(settings=json.loads(json.dumps(config.settings())))
    for found in earlier:
        _add_earlier(results, found, set(labels), benchmarks)
    trained = _corpora(config, measured)
    for benchmark in benchmarks:
        shared = _contamination(benchmark, measured, trained, config)
        before = results.benchmarks.get(benchmark.name, {}).get("contamination", {})
        told = {"contamination": {**before, **shared}}
        results.benchmarks[benchmark.name] = _facts(benchmark) | told
    if config.resume and (folder / RESULTS).is_file():
        _keep(results, read_results(folder), chosen)
    write_results(results, folder)
    for done, (benchmark, one) in enumerate(product(benchmarks, measured)):
        progress(f"{one.label} on {benchmark.name}", done, len(chosen))
        texts, file = chosen[benchmark.name, one.label]
        _measure(results, benchmark, one.label, texts, file, config, folder)
    progress("measured", len(chosen), len(chosen))
    results.comparisons = statistics_marks.comparisons(results, config.against or labels[0])
    write_results(results, folder)
    return results


def out_folder(config: EvaluateConfig) -> Path:
    """Where results go: as told, else the run folder, where nothing but one was given.

    Raises:
        ValueError: nothing told, and something else given.
    """
    if config.out is not None:
        return config.out
    given = [Path(word.rpartition("=")[2]) for word in config.captions]
    if len(given) != 1 or not given[0].is_dir():
        raise ValueError("out: expected a folder for results.json, got none (--out)")
    return given[0]


def _facts(benchmark: Benchmark) -> dict[str, Any]:
    return {
        "fingerprint": benchmark.fingerprint,
        "n": len(benchmark.ids),
        "n_asked": len(benchmark.asked_ids),
        "n_references": sum(len(texts) for texts in benchmark.references.values()),
        "neighbours": benchmark.meta.get("neighbours"),
        "meta": dict(benchmark.meta),
    }


def _add_earlier(
    results: Results, earlier: Results, labels: set[str], benchmarks: list[Benchmark]
) -> None:
    """Tables of an earlier evaluation beside the new ones; a captioner measured anew stays out.

    Raises:
        ValueError: a benchmark of the same name was another one then.
    """
    for benchmark in benchmarks:
        before = earlier.benchmarks.get(benchmark.name, {}).get("fingerprint")
        if before not in (None, benchmark.fingerprint):
            raise ValueError(
                f"earlier: expected results on the same {benchmark.name}, got fingerprint "
                f"{before} where that of the benchmark is {benchmark.fingerprint}"
            )
    results.tables |= {key: t for key, t in earlier.tables.items() if key[0] not in labels}
    results.captioners |= {k: v for k, v in earlier.captioners.items() if k not in labels}
    for name, facts in earlier.benchmarks.items():
        results.benchmarks.setdefault(name, facts)
    results.unmeasured += [row for row in earlier.unmeasured if row["captioner"] not in labels]


def _corpora(config: EvaluateConfig, measured: list[Captioner]) -> dict[str, Path]:
    """The training corpus of each captioner that has one, by label."""
    told = {}
    for word in config.trained_on:
        label, _, path = word.rpartition("=")
        told[label] = Path(path)
    strange = sorted(told.keys() - {"", *(one.label for one in measured)})
    if strange:
        raise ValueError(f"trained_on: expected labels of captioners, got {strange[0]!r}")
    found = {one.label: told.get(one.label, told.get("")) for one in measured}
    for one in measured:
        found[one.label] = found[one.label] or captions.trained_on(one)
    return {label: path for label, path in found.items() if path is not None}


def _contamination(
    benchmark: Benchmark,
    measured: list[Captioner],
    trained: Mapping[str, Path],
    config: EvaluateConfig,
) -> dict[str, Any]:
    """By captioner what it shares with its training corpus, or that this is not known."""
    from lineup_fast.corpus import Corpus
    from trainer.evaluate.contamination import contamination

    found: dict[str, Any] = {}
    corpora: dict[Path, Corpus] = {}
    for one in measured:
        if one.label not in trained:
            found[one.label] = "not checked: no training corpus known (--trained-on)"
            continue
        path = trained[one.label]
        if path not in corpora:
            corpora[path] = Corpus.load(path)
        shared = contamination(benchmark, corpora[path])
        found[one.label] = shared.summary() | {"corpus": str(path)}
        if shared.ids and not config.allow:
            raise ValueError(
                f"{benchmark.name}: expected series that {one.label} was not trained on, got "
                f"{len(shared.ids)} of {shared.n} that share a source interval "
                f"({len(shared.interval)}) or a run ({len(shared.run)}) with {path}; --allow "
                "measures anyway and reports it"
            )
    return found


def _keep(
    results: Results,
    before: Results,
    chosen: Mapping[tuple[str, str], tuple[Mapping[str, str], CaptionFile]],
) -> None:
    """Adds what was measured before of the same captions on the same benchmark."""
    changed = {k for k in results.settings if before.settings.get(k) != results.settings[k]}
    if changed:
        raise ValueError(
            f"resume: expected the settings of the results there, got other {sorted(changed)}"
        )
    for (benchmark, label), (_, file) in chosen.items():
        about = before.captioners.get(label, {}).get(benchmark, {})
        now = results.benchmarks[benchmark]["fingerprint"]
        then = before.benchmarks.get(benchmark, {}).get("fingerprint")
        if about.get("sha256") != file.sha256 or now != then:
            continue
        results.captioners.setdefault(label, {})[benchmark] = about
        results.tables |= {k: t for k, t in before.tables.items() if k[:2] == (label, benchmark)}
        results.unmeasured += [
            row
            for row in before.unmeasured
            if (row["captioner"], row["benchmark"]) == (label, benchmark)
        ]


def _measure(
    results: Results,
    benchmark: Benchmark,
    label: str,
    texts: Mapping[str, str],
    file: CaptionFile,
    config: EvaluateConfig,
    folder: Path,
) -> None:
    """Adds the tables of one captioner on one benchmark, and writes what there is so far."""
    about = results.captioners.setdefault(label, {}).setdefault(
        benchmark.name,
        {
            "file": str(file.path),
            "sha256": file.sha256,
            "settings": file.settings,
            "unfinished": file.unfinished,
            "measured": [],
        },
    )
    for metric in config.metrics or METRICS:
        if metric in about["measured"]:
            continue
        key = {"captioner": label, "benchmark": benchmark.name, "metric": metric}
        try:
            tables = METRICS[metric](texts, benchmark, file.settings, config)
        except UnmeasuredError as error:
            results.unmeasured.append({**key, "why": str(error)})
            tables = []
        new = {
            (label, benchmark.name, table.metric): table.check(benchmark.ids) for table in tables
        }
        results.tables |= new
        about["measured"].append(metric)
        write_results(results, folder, new)


def show(folder: Path) -> None:
    """Prints the tables of a results folder but the details, which are in the report."""
    from rich.console import Console
    from rich.table import Table as RichTable

    from trainer.report.evaluation import (
        DETAILS,
        Cell,
        digits,
        evaluation_notes,
        evaluation_tables,
    )

    def text(cell: Cell) -> str:
        shown = f"{digits(cell.value)}{cell.mark}"
        return f"[bold]{shown}[/bold]" if cell.best else shown

    console = Console()
    document = json.loads((folder / RESULTS).read_text(encoding="utf-8"))
    for found in evaluation_tables(document):
        if found.title == DETAILS:
            continue
        console.print(f"\n{found.title}", style="bold")
        table = RichTable()
        table.add_column("captions")
        for benchmark, metric in found.columns:
            words = metric.replace("_", "\n")  # narrow terminals would cut the name
            table.add_column(f"{benchmark}\n{words}", justify="right")
        for name, cells in found.rows:
            table.add_row(name, *(text(cell) for cell in cells))
        table.add_section()
        for name, cells in found.controls:
            table.add_row(name, *(text(cell) for cell in cells), style="dim")
        console.print(table)
    for note in evaluation_notes(document):
        console.print(note, style="dim", markup=False)
    console.print(str(folder / RESULTS), markup=False)


def run(config: EvaluateConfig) -> int:
    """`python -m trainer evaluate`."""
    if config.threads:
        import torch

        torch.set_num_threads(config.threads)
    try:
        folder = out_folder(config)
        evaluate(config)
    except (ValueError, OSError, ImportError) as error:
        print(f"python -m trainer evaluate: {one_line(error)}", file=sys.stderr)
        return 2
    show(folder)
    return 0
