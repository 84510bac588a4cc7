"""Reader x K: cells against readers that know a share of the items."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lineup_fast.candidates import CandidateSet
from lineup_fast.corpus import Corpus, build
from lineup_fast.readers import Channel
from lineup_fast.rewards import IdentificationReward
from lineup_fast.verifiers.scripted import ScriptedVerifier
from tests.toy_models import model
from tests.toy_tokenizers import tokenizer
from trainer.__main__ import main
from trainer.baselines import reader_grid


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus and a random verifier."""
    folder = tmp_path_factory.mktemp("readers")
    rng = np.random.default_rng(0)
    channels = [
        Channel(source=f"s{n}", values=np.clip(50 + rng.integers(-9, 10, 110).cumsum(), 0, 99.0))
        for n in range(8)
    ]
    build(channels, lengths=[12], seed=0, k=6, split=(0.5, 0.25, 0.25)).save(folder / "corpus")
    words = tokenizer("qwen2")
    model("qwen2", len(words)).save_pretrained(folder / "verifier")
    words.save_pretrained(folder / "verifier")
    return folder


def knowing(share: float) -> Callable[[], ScriptedVerifier]:
    """A reader that finds the target of a caption that names it, for a share of the items."""

    def script(caption: str, candidates: CandidateSet, position: int) -> list[float]:
        k = len(candidates.series)
        knows = caption == candidates.target and int(caption, 16) % 100 < 100 * share
        return [float(at == (position if knows else 0)) for at in range(k)]

    return lambda: ScriptedVerifier(script)


def prepared(corpus: Corpus, folder: Path, **changes: Any) -> reader_grid.Reading:
    path = folder / "captions.jsonl"
    lines = [json.dumps({"id": i, "caption": i, "finished": True}) for i in corpus.ids("test")]
    path.write_text("\n".join(lines))
    words: dict[str, Any] = {
        "files": {"named": path},
        "readers": {"all": knowing(1.0), "half": knowing(0.5)},
        "ks": [6, 4],
    }
    return reader_grid.prepare(corpus, **(words | changes))


def test_cells_are_corrected_for_chance(place: Path, tmp_path: Path) -> None:
    corpus = Corpus.load(place / "corpus")
    reading = prepared(corpus, tmp_path)
    found = {
        (c["captions"], c["reader"], c["k"]): c for c in reader_grid.cells(reading, tmp_path / "r")
    }
    assert len(found) == 8
    items = corpus.ids("test")
    half = np.mean([int(item, 16) % 100 < 50 for item in items])
    for k in (4, 6):
        assert found["named", "all", k]["corrected"] == 1.0
        assert found["empty", "all", k]["accuracy"] == pytest.approx(1 / k)
        assert found["empty", "all", k]["corrected"] == pytest.approx(0.0, abs=1e-6)
        cell = found["named", "half", k]
        assert cell["corrected"] == pytest.approx(half)
        assert cell["low"] <= half <= cell["high"]
        assert cell["change"] == pytest.approx(0.0, abs=1e-6)
        assert cell["n"] == len(items)
        assert cell["sources"] == len({corpus.meta(item).source for item in items}) > 1
        assert cell["frac_perfect"] == pytest.approx(half)


def test_the_change_is_from_the_smallest_k(place: Path, tmp_path: Path) -> None:
    def script(caption: str, candidates: CandidateSet, position: int) -> list[float]:
        knows = caption == candidates.target and len(candidates.series) < 6
        return [float(at == (position if knows else 0)) for at in range(len(candidates.series))]

    corpus = Corpus.load(place / "corpus")
    reading = prepared(corpus, tmp_path, readers={"r": lambda: ScriptedVerifier(script)})
    found = {c["k"]: c for c in reader_grid.cells(reading, tmp_path) if c["captions"] == "named"}
    assert [found[k]["corrected"] for k in (4, 6)] == pytest.approx([1.0, 0.0], abs=1e-6)
    assert [found[k]["change"] for k in (4, 6)] == pytest.approx([0.0, -1.0], abs=1e-6)
    assert found[6]["change_low"] == found[6]["change_high"] == pytest.approx(-1.0, abs=1e-6)


