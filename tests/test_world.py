"""Two ranks do what one process does: updates, metrics, checkpoints, stops and failures."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.random_vlm import byte_tokenizer, random_captioner, random_model
from tests.world_run import double_precision, interrupt_at, job, lesson, run, teach
from trainer import checkpoint
from trainer.policy import Captioner
from trainer.world import ALONE, World

HERE = Path(__file__).parent
RANKS_TIME_S = 240  # they need a quarter of it on one core; only a hang takes longer


def ranks(*arguments: object) -> tuple[int, str]:
    """Runs `world_run.py` on two ranks; exit status and what they said."""
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
        str(HERE / "world_run.py"), *map(str, arguments),
    ]  # fmt: skip
    environment = os.environ | {"PYTHONPATH": str(HERE.parent), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        said, _ = process.communicate(timeout=RANKS_TIME_S)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)  # torchrun ends its ranks, which have own sessions
        said, _ = process.communicate()
        pytest.fail(f"ranks hang:\n{said}")
    return process.returncode, said


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random captioner with tied embeddings on disk."""
    folder = tmp_path_factory.mktemp("model")
    random_model().save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folders(model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Runs of one process, and those of two ranks; either goes on where the other stopped.

    The ranks' last run fails on one of them.
    """
    alone, together = tmp_path_factory.mktemp("alone"), tmp_path_factory.mktemp("together")
    with pytest.MonkeyPatch.context() as patch:
        assert run(job("fails", model, alone, steps=1))
        assert run(job("narrow", model, alone))
        patch.setattr(Captioner, "load", double_precision())
        assert run(job("token_mean", model, alone))
        assert run(job("caption_sum", model, alone))
        assert run(job("adapters", model, alone))
        assert teach(lesson("taught", model, alone))
        assert teach(lesson("taught_adapters", model, alone))
        assert not run(job("one_to_two", model, together), before=interrupt_at(2))
        names = ("token_mean", "caption_sum", "adapters", "taught", "taught_adapters")
        status, said = ranks(model, together, *names, "one_to_two", "two_to_one", "narrow", "fails")
        ended = time.time()
        assert status != 0
        assert "scripted failure" in said, said
        # The other rank neither waited for its answer nor went on.
        assert [row["step"] for row in rows(together / "fails")] == [0, 1]
        assert ended - (together / "fails" / "metrics.jsonl").stat().st_mtime < 30
        assert checkpoint.steps(together / "two_to_one" / "checkpoints") == [2]
        assert run(job("two_to_one", model, together, resume=True))
    return alone, together


def rows(run_folder: Path) -> list[dict[str, Any]]:
    """Metrics but times."""
    found = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()]
    return [
        {k: v for k, v in row.items() if not k.startswith("time/") and k != "step_time"}
        for row in found
    ]


def tensors(run_folder: Path) -> dict[str, torch.Tensor]:
    """Weights (or adapters) and moments of the last step."""
    last = run_folder / "checkpoints" / "step-000003"
    moments = load_file(last / "trainer.safetensors")
    adapted = "adapters" in run_folder.name
    assert (last / "model.safetensors").exists() != adapted
    weights = load_file(last / ("adapter_model.safetensors" if adapted else "model.safetensors"))
    assert not moments.keys() & weights.keys()
    return moments | weights


def assert_same_run(one: Path, other: Path) -> None:
    """Weights, moments, metrics and captions of two runs agree but for rounding."""
    assert len(rows(one)) == len(rows(other)) == 4
    for row, again in zip(rows(one), rows(other), strict=True):
        assert row.keys() == again.keys()
        for key, value in row.items():
            assert again[key] == pytest.approx(value, rel=1e-6, abs=1e-9), key
    mine, theirs = tensors(one), tensors(other)
    assert mine.keys() == theirs.keys()
    for name, tensor in mine.items():
        torch.testing.assert_close(theirs[name], tensor, rtol=1e-9, atol=1e-12, msg=name)
    for path in (one / "validation").iterdir():
        assert path.read_text() == (other / "validation" / path.name).read_text()
    for path in (one / "best.json", one / "final.json"):
        if "taught" not in one.name or path.name == "best.json":
            assert json.loads(path.read_text()) == pytest.approx(
                json.loads((other / path.name).read_text())
            )


@pytest.mark.parametrize(
    "name", ["token_mean", "caption_sum", "adapters", "taught", "taught_adapters"]
)
def test_two_ranks_do_what_one_process_does(folders: tuple[Path, Path], name: str) -> None:
    alone, together = folders
    assert_same_run(alone / name, together / name)
    norms = [row["grad_norm"] for row in rows(alone / name)[1:]]
    assert all(norm > 0 for norm in norms)
    settings = [json.loads((f / name / "config.json").read_text()) for f in folders]
    assert [s["ranks"] for s in settings] == [1, 2]
    last = Path("checkpoints/step-000003")
    whole = ("config.json", "generation_config.json")
    for file in ("trainer.json", *(whole if "adapters" not in name else ())):
        assert (alone / name / last / file).read_text() == (
            together / name / last / file
        ).read_text()
    one, other = (sorted(p.name for p in (f / name / last).iterdir()) for f in folders)
    assert one == other


def test_gradients_in_single_precision_are_sums_too(folders: tuple[Path, Path]) -> None:
    first, other = (rows(folder / "fails")[1] for folder in folders)
    assert other["grad_norm"] == pytest.approx(first["grad_norm"], rel=1e-4)
    step = Path("fails/checkpoints/step-000001/trainer.safetensors")
    first, other = (load_file(folder / step) for folder in folders)
    for name, tensor in first.items():
        torch.testing.assert_close(other[name], tensor, rtol=1e-4, atol=1e-6, msg=name)


def test_adapters_on_narrow_weights_learn_alike(folders: tuple[Path, Path]) -> None:
    first, other = (rows(folder / "narrow")[1] for folder in folders)
    assert first["grad_norm"] > 0
    assert other["grad_norm"] == pytest.approx(first["grad_norm"], rel=0.02)  # bfloat16
    step = Path("narrow/checkpoints/step-000001/adapter_model.safetensors")
    first, other = (load_file(folder / step) for folder in folders)
    assert first.keys() == other.keys()
    assert {tensor.dtype for tensor in other.values()} == {torch.float32}


@pytest.mark.parametrize("name", ["one_to_two", "two_to_one"])
def test_a_run_goes_on_with_another_number_of_ranks(folders: tuple[Path, Path], name: str) -> None:
    alone, together = folders
    # The interruption left a checkpoint at step 2 of which the whole run knows nothing.
    assert checkpoint.steps(together / name / "checkpoints") == [2, 3]
    assert_same_run(alone / "token_mean", together / name)


@pytest.mark.parametrize(("rank", "mine"), [(0, [0, 1, 4, 5]), (1, [2, 3, 6, 7])])
def test_series_of_every_update_are_dealt_over_ranks(rank: int, mine: list[int]) -> None:
    assert World(rank, 2).deal(range(8), 2) == mine
    assert World(rank, 2).deal("abc") == [["a", "b"], ["c"]][rank]
    assert ALONE.deal(range(5), 2) == [0, 1, 2, 3, 4]


def test_what_cannot_be_shared_is_refused() -> None:
    World(0, 2).check_shares(8, 4, 16)
    with pytest.raises(ValueError, match="captions_per_update: expected a multiple of 3 ranks x 4"):
        World(0, 3).check_shares(8, 4, 16)
    assert World(1, 2, 1).device("cuda") == "cuda:1"
    assert World(1, 2, 1).device("cpu") == "cpu"
    assert ALONE.device("cuda:3") == "cuda:3"
    with pytest.raises(ValueError, match="device: expected cpu or cuda with 2 ranks, got cuda:0"):
        World(1, 2, 1).device("cuda:0")


def test_one_process_needs_no_torch_distributed() -> None:
    captioner = random_captioner()
    assert World.join("cpu") is not None
    assert ALONE.learner(captioner) is captioner
    with ALONE.whole(captioner, captioner):
        assert ALONE.gather("x") == ["x"]
    assert not torch.distributed.is_initialized()


def test_untied_weights_of_a_tied_model_are_refused() -> None:
    captioner = random_captioner()
    captioner.check_tied()
    captioner.model.lm_head.weight = torch.nn.Parameter(captioner.model.lm_head.weight.clone())
    with pytest.raises(ValueError, match="head and embedding"):
        captioner.check_tied()
