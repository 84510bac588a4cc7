"""Captions from a real SGLang on this CPU: a server, and an engine in the trainer's process.

Sleeping is not tested here: SGLang gives memory back through the driver of a GPU.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from lineup_fast import charts, kernels
from lineup_fast.verifiers.engine_process import EngineProcess
from tests.engine.conftest import ARGUMENTS, HERE, SHIM, engine_python
from tests.random_vlm import byte_tokenizer, random_model
from tests.scripted_run import FewSeries, ScriptedReward, settings, vowels
from trainer.policy import Captioner, Prompts
from trainer.record.console import Console
from trainer.rloo import train
from trainer.rollouts import Rollout, gather
from trainer.rollouts.engine import SGLangSampler
from trainer.rollouts.importance import Importance

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

ROOT = HERE.parents[1]
IDS = ["a", "b", "c"]
PROCESSOR = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "processor_class": "Qwen2_5_VLProcessor",
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "min_pixels": 56 * 56,
    "max_pixels": 1280 * 28 * 28,
    "image_mean": charts.MEAN,
    "image_std": charts.STD,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random captioner as a hub would hold it."""
    folder = tmp_path_factory.mktemp("captioner")
    random_model().save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[EngineProcess]:
    arguments = [*ARGUMENTS, "--mm-attention-backend", "sdpa"]
    at = arguments.index("--context-length")
    arguments[at + 1] = "512"
    with EngineProcess(
        folder, python=engine_python(), arguments=arguments, environment=SHIM
    ) as running:
        yield running


@pytest.fixture
def captioner(folder: Path) -> Captioner:
    return Captioner.load(folder, caption_prompt="Describe.")


@pytest.fixture
def prompts(captioner: Captioner) -> Prompts:
    rng = np.random.default_rng(0)
    series = [np.clip(50 + np.cumsum(rng.integers(-9, 10, 24)), 0, 100.0) for _ in IDS]
    return captioner.prompts(charts.render(series, charts.STYLES["tiny"]))


def drawn(sampler: SGLangSampler, prompts: Prompts) -> Rollout:
    parts = sorted(sampler.sample(prompts, IDS, 1), key=lambda part: part.rows)
    return gather(IDS, prompts, parts)


def gap(captioner: Captioner, rollout: Rollout) -> dict[str, float]:
    weigh = Importance(2.0)
    for row in range(len(IDS)):
        group = slice(4 * row, 4 * row + 4)
        one = rollout.prompts.select([row])
        logps, _ = captioner.token_logps(one, [rollout.token_ids[group]])
        weigh.weights(logps, torch.cat(rollout.token_logps[group]))
    return weigh.metrics()


def test_captions_have_our_log_probabilities_before_and_after_an_update(
    server: EngineProcess, captioner: Captioner, prompts: Prompts, tmp_path: Path
) -> None:
    with SGLangSampler(captioner, server.url, folder=tmp_path, group_size=4, max_new_tokens=40,
                       seed=0) as sampler:  # fmt: skip
        first = drawn(sampler, prompts)
        assert len(set(first.texts)) == 12
        assert not torch.isin(torch.cat(first.token_ids), captioner.banned).any()
        ends = [int(ids[-1]) in captioner.eos_ids for ids in first.token_ids]
        assert ends == first.finished
        assert True in ends
        assert all(
            len(ids) == 40 for ids, end in zip(first.token_ids, ends, strict=True) if not end
        )
        found = [gap(captioner, first)]
        for part in ("language_model", "visual"):  # the same charts: SGLang keeps encoded images
            with torch.no_grad():
                for name, parameter in captioner.model.named_parameters():
                    if part in name:
                        parameter += 0.02 * parameter.abs().mean() * torch.randn_like(parameter)
            assert gap(captioner, drawn(sampler, prompts))["mismatch/logp_gap_mean"] > 1e-3
            sampler.push(captioner)
            found.append(gap(captioner, drawn(sampler, prompts)))
    print(json.dumps(found))
    for metrics in found:
        assert metrics["mismatch/logp_gap_mean"] < 1e-5
        assert metrics["mismatch/ratio_max"] < 1.0 + 1e-4
        assert metrics["mismatch/capped_frac"] == 0.0


def test_a_run_learns_from_its_captions(
    server: EngineProcess, folder: Path, tmp_path: Path
) -> None:
    config = settings(
        folder, tmp_path / "run", steps=12, charts=8, group_size=8, captions_per_update=64, lr=1e-2,
        eval_every=12, checkpoint_every=12, sampler="sglang", sampler_url=(server.url,),
    )  # fmt: skip
    train(config, FewSeries(), ScriptedReward(vowels), console=Console("", 8, enabled=False))
    lines = (config.run / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines][1:]
    rewards = [row["reward"] for row in rows]
    print(rewards)  # of a stream of numbers that no seed decides
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.1
    assert max(row["mismatch/logp_gap_mean"] for row in rows) < 1e-5


# In a process of its own: SGLang cannot share an environment with a current transformers.
IN_PROCESS = """
import sys, pathlib, lineup_fast
lineup_fast.__path__.append(sys.argv[3])
from tests.engine.rollouts_in_process import main
main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
"""


def test_an_engine_of_the_same_process_writes_captions_and_takes_weights(tmp_path: Path) -> None:
    """The tiny captioner: as it is, after updates of either tower, and in two steps of RLOO."""
    captioner = tmp_path / "captioner"
    shutil.copytree(ROOT / "trainer/tiny/captioner", captioner)
    (captioner / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    core = Path(kernels.chart_kernels.__file__).parent
    result = subprocess.run(
        [engine_python(), "-c", IN_PROCESS, captioner, tmp_path, core],
        env=os.environ | SHIM | {"PYTHONPATH": os.pathsep.join([SHIM["PYTHONPATH"], str(ROOT)])},
        cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-3000:]
    line = next(line for line in result.stdout.splitlines() if line.startswith("RESULT "))
    print(line)
    found = json.loads(line.removeprefix("RESULT "))
    start, text_unseen, text, vision_unseen, vision = found["gaps"]
    for metrics in (text_unseen, vision_unseen):  # the engine had the older weights
        assert metrics["mismatch/logp_gap_mean"] > 1e-3
    assert len(found["rows"]) == 2
    for metrics in (start, text, vision, *found["rows"]):
        assert metrics["mismatch/logp_gap_mean"] < 1e-5
        assert metrics["mismatch/ratio_max"] < 1.0 + 2e-4
        assert metrics["mismatch/capped_frac"] == 0.0
    for row in found["rows"]:
        assert row["lineup/invalid_frac"] == 0.0
        assert row["grad_norm"] > 0.0