def test_sets_that_are_not_nested_are_refused(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = IdentificationReward.candidates

    def turned(self: IdentificationReward, item: str) -> CandidateSet:
        found = real(self, item)
        others = found.distractors[::-1] if self.recipe.k == 6 else found.distractors
        return replace(found, distractors=others)

    monkeypatch.setattr(IdentificationReward, "candidates", turned)
    reading = prepared(Corpus.load(place / "corpus"), tmp_path)
    with pytest.raises(ValueError, match="expected the sets of K to be nested"):
        list(reader_grid.cells(reading, tmp_path / "r"))


def test_cells_on_disk_are_not_asked_again(place: Path, tmp_path: Path) -> None:
    corpus = Corpus.load(place / "corpus")
    first = list(reader_grid.cells(prepared(corpus, tmp_path), tmp_path / "r"))

    def never() -> ScriptedVerifier:
        raise AssertionError("loaded again")

    readers = {"all": never, "half": never}
    again = list(reader_grid.cells(prepared(corpus, tmp_path, readers=readers), tmp_path / "r"))
    assert json.dumps(again) == json.dumps(first)
    reading = prepared(corpus, tmp_path, readers=readers, n=2)  # other items: asked again
    with pytest.raises(AssertionError, match="loaded again"):
        list(reader_grid.cells(reading, tmp_path / "r"))


def test_cells_of_another_reader_of_that_name_are_asked_again(place: Path, tmp_path: Path) -> None:
    corpus = Corpus.load(place / "corpus")
    words: dict[str, Any] = {"ks": [4], "readers": {"r": knowing(1.0)}}
    first = prepared(corpus, tmp_path, **words, paths={"r": "a"})
    assert [cell["corrected"] for cell in reader_grid.cells(first, tmp_path / "r")][1] == 1.0
    words["readers"] = {"r": knowing(0.0)}
    same = prepared(corpus, tmp_path, **words, paths={"r": "a"})
    assert [cell["corrected"] for cell in reader_grid.cells(same, tmp_path / "r")][1] == 1.0
    other = prepared(corpus, tmp_path, **words, paths={"r": "b"})
    assert [cell["corrected"] for cell in reader_grid.cells(other, tmp_path / "r")][1] < 0.5


def test_a_reader_beyond_its_k_is_named(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = f"""
out = "{tmp_path / "out"}"
[reading]
corpus = "{place / "corpus"}"
k = [3, 4]
n = 2
[reading.readers]
any = "{place / "verifier"}"
four = {{path = "{place / "verifier"}", k = [4]}}
"""
    path = tmp_path / "grid.toml"
    path.write_text(plan)
    assert main(["grid", str(path)]) == 0
    cells = json.loads((tmp_path / "out" / "grid.json").read_text())["reading"]
    notes = {(cell["reader"], cell["k"]): cell["note"] for cell in cells}
    assert notes == {
        ("any", 3): None, ("any", 4): None,
        ("four", 3): "reader made for K 4 only", ("four", 4): None,
    }  # fmt: skip
    lines = [line for line in capsys.readouterr().out.splitlines() if "made for" in line]
    assert [line.split()[1:3] for line in lines] == [["four", "3"]]
    path.write_text(plan.replace("path =", "at ="))
    assert main(["grid", str(path)]) == 2
    assert "readers.four: expected a path or" in capsys.readouterr().err


def test_failures_are_counted_and_not_zero(place: Path, tmp_path: Path) -> None:
    corpus = Corpus.load(place / "corpus")
    bad = corpus.ids("test")[0]

    def script(caption: str, candidates: CandidateSet, position: int) -> list[float]:
        if caption == bad:
            raise RuntimeError("no memory")
        return [float(at == position) for at in range(len(candidates.series))]

    reading = prepared(corpus, tmp_path, readers={"r": lambda: ScriptedVerifier(script)}, ks=[4])
    cell = next(c for c in reader_grid.cells(reading, tmp_path) if c["captions"] == "named")
    assert (cell["invalid"], cell["accuracy"]) == (1, 1.0)
    assert cell["reasons"] == ["RuntimeError: no memory"]


def test_items_are_those_that_every_cell_can_have(place: Path, tmp_path: Path) -> None:
    corpus = Corpus.load(place / "corpus")
    reading = prepared(corpus, tmp_path)
    assert reading.left_out == 0
    some = tmp_path / "some.jsonl"
    ids = corpus.ids("test")[:3]
    some.write_text("\n".join(json.dumps({"id": item, "caption": "x"}) for item in ids))
    both = {"named": tmp_path / "captions.jsonl", "some": some}
    reading = prepared(corpus, tmp_path, files=both)
    assert reading.items == sorted(ids)
    assert reading.left_out == len(corpus.ids("test")) - 3
    some.write_text(json.dumps({"id": "nobody", "caption": "x"}))
    with pytest.raises(ValueError, match="ids of the corpus"):
        prepared(corpus, tmp_path, files=both)
    with pytest.raises(ValueError, match="k: expected 2 to 12"):
        prepared(corpus, tmp_path, ks=[4, 13])
