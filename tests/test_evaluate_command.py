"""`trainer evaluate`: captions in, tables side by side out; nothing left out in silence."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lineup_fast.corpus import build
from lineup_fast.readers import Channel
from tests.toy_nli import classifier, tokenizer
from trainer.evaluate import benchmark_sources as sources
from trainer.evaluate import command, metrics
from trainer.evaluate.benchmark import Benchmark
from trainer.evaluate.benchmark_build import Gathered, Item, make_benchmark
from trainer.evaluate.captions import captioners, trained_on
from trainer.evaluate.claim_check import claim_check, share
from trainer.evaluate.entailment import entailment
from trainer.evaluate.evaluate_config import EvaluateConfig
from trainer.evaluate.nli import NliModel
from trainer.evaluate.statistics import holm
from trainer.evaluate.statistics_marks import comparisons
from trainer.evaluate.table import Results, Table, UnmeasuredError, read_results
from trainer.report.anatomy import CaptionCheck
from trainer.report.evaluation import evaluation_notes, evaluation_tables, mark


def _exact(x: np.ndarray) -> str:
    return f"Starts at {x[0]:.2f}, peaks at {x.max():.2f} at step {x.argmax()}, ends {x[-1]:.2f}."


def _vague(x: np.ndarray) -> str:
    return "Starts at 40." if x[0] > 0 else "Moves about."


Writer = Callable[[np.ndarray], str]


@pytest.fixture
def channel() -> Channel:
    return Channel("pool/x", np.random.default_rng(0).normal(size=900).cumsum().round(3))


@pytest.fixture
def made(tmp_path: Path, channel: Channel) -> Benchmark:
    gathered = sources.windows(channel, lookback=24, horizon=4, n=40, scale="none")
    benchmark = make_benchmark("walk", gathered)
    benchmark.save(tmp_path / "walk")
    return benchmark


def _write(folder: Path, benchmark: Benchmark, how: Writer, name: str = "walk") -> None:
    folder.mkdir(exist_ok=True)
    rows = [{"id": i, "caption": how(benchmark.series(i))} for i in benchmark.ids]
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = {"corpus_fingerprint": benchmark.corpus.fingerprint, "checkpoint": "some/model"}
    (folder / f"{name}.json").write_text(json.dumps(settings))


@pytest.fixture
def config(tmp_path: Path, made: Benchmark) -> EvaluateConfig:
    _write(tmp_path / "exact", made, _exact)
    _write(tmp_path / "vague", made, _vague)
    words = (f"vague={tmp_path}/vague/walk.jsonl", f"{tmp_path}/exact")
    metrics = ("entailment", "claims", "characters")
    return EvaluateConfig(words, (str(tmp_path / "walk"),), metrics, out=tmp_path / "out")


def test_claims_are_true_of_their_series_and_not_of_another(made: Benchmark) -> None:
    found = claim_check({i: _exact(made.series(i)) for i in made.ids}, made)
    assert found.mean == 1.0
    assert found.controls["another_series"] < 0.5
    assert found.meta["named_per_caption"] == 4
    mixed = {i: (_vague if n % 2 else _exact)(made.series(i)) for n, i in enumerate(made.ids)}
    table = claim_check(mixed, made).check(made.ids)
    assert set(table.missing) == {i for i in made.ids if mixed[i] == "Moves about."}
    assert table.mean == pytest.approx(sum(table.values.values()) / len(table.values))
    with pytest.raises(UnmeasuredError, match="no caption names a number"):
        claim_check(dict.fromkeys(made.ids, "It moves."), made)


def test_the_share_counts_values_and_times_that_can_be_checked() -> None:
    assert share(CaptionCheck(3, 2, 4, 1, 1)) == 3 / 4
    assert share(CaptionCheck(0, 0, 4, 0, 0)) is None


def test_evaluate_writes_a_table_per_captioner(config: EvaluateConfig, made: Benchmark) -> None:
    results = command.evaluate(config)
    assert results == read_results(config.out)  # type: ignore[arg-type]
    exact = results.tables["exact", "walk", "claims"]
    assert (exact.mean, len(exact.values)) == (1.0, 40)
    assert results.benchmarks["walk"]["fingerprint"] == made.fingerprint
    assert "not checked" in results.benchmarks["walk"]["contamination"]["exact"]
    assert results.captioners["exact"]["walk"]["settings"]["checkpoint"] == "some/model"
    (row,) = results.comparisons  # more characters are neither better nor worse
    vague = results.tables["vague", "walk", "claims"]
    assert (row["captioner"], row["against"], row["n"]) == ("exact", "vague", len(vague.values))
    assert row["difference"] == pytest.approx(1 - vague.mean)


def test_captions_cut_off_are_counted(made: Benchmark, tmp_path: Path) -> None:
    rows = [{"id": i, "caption": "x", "finished": n > 2} for n, i in enumerate(made.ids)]
    file = tmp_path / "some.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    metrics = ("entailment", "claims", "characters")
    config = EvaluateConfig((str(file),), (str(tmp_path / "walk"),), metrics, out=tmp_path / "out")
    results = command.evaluate(config)
    assert results.captioners["some"]["walk"]["unfinished"] == 3
    assert [row["metric"] for row in results.unmeasured] == ["entailment", "claims"]
    assert results.tables["some", "walk", "characters"].mean == 1.0


def test_captions_that_lack_a_series_are_refused(config: EvaluateConfig, tmp_path: Path) -> None:
    file = tmp_path / "exact" / "walk.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:-2]))
    with pytest.raises(ValueError, match="exact: expected captions of all 40 series of walk, got"):
        command.evaluate(config)
    extra = tmp_path / "more.jsonl"
    extra.write_text("".join(lines[-2:]))
    both = replace(config, captions=(*config.captions, f"exact={extra}"))
    assert command.evaluate(both).tables["exact", "walk", "claims"].mean == 1.0
    extra.write_text("".join(lines[-2:]) + json.dumps(json.loads(lines[0]) | {"caption": "x"}))
    with pytest.raises(ValueError, match=r"exact: expected one caption of .*, got two in"):
        command.evaluate(both)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("nonsense", 'expected "id" and "caption" in'),
        ('{"id": "a"}', 'expected "id" and "caption" in'),
        ('{"id": "a", "caption": 3}', "expected one text of a in"),
        ('{"id": "a", "caption": "x"}\n{"id": "a", "caption": "y"}', "expected one text of a in"),
    ],
)
def test_files_that_are_no_captions_are_refused(tmp_path: Path, line: str, message: str) -> None:
    file = tmp_path / "c.jsonl"
    file.write_text(line + "\n")
    with pytest.raises(ValueError, match=message):
        captioners([str(file)])


def test_captioners_are_named_after_their_folder_or_as_told(config: EvaluateConfig) -> None:
    found = captioners(list(config.captions))
    assert [(one.label, len(one.files), one.run is None) for one in found] == [
        ("vague", 1, True),
        ("exact", 1, False),
    ]
    folder = found[1].run
    assert folder is not None
    (folder / "metrics.jsonl").write_text("{}\n")  # of the run, not captions
    (folder / "walk.jsonl").rename(folder / "captions.jsonl")
    assert [one.label for one in captioners([f"{folder}/captions.jsonl"])] == ["exact"]
    with pytest.raises(ValueError, match="expected files of `python -m trainer caption` in"):
        captioners([str(folder)])


def test_series_that_were_trained_on_are_refused_unless_allowed(
    config: EvaluateConfig, tmp_path: Path, channel: Channel
) -> None:
    corpus = build([channel], lengths=[24], k=2, split=(1, 0, 0))
    corpus.save(tmp_path / "corpus")
    told = replace(config, trained_on=(f"exact={tmp_path}/corpus",))
    with pytest.raises(ValueError, match="walk: expected series that exact was not trained on"):
        command.evaluate(told)
    results = command.evaluate(replace(told, allow=True))
    shared = results.benchmarks["walk"]["contamination"]
    assert shared["exact"]["shared"] == shared["exact"]["source_interval"] > 30
    assert "not checked" in shared["vague"]
    with pytest.raises(ValueError, match="trained_on: expected labels of captioners, got 'else'"):
        command.evaluate(replace(config, trained_on=("else=x",)))


def test_the_run_of_a_captioner_tells_its_corpus(tmp_path: Path, config: EvaluateConfig) -> None:
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "corpus.json").write_text("{}")
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    recorded = {"config": {"corpus": str(tmp_path / "corpus")}}
    (run / "config.json").write_text(json.dumps(recorded))
    _, exact = captioners(list(config.captions))
    assert trained_on(exact) is None
    exact.files[0].settings["checkpoint"] = str(run / "checkpoints" / "step-000010")
    assert trained_on(exact) == tmp_path / "corpus"
    exact.files[0].settings["checkpoint"] = ""
    exact.run = run
    assert trained_on(exact) == tmp_path / "corpus"


def test_later_runs_compare_against_earlier_ones(config: EvaluateConfig, tmp_path: Path) -> None:
    first = command.evaluate(replace(config, captions=config.captions[:1]))
    assert first.comparisons == []
    later = replace(
        config, captions=config.captions[1:], earlier=(tmp_path / "out",), out=tmp_path / "later",
        against="vague",
    )  # fmt: skip
    both = command.evaluate(later)
    assert both.comparisons == command.evaluate(config).comparisons
    with pytest.raises(ValueError, match="against: expected one of exact, vague, got 'x'"):
        command.evaluate(replace(later, against="x"))
    other = tmp_path / "later" / "results.json"
    document = json.loads(other.read_text())
    document["benchmarks"]["walk"]["fingerprint"] = "0"
    other.write_text(json.dumps(document))
    with pytest.raises(ValueError, match="earlier: expected results on the same walk"):
        command.evaluate(replace(later, earlier=(tmp_path / "later",)))


def test_a_killed_evaluation_goes_on_where_it_was(
    config: EvaluateConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[str] = []

    def slow(texts: dict[str, str], *_: object) -> list[Table]:
        asked.append(next(iter(texts.values())))
        if len(asked) == 2:
            raise KeyboardInterrupt
        return [Table("slow", {id_: float(len(text)) for id_, text in texts.items()})]

    monkeypatch.setitem(command.METRICS, "slow", slow)  # type: ignore[arg-type]
    config = replace(config, metrics=("claims", "slow"))
    with pytest.raises(KeyboardInterrupt):
        command.evaluate(config)
    resumed = command.evaluate(replace(config, resume=True))
    assert asked[0].startswith(("Starts at 40", "Moves"))  # of "vague", and not asked again
    assert [text.startswith(("Starts at 40", "Moves")) for text in asked] == [True, False, False]
    assert resumed == command.evaluate(config)
    assert len(asked) == 5  # without --resume everything is measured anew
    with pytest.raises(ValueError, match=r"resume: expected the settings .* other \['tau'\]"):
        command.evaluate(replace(config, resume=True, tau=0.7))
    file = tmp_path / "exact" / "walk.jsonl"
    file.write_text(file.read_text().replace("Starts", "Begins"))
    command.evaluate(replace(config, resume=True))
    assert len(asked) == 6  # other captions are measured anew


def test_what_does_not_apply_is_said_and_what_skips_series_is_refused(
    config: EvaluateConfig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def inapplicable(*_: object) -> list[Table]:
        raise UnmeasuredError("there are no references")

    def lossy(texts: dict[str, str], *_: object) -> list[Table]:
        values = {id_: float(len(text)) for id_, text in list(texts.items())}
        return [Table("forecast", values, controls={"naive": 9.0}, meta={"better": "lower"})]

    monkeypatch.setitem(command.METRICS, "identify", inapplicable)  # type: ignore[arg-type]
    monkeypatch.setitem(command.METRICS, "forecast", lossy)  # type: ignore[arg-type]
    config = replace(config, metrics=(*config.metrics, "identify", "forecast"))
    assert command.run(config) == 0
    shown = capsys.readouterr().out
    assert "walk, exact: no identify: there are no references" in shown
    assert "walk, exact: no entailment: the benchmark has no references" in shown
    document = json.loads((config.out / "results.json").read_text())  # type: ignore[operator]
    tables = {table.title: table for table in evaluation_tables(document)}
    assert list(tables) == [
        "Descriptions and identification", "Decoding from the caption alone", "Captions",
    ]  # fmt: skip
    decoding = tables["Decoding from the caption alone"]
    assert decoding.columns == [("walk", "forecast ↓")]
    assert [(name, cells[0].best) for name, cells in decoding.rows] == [
        ("vague", True), ("exact", False),
    ]  # fmt: skip
    assert [(name, cells[0].value) for name, cells in decoding.controls] == [("naive", 9.0)]
    cells = tables["Descriptions and identification"].rows[0][1]
    assert [(cell.value, cell.note) for cell in cells] == [
        (None, "the benchmark has no references"), (None, "there are no references"),
    ]  # fmt: skip
    claims = tables["Captions"]
    assert claims.columns == [("walk", "claims"), ("walk", "characters")]
    assert [cells[1].best for _, cells in claims.rows] == [False, False]
    assert [name for name, _ in claims.controls] == ["vague: another series",
                                                     "exact: another series"]  # fmt: skip
    assert any("marks: against vague" in note for note in evaluation_notes(document))

    def skips(texts: dict[str, str], *_: object) -> list[Table]:
        return [Table("forecast", dict.fromkeys(list(texts)[1:], 0.0))]

    monkeypatch.setitem(command.METRICS, "forecast", skips)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="forecast: expected a value or a reason for all 40"):
        command.evaluate(config)


def test_entailment_is_asked_of_an_nli_model(config: EvaluateConfig, tmp_path: Path) -> None:
    classifier("Bert").save_pretrained(tmp_path / "nli")
    tokenizer(types=True).save_pretrained(tmp_path / "nli")
    rng = np.random.default_rng(4)
    told = [("It rises.", "It goes up."), ("It falls.",), (), ("It peaks.",), ("It dips.",)]
    items = [Item(rng.normal(size=9), f"s/{i}", 0, t) for i, t in enumerate(told)]
    made = make_benchmark("told", Gathered(items))
    made.save(tmp_path / "told")
    _write(tmp_path / "exact", made, _exact, "told")
    asked = replace(
        config, captions=config.captions[1:], benchmarks=(str(tmp_path / "told"),),
        nli=str(tmp_path / "nli"), metrics=("entailment",),
    )  # fmt: skip
    table = command.evaluate(asked).tables["exact", "told", "entailment"]
    assert (len(table.values), list(table.missing)) == (4, [items[2].id])
    document = json.loads((config.out / "results.json").read_text())  # type: ignore[operator]
    shown = {t.title: [metric for _, metric in t.columns] for t in evaluation_tables(document)}
    assert shown == {
        "Descriptions and identification": ["entailment"],
        "Details": ["entailment_reverse", "entailment_both", "entailment_q"],
    }
    assert table.meta["model"] == str(tmp_path / "nli")
    texts = {i: _exact(made.series(i)) for i in made.ids}
    model = NliModel.load(tmp_path / "nli")
    assert table.values == entailment(texts, made, model)[0].values


def test_settings_that_do_not_fit_are_refused(config: EvaluateConfig, tmp_path: Path) -> None:
    assert EvaluateConfig(("c",), ("a,b", "d")).benchmarks == ("a", "b", "d")
    with pytest.raises(ValueError, match="benchmarks: expected at least one"):
        EvaluateConfig(("c",))
    with pytest.raises(ValueError, match="tau: expected between 0 and 1, got 1"):
        replace(config, tau=1.0)
    with pytest.raises(ValueError, match="decimals: expected 0 to 12, got 13"):
        replace(config, decimals=13)
    assert metrics._recipe(config).name == "k4.caption_first.label_logprobs.dauto.v1"
    assert metrics._recipe(replace(config, decimals=0)).decimals == 0
    with pytest.raises(ValueError, match=r"metrics: expected among .*claims.* got 'x'"):
        command.evaluate(replace(config, metrics=("x",)))
    with pytest.raises(ValueError, match=r"out: expected a folder for results\.json"):
        command.evaluate(replace(config, out=None))
    alone = replace(config, out=None, captions=config.captions[1:])
    command.evaluate(alone)
    assert (tmp_path / "exact" / "results.json").is_file()
    twice = replace(config, benchmarks=config.benchmarks * 2)
    with pytest.raises(ValueError, match="benchmarks: expected distinct names"):
        command.evaluate(twice)


def test_help_needs_no_torch() -> None:
    code = (
        "import sys\nfrom trainer.__main__ import main\n"
        "for command in ('benchmark', 'rewrite', 'evaluate'):\n"
        "    try:\n        main([command, '--help'])\n"
        "    except SystemExit as stop:\n        assert not stop.code\n"
        "assert not {'torch', 'transformers', 'pyarrow'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for name in ("benchmark", "rewrite", "evaluate"):
        assert f"usage: python -m trainer {name}" in done.stdout


def test_marks_are_the_usual_ones() -> None:
    assert [mark(p) for p in (None, 0.2, 0.04, 0.009, 0.0009)] == ["", "", "*", "**", "***"]


def _level(at: float, spread: float, metric: str) -> Table:
    rng = np.random.default_rng(round(100 * at))
    return Table(metric, {str(i): at + spread * rng.normal() for i in range(30)})


def test_p_values_are_corrected_within_a_table_of_the_paper() -> None:
    results = Results()
    for captioner, at in (("base", 0.2), ("sft", 0.25), ("rl", 0.6)):
        for metric in ("entailment", "identify_series", "forecast"):
            results.tables[captioner, "b", metric] = _level(at, 0.1, metric)
    rows = comparisons(results, "base")
    found = {(row["captioner"], row["metric"]): row for row in rows}
    assert len(found) == len(rows) == 6
    expected = holm([found[c, m]["p"] for m in ("entailment", "identify_series")
                     for c in ("sft", "rl")])  # fmt: skip
    assert [found[c, m]["p_holm"] for m in ("entailment", "identify_series")
            for c in ("sft", "rl")] == pytest.approx(expected)  # fmt: skip
    alone = [found[c, "forecast"] for c in ("sft", "rl")]
    assert [row["p_holm"] for row in alone] == pytest.approx(holm([row["p"] for row in alone]))
    assert found["rl", "forecast"]["p_holm"] < 0.001
    assert found["rl", "forecast"]["difference"] == pytest.approx(0.4, abs=0.06)
