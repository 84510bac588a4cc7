"""References without names and numbers: refusals, retries, resuming, use in a benchmark."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.test_caption import random_llama
from trainer.evaluate.benchmark import Benchmark
from trainer.evaluate.benchmark_build import Gathered, Item, make_benchmark
from trainer.evaluate.benchmark_command import BenchmarkConfig, make
from trainer.evaluate.rewrite import (
    RewriteConfig,
    flaw,
    read_rewritten,
    replaced,
    rewrite,
    run,
)
from trainer.writers import Written


@pytest.mark.parametrize(
    ("text", "finished", "why"),
    [
        ("It rises to a peak near the end.", True, None),
        ("It rises to 5.", True, "it contains '5'"),
        ("It rises by ten percent.", True, "it contains 'percent'"),
        ("It rises by ten per cent.", True, "it contains 'per cent'"),
        (" ", True, "it was empty"),
        ("It rises", False, "it was too long"),
    ],
)
def test_answers_with_numbers_are_refused(text: str, finished: bool, why: str | None) -> None:
    assert flaw(text, finished) == why


def test_numbers_may_stay_in_the_first_stage() -> None:
    assert flaw("It rises to 5.", True, numbers_allowed=True) is None


class Model:
    """Answers like a language model: `replies` by a word of the instruction, in order."""

    def __init__(self, replies: dict[str, list[str]]) -> None:
        self.replies = {word: list(texts) for word, texts in replies.items()}
        self.prompts: list[str] = []

    def __call__(self, texts: Sequence[str]) -> list[Written]:
        self.prompts += texts
        answers = []
        for text in texts:
            word = "neutral" if "Keep every other statement" in text else "numberless"
            answers.append(Written(self.replies[word].pop(0), True))
        return answers


def _benchmark(folder: Path) -> Benchmark:
    rng = np.random.default_rng(0)
    told = [("Sales rose by 5 in May.", "Sales: 9 {peak}."), (), (), (), ()]
    items = [Item(rng.normal(size=9), f"s/{i}", 0, told[i]) for i in range(5)]
    made = make_benchmark("b", Gathered(items))
    made.save(folder)
    return made


def _config(folder: Path) -> RewriteConfig:
    return RewriteConfig("some/model", folder / "b", folder / "out.jsonl", at_once=1)


def test_two_stages_with_a_retry_and_a_refusal_that_is_counted(tmp_path: Path) -> None:
    made, config = _benchmark(tmp_path / "b"), _config(tmp_path)
    model = Model(
        {
            "neutral": ["It rose by 5.", "It peaked at 9."],
            "numberless": ["It rose by 5.", "It rose a little.", "nine 9", "9", "to 9"],
        }
    )
    written, refused = rewrite(config, made, lambda _: model)
    id_ = made.ids[[i in made.references for i in made.ids].index(True)]
    assert (written, refused) == (1, [f"{id_}: it contains '9'"])
    (row,) = [json.loads(line) for line in config.out.read_text().splitlines()]
    assert row == {
        "id": id_,
        "reference": "Sales rose by 5 in May.",
        "rewritten": "It rose a little.",
        "neutral": "It rose by 5.",
        "tries": 3,
    }
    retry = model.prompts[2]
    assert retry.endswith("refused because it contains '5':\nIt rose by 5.")
    # A second call asks only for what was refused, and then there is nothing left to ask.
    second = Model({"neutral": ["It peaked."], "numberless": ["It peaked."]})
    assert rewrite(config, made, lambda _: second) == (1, [])
    assert rewrite(config, made, lambda _: pytest.fail("nothing to load for")) == (0, [])
    texts = read_rewritten(config.out)
    assert replaced(made.references[id_], texts, id_) == ("It rose a little.", "It peaked.")
    with pytest.raises(ValueError, match="expected all references of x"):
        replaced(("another",), texts, "x")


def test_a_file_goes_on_where_it_was_cut_and_never_mixes_settings(tmp_path: Path) -> None:
    made, config = _benchmark(tmp_path / "b"), replace(_config(tmp_path), stages="numberless")
    first = Model({"numberless": ["It rose.", "It peaked."]})
    assert rewrite(config, made, lambda _: first)[0] == 2
    lines = config.out.read_text().splitlines(keepends=True)
    config.out.write_text(lines[0] + lines[1][:20])
    again = Model({"numberless": ["It peaked, again."]})
    assert rewrite(config, made, lambda _: again)[0] == 1
    assert sorted(read_rewritten(config.out).values()) == ["It peaked, again.", "It rose."]
    with pytest.raises(ValueError, match=r"one of the same settings, got .* with other tries"):
        rewrite(replace(config, tries=5), made, lambda _: again)


def test_a_benchmark_takes_rewritten_references(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    rng = np.random.default_rng(0)
    rows = [{"series": rng.normal(size=8).tolist(), "references": [f"{i} up"]} for i in range(5)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = BenchmarkConfig("jsonl", str(file), tmp_path / "b")
    make(config)
    made = Benchmark.load(tmp_path / "b")
    anew = tmp_path / "anew.jsonl"
    lines = [
        {"id": i, "reference": made.references[i][0], "rewritten": "It rises."} for i in made.ids
    ]
    anew.write_text("".join(json.dumps(line) + "\n" for line in lines))
    make(replace(config, out=tmp_path / "c", rewritten=anew))
    found = Benchmark.load(tmp_path / "c")
    assert found.ids == made.ids
    assert set(found.references.values()) == {("It rises.",)}
    anew.write_text("".join(json.dumps(line) + "\n" for line in lines[1:]))
    with pytest.raises(ValueError, match="rewritten: expected all references of"):
        make(replace(config, out=tmp_path / "d", rewritten=anew))


def test_a_language_model_is_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _benchmark(tmp_path / "b")
    random_llama(tmp_path / "llm", 2000)
    config = replace(
        _config(tmp_path), checkpoint=str(tmp_path / "llm"), max_new_tokens=8, tries=2,
        compute_dtype="float32", at_once=2, stages="numberless",
    )  # fmt: skip
    status = run(config)
    said = capsys.readouterr().out
    written = len(config.out.read_text().splitlines())
    assert f"{written} references written to {config.out}, {2 - written} refused" in said
    assert status == (0 if written == 2 else 1)
    assert run(replace(config, benchmark=tmp_path)) == 2
