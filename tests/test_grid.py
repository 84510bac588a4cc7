"""Grids of runs, on random models."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from lineup_fast.candidates import fixed
from lineup_fast.corpus import Corpus, build
from lineup_fast.readers import Channel
from tests.random_vlm import byte_tokenizer, random_model
from tests.toy_models import model
from tests.toy_tokenizers import tokenizer
from trainer.__main__ import main
from trainer.baselines import grid, grid_command
from trainer.baselines.grid import flags, read_grid, status
from trainer.config import RlooConfig, parse
from trainer.record import write_json


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
    corpus = Corpus.load(folder / "corpus")
    taught = [{"id": i, "caption": "Up."} for s in ("train", "val") for i in corpus.ids(s)]
    (folder / "teacher.jsonl").write_text("\n".join(map(json.dumps, taught)))
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


def test_data_that_changed_between_arms_is_told_of(
    place: Path, tmp_path: Path, in_process: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(place, tmp_path, "[arms.a]\n[arms.b]\nk = 6\n")
    bank = tmp_path / "bank.jsonl"
    bank.write_text((place / "bank.jsonl").read_text())
    path.write_text(path.read_text().replace(str(place / "bank.jsonl"), str(bank)))
    assert main(["grid", str(path), "--only", "a"]) == 0
    assert "not to be compared" not in capsys.readouterr().err
    bank.write_text("".join(bank.read_text().splitlines(keepends=True)[2:]))
    assert main(["grid", str(path)]) == 0
    assert [words[0] for words in in_process] == ["rloo", "rloo"]
    said = capsys.readouterr().err
    assert "not to be compared: arms were started on different banks of one path: a, b" in said


def test_features_that_changed_end_a_resumed_run(
    place: Path, tmp_path: Path, in_process: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "features.npy"
    n = len(Corpus.load(place / "corpus").ids())
    np.save(file, np.random.default_rng(0).standard_normal((n, 3)))
    path = written(place, tmp_path, f"[arms.mine]\nlookalikes = '{file}'\n")
    assert main(["grid", str(path)]) == 0
    run = tmp_path / "out" / "mine"
    told = json.loads((run / "config.json").read_text())
    assert (told["lookalikes_recall"], len(told["lookalikes_fingerprint"])) == (1.0, 16)
    (run / "final.json").unlink()
    np.save(file, np.random.default_rng(1).standard_normal((n, 3)))
    assert main(["grid", str(path)]) == 1
    assert in_process[-1][-1] == "--resume"
    assert "got other lookalikes_fingerprint" in capsys.readouterr().err


def taught(place: Path, more: str = "") -> str:
    """An arm of sft."""
    return f"""
[arms.taught]
command = "sft"
data = "{place / "teacher.jsonl"}"
updates = 2
captions_per_update = 2
min_characters = 0
eval_every = 1
{more}
"""


def test_an_arm_can_be_a_run_of_sft(
    place: Path, tmp_path: Path, in_process: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(place, tmp_path, "[arms.k4]\n" + taught(place) + reading_of(place))
    assert main(["grid", str(path)]) == 0
    assert [words[0] for words in in_process] == ["rloo", "sft", "caption", "caption"]
    found = json.loads((tmp_path / "out" / "grid.json").read_text())
    row = found["arms"]["taught"]
    assert (row["status"], row["reward"], row["k"]) == ("finished", "sft", None)
    assert {c["captions"] for c in found["reading"]} == {"empty", "k4", "taught"}
    started = json.loads((tmp_path / "out" / "taught" / "config.json").read_text())["config"]
    assert started["caption_prompt"] == "Describe."  # of [common]
    assert started["max_tokens"] == 4
    assert started["lr"] == 1e-5  # sft's own
    assert "taught  finished  sft" in capsys.readouterr().out

    run = tmp_path / "out" / "taught"
    (run / "final.json").unlink()
    before = metrics(run)
    in_process.clear()
    assert main(["grid", str(path), "--only", "taught"]) == 0
    assert [words[0] for words in in_process] == ["sft", "caption", "caption"]
    assert in_process[0][-1] == "--resume"
    assert metrics(run) == before
    final = json.loads((run / "final.json").read_text())
    losses = [json.loads(line)["val/loss"] for line in before.splitlines()]
    assert final["best_loss"] == min(losses)
    out = tmp_path / "card"
    checkpoint = run / "checkpoints" / "step-000002"
    assert main(["export", "--checkpoint", str(checkpoint), "--to", str(out)]) == 0
    card = (out / "README.md").read_text()
    assert "Trained on captions of a teacher." in card
    assert "Teacher captions: `teacher.jsonl`" in card
    assert f"validation loss in nats a token of the run: {min(losses):.4f}" in card


@pytest.mark.parametrize(
    ("more", "match"),
    [
        ("k = 6", "arms.taught: expected settings of sft, got k"),
        ("chart_style = 'paper'", "arms.taught: expected chart_style 'tiny' as in k4"),
        ("clip_norm = 'much'", "arms.taught"),
        ("[arms.more]\ncommand = 'sft'\ncaptions_per_update = 2\nlr = 0.1",
         "arms.more: expected lr 1e-05 as in taught"),
        ("[arms.more]\ncommand = 'dpo'", "arms.more: expected command rloo or sft, got 'dpo'"),
    ],
)  # fmt: skip
def test_arms_of_sft_are_checked_as_well(
    place: Path, tmp_path: Path, more: str, match: str
) -> None:
    path = written(place, tmp_path, "[arms.k4]\n" + taught(place, more))
    with pytest.raises(ValueError, match=match):
        read_grid(path)


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


def test_rows_correct_accuracy_for_chance(tmp_path: Path) -> None:
    for words, expected in (({"k": 4}, 0.4), ({"k": 11}, 0.505), ({"reward": "judge"}, None)):
        config = RlooConfig(run=tmp_path, **words)  # type: ignore[arg-type]
        write_json(tmp_path / "config.json", {"config": config.as_dict()})
        write_json(tmp_path / "final.json", {"best_acc": 0.55, "start_acc": 0.3, "n": 7})
        found = grid.row(config)
        assert (found["status"], found["best_acc"], found["n"]) == ("finished", 0.55, 7)
        assert found.get("corrected") == (expected and pytest.approx(expected))


def test_flags_say_what_settings_say() -> None:
    config = RlooConfig(
        run=Path("r"), betas=(0.8, 0.9), trackers=("tensorboard",), gradient_checkpointing=False,
        mask_numbers=True, decimals=2, steps=3, distractors="random",
        verifier_url=("http://a", "http://b"),
    )  # fmt: skip
    assert parse(flags(config)) == config


def test_tables_have_dashes_where_there_is_no_number() -> None:
    text = grid_command.table([{"a": 0.5, "b": None}, {"a": float("nan"), "b": "x"}], ("a", "b"))
    assert text.splitlines() == ["a      b", "0.500  -", "-      x"]
