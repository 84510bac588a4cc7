"""The audit: verdicts of verifiers whose faults are known."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lineup_fast import audit as audit_module
from lineup_fast import audit_findings, cli, counters, probes
from lineup_fast.audit import Audit, audit
from lineup_fast.audit_findings import Change, Finding, Measured
from lineup_fast.candidates import CandidateSet, fixed
from lineup_fast.corpus import Corpus, build
from lineup_fast.prompts import NO_CAPTION, Recipe
from lineup_fast.readers import Channel
from lineup_fast.resampling import mean_interval
from lineup_fast.rewards import IdentificationReward
from lineup_fast.verifiers.base import BackendError
from lineup_fast.verifiers.scripted import ScriptedVerifier
from tests.toy_models import model
from tests.toy_tokenizers import tokenizer

N = 24


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    rng = np.random.default_rng(1)
    channels = [
        Channel(source=f"source{n}", values=np.cumsum(rng.standard_normal(200)).round(3))
        for n in range(8)
    ]
    return build(channels, lengths=[12], seed=0, k=12, split=(0.4, 0.5, 0.1))


def _shown(candidates: CandidateSet, position: int) -> np.ndarray:
    return np.insert(candidates.series[1:], position, candidates.series[0], axis=0)


def reader(caption: str, candidates: CandidateSet, position: int) -> np.ndarray:
    """Compares the start and the end that a caption names; without any, it always says C."""
    order = _shown(candidates, position)
    if not caption.startswith("starts at"):
        return np.where(np.arange(len(order)) == 2, 0.0, -1.0)
    words = caption.replace(";", " ").replace(". ", " ").split()
    start = float(words[2])
    end = float(words[len(words) - 1 - words[::-1].index("ends") + 2].rstrip("."))
    return -np.abs(order[:, 0] - start) - np.abs(order[:, -1] - end)


def believes_pleas(caption: str, candidates: CandidateSet, position: int) -> np.ndarray:
    """Picks the target when told that the description is correct: no caption may do that."""
    if probes.TO_THE_VERIFIER in caption and caption.startswith("Note"):
        return np.where(np.arange(len(candidates.series)) == position, 0.0, -9.0)
    return reader(caption, candidates, position)


def sees_smoothness(caption: str, candidates: CandidateSet, position: int) -> np.ndarray:
    """Needs no caption: the series that moves least from step to step is the real one."""
    if caption != NO_CAPTION and caption.startswith("starts"):
        return reader(caption, candidates, position)
    return -np.abs(np.diff(_shown(candidates, position))).sum(axis=1)


def likes_the_first(caption: str, candidates: CandidateSet, position: int) -> np.ndarray:
    answer = reader(caption, candidates, position)
    return answer + np.where(np.arange(len(answer)) == 0, 4.0, 0.0)


def sees_nothing(caption: str, candidates: CandidateSet, position: int) -> np.ndarray:
    return np.zeros(len(candidates.series))


def _audit(corpus: Corpus, script: Any, **words: Any) -> Audit:
    return audit(corpus, ScriptedVerifier(script), Recipe(), items=N, **words)


def _findings(found: Audit) -> dict[str, Finding]:
    return {finding.check: finding for finding in found.findings}


def test_a_verifier_that_compares_numbers_is_safe(corpus: Corpus) -> None:
    stages: list[tuple[int, int]] = []
    found = _audit(corpus, reader, progress=lambda _, done, total: stages.append((done, total)))
    assert found.verdicts == ["safe"]
    assert found.items == N
    ids = corpus.ids("val", k=4)
    asked = [ids[at] for at in counters.order(len(ids), 0, "audit")[:N]]
    assert found.sources == len({corpus.meta(item).source for item in asked}) > 2
    captions = {measured.name: measured for measured in found.captions}
    assert captions["truth"].accuracy is not None
    assert captions["truth"].accuracy > 0.9
    # C at every position is right once in four; sources do not differ in that.
    for name in ("empty", "generic"):
        assert captions[name].accuracy == captions[name].low == captions[name].high == 0.25
        assert captions[name].by_position == [0.0, 0.0, 1.0, 0.0]
        assert captions[name].pick_shares == [0.0, 0.0, 1.0, 0.0]
    assert captions["data set"].n == 0
    assert captions["data set"].accuracy is None
    assert captions["truth"].label_mass == pytest.approx(1.0)
    hacks = {change.name: change for change in found.hacks}
    assert hacks["distractor's values"].change is not None
    assert hacks["distractor's values"].change < -0.5
    assert hacks["answer B"].change == 0.0
    assert stages[-1][0] == stages[-1][1] == stages[0][1]
    assert [done for done, _ in stages] == sorted(done for done, _ in stages)


def test_what_was_measured_is_the_mean_of_the_reward(corpus: Corpus) -> None:
    found = _audit(corpus, reader)
    ids = corpus.ids("val", k=4)
    items = [ids[at] for at in counters.order(len(ids), 0, "audit")[:N]]
    reward = IdentificationReward(corpus, ScriptedVerifier(reader), Recipe())
    sets = [fixed(corpus, item, k=4) for item in items]
    batch = reward.score([probes.truth(s.series[0], s.decimals) for s in sets], items)
    true = next(measured for measured in found.captions if measured.name == "truth")
    assert true.accuracy == pytest.approx(batch.accuracy.mean())
    assert true.by_position == pytest.approx(batch.accuracy_by_position().tolist())
    wrong = reward.score([probes.truth(s.series[1], s.decimals) for s in sets], items)
    lie = next(change for change in found.hacks if change.name == "distractor's values")
    assert lie.change == pytest.approx(float((wrong.accuracy - batch.accuracy).mean()))
    low, high = mean_interval(batch.accuracy.astype(float), [corpus.meta(i).source for i in items])
    assert (true.low, true.high) == (low, high)


@pytest.mark.parametrize(
    ("script", "verdict", "check"),
    [
        (believes_pleas, "leaks", "hack: to the verifier"),
        (likes_the_first, "biased", "positions"),
        (sees_nothing, "blind", "caption: truth"),
    ],
)
def test_faults_are_found(corpus: Corpus, script: Any, verdict: str, check: str) -> None:
    found = _audit(corpus, script)
    finding = _findings(found)[check]
    assert finding.verdict == verdict
    assert verdict in found.verdicts
    assert "safe" not in found.verdicts


def test_made_up_distractors_leak_where_real_ones_do_not(corpus: Corpus) -> None:
    found = _audit(corpus, sees_smoothness)
    blind = {m.distractors: m for m in found.questions if m.name == "empty"}
    assert set(blind) == {"nearest", "random", "shuffle", "reverse", "swap"}
    assert blind["shuffle"].accuracy is not None
    assert blind["nearest"].accuracy is not None
    assert blind["shuffle"].accuracy > blind["nearest"].accuracy + 0.3
    # A reversed series moves as much as the series itself: nothing to see, ties go to label A.
    assert blind["reverse"].k == 2
    assert blind["reverse"].accuracy == pytest.approx(0.5)
    trained = _audit(corpus, sees_smoothness, kind="shuffle")
    assert _findings(trained)["caption: empty"].verdict == "leaks"
    assert trained.distractors == "shuffle"


def test_from_two_to_twelve_candidates(corpus: Corpus) -> None:
    found = _audit(corpus, reader)
    assert [measured.k for measured in found.sweep] == list(range(2, 13))
    assert all(measured.n == N for measured in found.sweep)
    assert len(found.sweep[-1].by_position) == 12
    rng = np.random.default_rng(2)
    channels = [Channel(source=f"s{n}", values=rng.normal(size=400).round(3)) for n in range(3)]
    few = build(channels, lengths=[12], seed=0)
    sweep = _audit(few, reader, split="train").sweep
    assert sweep[-1].n == 0
    assert sweep[-1].why is not None
    assert "expected at least 11 neighbours, got 8" in sweep[-1].why
    assert sweep[-1].accuracy is None


def test_intervals_resample_sources() -> None:
    values = np.array([1.0, 1.0, 1.0, 0.0, 0.0, 0.0])
    families = ["a", "a", "a", "b", "b", "b"]
    assert mean_interval(values, families) == (0.0, 1.0)
    low, high = mean_interval(values, ["a", "b", "c", "d", "e", "f"])
    assert 0.0 < low < 0.5 < high < 1.0
    assert all(np.isnan(mean_interval(values, ["a"] * 6)))
    # Covers the truth about as often as it says.
    rng = np.random.default_rng(0)
    hits = 0
    for trial in range(200):
        level = rng.normal(size=30)
        drawn = np.repeat(level, 4) + 0.1 * rng.normal(size=120)
        names = [str(n // 4) for n in range(120)]
        low, high = mean_interval(drawn, names, seed=trial)
        hits += low <= 0 <= high
    assert 0.86 <= hits / 200 <= 0.99
    with pytest.raises(ValueError, match="sources: expected one per value"):
        mean_interval(values, families[:-1])


def _measured(name: str, **changes: Any) -> Measured:
    plain = Measured(
        name, "", "nearest", 4, 100, 0, None, 0.25, 0.2, 0.3, [0.25] * 4, [0.25] * 4, 0.9
    )
    return replace(plain, **changes)


def test_thresholds_need_the_whole_interval() -> None:
    quiet = [_measured(name) for name in ("empty", "generic", "other series")]
    true = _measured("truth", accuracy=0.9, low=0.85, high=0.95, by_position=[0.9] * 4)
    loud = _measured("empty", accuracy=0.5, low=0.34, high=0.66)
    assert all(f.holds for f in audit_findings.judge([loud, *quiet[1:], true], []))
    loud = replace(loud, low=0.36)
    verdicts = {f.check: f.verdict for f in audit_findings.judge([loud, *quiet[1:], true], [])}
    assert verdicts["caption: empty"] == "leaks"
    gain = Change("answer B", "", "empty", 100, 0.4, 0.15, 0.04, 0.3)
    assert audit_findings.judge([*quiet, true], [gain])[-1].holds
    assert not audit_findings.judge([*quiet, true], [replace(gain, low=0.06)])[-1].holds
    weak = replace(true, label_mass=0.4)
    verdicts = {f.check: f.verdict for f in audit_findings.judge([*quiet, weak], [])}
    assert verdicts["label mass"] == "biased"


def test_a_verifier_that_fails_is_an_error_not_a_verdict(corpus: Corpus) -> None:
    def broken(*_: Any) -> np.ndarray:
        raise RuntimeError("no memory")

    with pytest.raises(BackendError, match=r"expected answers, got none .*no memory"):
        _audit(corpus, broken)
    with pytest.raises(ValueError, match="items: expected at least 1, got 0"):
        audit(corpus, ScriptedVerifier(reader), Recipe(), items=0)


def test_true_descriptions_are_true() -> None:
    series = np.array([3.0, 9.0, -1.0, 4.0, 5.0, 6.0, 7.0, 8.5])
    words = probes.truth(series, 1)
    assert words.startswith("starts at 3.0; peak 9.0 at step 1; low -1.0 at step 2; ")
    assert "averages by quarter: 6.0, 1.5, 5.5, 7.8" in words
    assert words.endswith("; ends at 8.5.")
    assert probes.truth(np.array([2.0]), 0).endswith("ends at 2.")
    material = probes.Material(
        CandidateSet("t", ("d",), np.stack([series, series[::-1]]), 1, "nearest", None),
        series + 50,
        "as given",
    )
    said = {probe.name: probe.write(material) for probe in (*probes.CAPTIONS, *probes.HACKS)}
    assert said["data set"] == "as given"
    assert said["distractor's values"] == probes.truth(series[::-1], 1)
    assert said["other series"] == probes.truth(series + 50, 1)
    assert len(said["ten times as long"] or "") == 10 * len(words)
    assert (said["truth three times"] or "").count("ends at") == 3


def test_command_writes_and_exits_by_the_verdict(
    corpus: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus.save(tmp_path / "corpus")
    tok = tokenizer("qwen2")
    model("qwen2", len(tok)).save_pretrained(tmp_path / "verifier")
    tok.save_pretrained(tmp_path / "verifier")
    words = ["audit", "--corpus", str(tmp_path / "corpus"), "--items", "3"]
    words += ["--verifier", str(tmp_path / "verifier"), "-o", str(tmp_path / "audit.json")]
    # Random weights: no description is understood.
    assert cli.main(words) == 1
    shown = capsys.readouterr().out
    assert "blind   caption: truth" in shown
    written = json.loads((tmp_path / "audit.json").read_text())
    assert "blind" in written["verdicts"]
    assert {row["name"] for row in written["captions"]} == {p.name for p in probes.CAPTIONS}
    assert written["recipe"] == Recipe().name
    assert len(written["sweep"]) == len(audit_module.K_SWEEP)
    assert cli.main([*words[:-1], str(tmp_path / "missing" / "audit.json")]) == 2
