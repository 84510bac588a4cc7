"""The audit on the report page."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from lineup_fast.audit import audit
from lineup_fast.corpus import build as build_corpus
from lineup_fast.prompts import Recipe
from lineup_fast.readers import Channel
from lineup_fast.verifiers.scripted import ScriptedVerifier
from tests.test_audit import likes_the_first
from trainer.report.audit import audit_tables
from trainer.report.page import build
from trainer.report.run import read_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    rows = [{"step": step, "lineup/acc": 0.4, "reward": 0.8} for step in (1, 2)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def test_the_page_shows_what_the_audit_wrote(run: Path) -> None:
    assert 'id="audit"' not in build(read_run(run), None)
    rng = np.random.default_rng(1)
    channels = [Channel(f"<s{n}>", np.cumsum(rng.normal(size=200)).round(3)) for n in range(8)]
    corpus = build_corpus(channels, lengths=[12], split=(0.4, 0.5, 0.1))
    found = audit(corpus, ScriptedVerifier(likes_the_first), Recipe(), items=8)
    found.write(run / "audit.json")
    page = build(read_run(run), None)
    assert f"Audit of the reward: {', '.join(found.verdicts)}" in page
    assert page.count('<th scope="row" class="text">biased</th>') >= 1
    tables = audit_tables(read_run(run))
    assert tables is not None
    assert [row.value for row in tables.captions] == [row.accuracy for row in found.captions]
    assert [row.value for row in tables.hacks] == [row.change for row in found.hacks]
    assert len(tables.questions) == len(found.questions) + len(found.sweep)
    for finding in found.findings:
        assert finding.check.replace("'", "&#39;") in page


def test_a_damaged_audit_is_said(run: Path) -> None:
    (run / "audit.json").write_text('{"verdicts": ["safe"], "items": 3}')
    page = build(read_run(run), None)
    assert "audit.json cannot be shown (KeyError(&#39;sources&#39;))" in page
    assert 'id="audit"' not in page
    (run / "audit.json").write_text('{"verdicts": ')
    assert "audit.json cannot be read" in build(read_run(run), None)
