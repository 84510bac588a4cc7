"""Grids of runs and of readers, on random models."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lineup_fast.candidates import CandidateSet, fixed
from lineup_fast.corpus import Corpus, build
from lineup_fast.readers import Channel
from lineup_fast.verifiers.scripted import ScriptedVerifier
from tests.random_vlm import byte_tokenizer, random_model
from tests.toy_models import model
from tests.toy_tokenizers import tokenizer
from trainer.__main__ import main
from trainer.baselines import grid, grid_command, reader_grid
from trainer.baselines.grid import flags, read_grid, status
from trainer.config import RlooConfig, parse


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with corpus, captioner, verifier and bank."""
    folder = tmp_path_factory.mktemp("grid")
    rng = np.random.default_rng(0)
    channels = [
        Channel(source=f"s{n}", values=np.clip(50 + rng.integers(-9, 10, 110).cumsum(), 0, 99.0))
        for n in range(8)
    ]
    build(channels, lengths=[12], seed=0, k=6, split=(0.5, 0.25, 0.25)).save(folder / "corpus")
    random_model().save_pretrained(folder / "captioner")
    byte_tokenizer().save_pretrained(folder / "captioner")
    words = tokenizer("qwen2")
    model("qwen2", len(words)).save_pretrained(folder / "verifier")
    words.save_pretrained(folder / "verifier")
    bank = ["questions", "--corpus", str(folder / "corpus"), "-o", str(folder / "bank.jsonl")]
    assert main([*bank, "--per-chart", "2", "--at-least", "1"]) == 0
    return folder


def written(place: Path, folder: Path, arms: str, more: str = "") -> Path:
    """A grid.toml with a few tiny steps."""
    path = folder / "grid.toml"
    path.write_text(f"""
out = "{folder / "out"}"
{more}
[common]
corpus = "{place / "corpus"}"
questions = "{place / "bank.jsonl"}"
model = "{place / "captioner"}"
verifier = "{place / "verifier"}"
caption_prompt = "Describe."
chart_style = "tiny"
layout = "candidates_first"
steps = 2
charts = 2
group_size = 2
captions_per_update = 4
max_new_tokens = 4
eval_every = 2
n_val = 2
n_test = 2
checkpoint_every = 2
compute_dtype = "float32"
verifier_dtype = "float32"
gradient_checkpointing = false
threads = 1
{arms}
""")
    return path


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Commands run here, where everything is imported; what was run."""
    seen: list[list[str]] = []

    def run(command: list[str], log: Path) -> int:
        assert command[1:3] == ["-m", "trainer"]
        seen.append(command[3:])
        return main(command[3:])

    monkeypatch.setattr(grid, "run_process", run)
    return seen


ARMS = """
[arms.k4]
[arms.k6-random]
k = 6
distractors = "random"
mask_numbers = true
[arms.questions]
reward = "answerability"
[arms.judge]
reward = "judge"
"""


def metrics(run: Path) -> str:
    return (run / "metrics.jsonl").read_text()


def reading_of(place: Path) -> str:
    """Every finished arm, read at two sizes."""
    return f"""
