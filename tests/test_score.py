"""``lineup-fast score``: a file of captions in, rewards out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lineup_fast import cli, scoring
from lineup_fast.corpus import Corpus
from lineup_fast.prompts import Recipe
from lineup_fast.rewards import IdentificationReward
from lineup_fast.verifiers.scripted import ScriptedVerifier
from tests.test_rewards import by_first_value, made_corpus, truth
from tests.toy_models import model
from tests.toy_tokenizers import tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("score")
    made_corpus().save(made / "corpus")
    tok = tokenizer("qwen2")
    model("qwen2", len(tok)).save_pretrained(made / "verifier")
    tok.save_pretrained(made / "verifier")
    return made


def _write(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_scores_every_caption_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "BATCH", 3)
    corpus = made_corpus()
    items = corpus.ids()[:4]
    pairs = [(item, truth(corpus, item)) for item in items]
    pairs += [(item, "1e8") for item in items[:2]]
    reward = IdentificationReward(corpus, ScriptedVerifier(by_first_value), Recipe())
    stages: list[tuple[str, int, int]] = []
    scored = scoring.score_captions(reward, pairs, progress=lambda *x: stages.append(x))
    assert [row["id"] for row in scored.rows] == [item for item, _ in pairs]
    assert [row["caption"] for row in scored.rows] == [caption for _, caption in pairs]
    assert [row["accuracy"] for row in scored.rows][:4] == [1.0] * 4
    whole = reward.score([caption for _, caption in pairs], [item for item, _ in pairs])
    assert [row["reward"] for row in scored.rows] == whole.reward.tolist()
    np.testing.assert_allclose(scored.by_position, whole.accuracy_by_position())
    empty = reward.score([""] * 4, items).accuracy.mean()
    assert scored.floor == pytest.approx(float(empty))
    assert [done for _, done, _ in stages] == sorted(done for _, done, _ in stages)
    assert stages[-1] == ("done", 10, 10)
    row = scored.rows[0]
    assert len(row["distractors"]) == 3
    np.testing.assert_allclose(np.sum(row["probs"], axis=1), 1.0, atol=1e-4)
    assert row["recipe"] == Recipe().name
    assert row["corpus"] == corpus.fingerprint


def test_command_writes_rows_and_a_summary(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    items = Corpus.load(folder / "corpus").ids()[:3]
    file = _write(
        tmp_path / "captions.jsonl",
        [
            {"id": item, "caption": f"It starts at {n}."}
            for n, item in enumerate([*items, items[0]])
        ],
    )
    arguments = ["score", str(file), "--corpus", str(folder / "corpus")]
    arguments += ["--verifier", str(folder / "verifier"), "--layout", "candidates_first"]
    for extra in ([], ["--scoring", "generate"], ["--one-at-a-time", "--index", "2"]):
        out = tmp_path / "out.jsonl"
        assert cli.main([*arguments, *extra, "-o", str(out)]) == 0
        rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
        assert [row["id"] for row in rows] == [*items, items[0]]
        assert all(row["valid"] for row in rows)
        printed = capsys.readouterr().out
        for word in ("accuracy, empty caption", "accuracy by position", "tokens prefilled"):
            assert word in printed
        scored = "generate" if extra[:1] == ["--scoring"] else "label_logprobs"
        assert f"k4.candidates_first.{scored}.dauto.v1" in printed
        assert not list(tmp_path.glob(".*"))  # no half-written file is left


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"id": "nobody", "caption": "x"}', "expected ids of the corpus, got 1 unknown"),
        ('{"id": 5, "caption": "x"}', "captions.jsonl:1: expected strings id and caption"),
        ("[1]", "captions.jsonl:1: expected strings id and caption"),
        ("{", "captions.jsonl:1: expected a JSON object"),
        ("[" * 100_000, "captions.jsonl:1: expected a JSON object"),
        ("", "expected at least one caption, got none"),
    ],
)
def test_bad_files_end_with_a_reason(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, message: str
) -> None:
    file = tmp_path / "captions.jsonl"
    file.write_text(line + "\n", encoding="utf-8")
    status = cli.main(
        ["score", str(file), "--corpus", str(folder / "corpus"), "--verifier", "unused"]
    )
    assert status == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["-o", "nowhere/out.jsonl"], "output: expected a file in an existing folder"),
        (["--decimals", "many"], "expected auto or 0 to 12, got 'many'"),
        (["--device", "abacus"], "device: expected one that torch has, got 'abacus'"),
        (["--dtype", "int8"], "dtype: expected a torch dtype"),
        (["--threads", "0"], "threads: expected at least 1, got 0"),
        (["--verifier", "no/where/at/all"], "verifier: expected a folder or hub id"),
    ],
)
def test_bad_flags_are_one_line(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    (item,) = Corpus.load(folder / "corpus").ids()[:1]
    file = _write(tmp_path / "captions.jsonl", [{"id": item, "caption": "x"}])
    arguments = ["score", str(file), "--corpus", str(folder / "corpus")]
    try:
        status = cli.main([*arguments, "--verifier", str(folder / "verifier"), *flags])
    except SystemExit as error:
        status = error.code  # argparse
    assert status == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_no_answer_at_all_is_a_failure(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (item,) = Corpus.load(folder / "corpus").ids()[:1]
    file = _write(tmp_path / "captions.jsonl", [{"id": item, "caption": "word " * 50_000}])
    arguments = ["score", str(file), "--corpus", str(folder / "corpus")]
    status = cli.main([*arguments, "--verifier", str(folder / "verifier"), "--k", "2"])
    assert status == 1
    printed = capsys.readouterr().out
    assert "no answer: caption too long" in printed
    assert "1 (1 without an answer)" in printed
