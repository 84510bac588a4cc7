"""Captions from ``sglang.Engine`` in the trainer's process; run by test_rollout_engine.py."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lineup_fast import charts
from tests.scripted_run import FewSeries, ScriptedReward, settings, vowels
from trainer import rloo
from trainer.policy import Captioner, Prompts
from trainer.record.console import Console
from trainer.rollouts import gather
from trainer.rollouts.engine import SGLangSampler
from trainer.rollouts.importance import Importance
from trainer.world import World

IDS = ["a", "b", "c"]
G = 4


def gap(captioner: Captioner, sampler: SGLangSampler, prompts: Prompts) -> dict[str, float]:
    """Draws captions and says how far their log-probabilities are from the captioner's."""
    parts = sorted(sampler.sample(prompts, IDS, 1), key=lambda part: part.rows)
    drawn = gather(IDS, prompts, parts)
    assert len(set(drawn.texts)) > len(IDS)
    ends = [int(ids[-1]) in captioner.eos_ids for ids in drawn.token_ids]
    assert ends == drawn.finished
    weigh = Importance(2.0)
    for row in range(len(IDS)):
        group = slice(G * row, G * row + G)
        one = prompts.select([row])
        logps, _ = captioner.token_logps(one, [drawn.token_ids[group]])
        weigh.weights(logps, torch.cat(drawn.token_logps[group]))
    return weigh.metrics()


def gaps_around_updates(captioner: Captioner, engine: Any, folder: Path) -> list[dict[str, float]]:
    """Gaps at the start, then for each tower before and after the engine is given its update."""
    rng = np.random.default_rng(0)
    series = [np.clip(50 + np.cumsum(rng.integers(-9, 10, 24)), 0, 100.0) for _ in IDS]
    prompts = captioner.prompts(charts.render(series, charts.STYLES["tiny"]))
    with SGLangSampler(captioner, engine=engine, folder=folder, group_size=G, max_new_tokens=40,
                       seed=0, charts_at_once=2) as sampler:  # fmt: skip
        found = [gap(captioner, sampler, prompts)]
        for part in ("language_model", "visual"):
            with torch.no_grad():
                for name, parameter in captioner.model.named_parameters():
                    if part in name:
                        parameter += 0.02 * parameter.abs().mean() * torch.randn_like(parameter)
            found.append(gap(captioner, sampler, prompts))
            sampler.push(captioner)
            found.append(gap(captioner, sampler, prompts))
    return found


def learn(model: Path, engine: Any, folder: Path) -> list[dict[str, Any]]:
    """Two steps of the real loop; metrics of each."""

    def in_process(config: Any, captioner: Captioner, world: World) -> SGLangSampler:
        return SGLangSampler(
            captioner, engine=engine, folder=config.run / "engine", group_size=config.group_size,
            max_new_tokens=config.max_new_tokens, seed=config.seed,
        )  # fmt: skip

    rloo.load_sampler = in_process
    config = settings(  # one update a step: a second one would find captions of older weights
        model, folder / "run", steps=2, captions_per_update=16, lr=1e-2, sampler="sglang",
        sampler_url=("http://unused",),
    )  # fmt: skip
    quiet = Console("", 2, enabled=False)
    assert rloo.train(config, FewSeries(), ScriptedReward(vowels), console=quiet)
    lines = (config.run / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines][1:]


def main(model: Path, folder: Path) -> None:
    """Prints one line of JSON: gaps around updates, and metrics of a run."""
    import sglang

    engine = sglang.Engine(
        model_path=str(model),
        device="cpu",
        attention_backend="torch_native",
        mm_attention_backend="sdpa",
        dtype="float32",
        max_total_tokens=32768,
        context_length=512,
        sleep_on_idle=True,
    )
    try:
        captioner = Captioner.load(model, caption_prompt="Describe.")
        result = {
            "gaps": gaps_around_updates(captioner, engine, folder),
            "rows": learn(model, engine, folder),
        }
    finally:
        engine.shutdown()
    sys.stdout.write("RESULT " + json.dumps(result) + "\n")