[reading]
corpus = "{place / "corpus"}"
arms = true
k = [4, 6]
n = 3
recipe = {{layout = "candidates_first"}}
[reading.readers]
random = "{place / "verifier"}"
"""


def test_arms_run_once_and_broken_ones_resume(
    place: Path, tmp_path: Path, in_process: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(place, tmp_path, ARMS + reading_of(place))
    assert main(["grid", str(path)]) == 1  # a random judge cannot tell true from false
    said = capsys.readouterr()
    assert "true descriptions above generic and false" in said.err
    assert [words[0] for words in in_process] == ["rloo"] * 4 + ["caption"] * 3
    found = json.loads((tmp_path / "out" / "grid.json").read_text())
    arms = found["arms"]
    assert [arms[name]["status"] for name in arms] == ["finished"] * 3 + ["failed (2)"]
    assert arms["k6-random"]["reward"].startswith("k6.candidates_first.label_logprobs")
    assert arms["k6-random"]["reward"].endswith(".random.masked")
    assert arms["questions"]["reward"] == "answerability.label_logprobs"
    best = arms["k4"]["best_acc"]
    assert arms["k4"]["corrected"] == pytest.approx((best - 0.25) / 0.75)
    cells = [(c["captions"], c["k"], c["n"]) for c in found["reading"]]
    names = ("empty", "k4", "k6-random", "questions")
    assert cells == [(name, k, 3) for name in names for k in (4, 6)]
    assert "k6-random  finished" in said.out

    # every arm shares its series and its learning rates
    rows = {
        name: [json.loads(line) for line in metrics(tmp_path / "out" / name).splitlines()]
        for name in names[1:]
    }
    assert len({tuple(row.get("lr") for row in of) for of in rows.values()}) == 1
    assert all(np.isfinite(row["reward"]) for of in rows.values() for row in of[1:])
    bank = json.loads((tmp_path / "out" / "k4" / "config.json").read_text())["bank_fingerprint"]
    assert len(bank) == 16
    assert main(["report", str(tmp_path / "out" / "questions")]) == 0

    # what is recorded of a question is what was asked
    corpus = Corpus.load(place / "corpus")
    lines = (tmp_path / "out" / "k6-random" / "validation" / "step-000002.jsonl").read_text()
    for line in map(json.loads, lines.splitlines()):
        asked = fixed(corpus, line["id"], k=6, kind="random", seed=42)
        assert line["distractors"] == list(asked.distractors)

    (tmp_path / "out" / "k4" / "final.json").unlink()  # as if it had been killed at the end
    before = metrics(tmp_path / "out" / "k4")
    in_process.clear()
    assert main(["grid", str(path), "--only", "k4", "questions"]) == 0
    assert [words[0] for words in in_process] == ["rloo", "caption", "caption", "caption"]
    assert in_process[0][-1] == "--resume"
    assert metrics(tmp_path / "out" / "k4") == before
    again = json.loads((tmp_path / "out" / "grid.json").read_text())
    assert again["reading"] == found["reading"]  # read from disk: seconds are the same, too
    assert main(["grid", str(path), "--table"]) == 0

    path.write_text(path.read_text().replace("max_new_tokens = 4", "max_new_tokens = 5"))
    assert main(["grid", str(path), "--table"]) == 2
    assert "max_new_tokens" in capsys.readouterr().err


def test_a_process_that_fails_is_told_of(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(place, tmp_path, "[arms.a]\ncorpus = 'nowhere'\n")
    assert main(["grid", str(path)]) == 1
    found = json.loads((tmp_path / "out" / "grid.json").read_text())
    assert found["arms"]["a"]["status"] == "failed (2)"
    assert "nowhere" in (tmp_path / "out" / "a.log").read_text()
    assert "a: exit status 2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arms", "more", "match"),
    [
        ("[arms.a]\n[arms.b]\nlr = 0.5", "", "arms.b: expected lr .* as in a"),
        ("[arms.a]\n[arms.b]\nsteps = 4", "", "expected steps 2 as in a"),
        ("[arms.a]\npositions = 1", "", "expected all positions asked"),
        ("[arms.a]\nlrr = 1", "", "arms.a: expected settings of rloo, got lrr"),
        ("[arms.a]\ncharts = 'many'", "", "arms.a"),
        ("[arms.a]\ndistractors = 'far'", "", "arms.a: expected values that rloo takes"),
        ("[arms.a]\n[arms.b]\nk = 6", "differ = ['k']", "differ: expected some of"),
        ("[arms.'a/b']\nk = 6", "", "arms: expected names"),
        ("", "", "expected .arms.NAME. or .reading."),
        ("[arms.a]\n", "arm = 1", "expected arms, common"),
    ],
)
def test_confounded_and_wrong_grids_are_refused(
    place: Path, tmp_path: Path, arms: str, more: str, match: str
) -> None:
    with pytest.raises(ValueError, match=match):
        read_grid(written(place, tmp_path, arms, more))


def test_seeds_may_differ_where_the_grid_says_so(place: Path, tmp_path: Path) -> None:
    arms = "[arms.a]\n[arms.b]\nseed = 7"
    plan = read_grid(written(place, tmp_path, arms, "differ = ['seed']"))
    assert [config.seed for config in plan.arms.values()] == [42, 7]
    assert status(plan.arms["a"]) == "new"


def test_flags_say_what_settings_say() -> None:
    config = RlooConfig(
        run=Path("r"), betas=(0.8, 0.9), trackers=("tensorboard",), gradient_checkpointing=False,
        mask_numbers=True, decimals=2, steps=3, distractors="random",
        verifier_url=("http://a", "http://b"),
    )  # fmt: skip
    assert parse(flags(config)) == config


# --------------------------------------------------------------------------------- readers by K


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
        assert cell["frac_perfect"] == pytest.approx(half)


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


def test_tables_have_dashes_where_there_is_no_number() -> None:
    text = grid_command.table([{"a": 0.5, "b": None}, {"a": float("nan"), "b": "x"}], ("a", "b"))
    assert text.splitlines() == ["a      b", "0.500  -", "-      x"]
