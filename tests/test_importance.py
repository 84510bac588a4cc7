"""Importance weights of off-policy tokens against a plain loop, and what they leave alone."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.random_vlm import random_captioner, random_images
from trainer.config import RlooConfig
from trainer.policy import Captioner
from trainer.rloo import Batch, accumulate, advantages
from trainer.rollouts import TransformersSampler, gather
from trainer.rollouts.importance import Importance, of_step


def test_weights_and_metrics_equal_a_plain_loop() -> None:
    rng = np.random.default_rng(0)
    parts = [(rng.normal(size=n) * 0.7, rng.normal(size=n) * 0.7) for n in (5, 90)]
    found, ratios, gaps = Importance(2.0), [], []
    for now, drawn in parts:
        given = torch.tensor(now, requires_grad=True)
        weights = found.weights(given, torch.tensor(drawn))
        assert not weights.requires_grad
        for i in range(len(now)):
            ratios.append(math.exp(now[i] - drawn[i]))
            gaps.append(abs(now[i] - drawn[i]))
            assert weights[i].item() == pytest.approx(min(ratios[-1], 2.0))
    capped = sum(ratio > 2.0 for ratio in ratios)
    assert 0 < capped < len(ratios)
    assert found.metrics() == {
        "mismatch/logp_gap_mean": pytest.approx(sum(gaps) / len(gaps)),
        "mismatch/ratio_mean": pytest.approx(sum(ratios) / len(ratios)),
        "mismatch/ratio_max": pytest.approx(max(ratios)),
        "mismatch/capped_frac": pytest.approx(capped / len(ratios)),
    }


def test_a_step_that_learned_from_nothing_has_no_numbers() -> None:
    assert all(math.isnan(value) for value in Importance(2.0).metrics().values())


@pytest.mark.parametrize(("off_policy", "depth", "weighed"), [
    (False, 0, False), (True, 0, True), (False, 1, True), (True, 2, True),
])  # fmt: skip
def test_only_off_policy_tokens_are_weighed(off_policy: bool, depth: int, weighed: bool) -> None:
    config = RlooConfig(async_depth=depth, importance_cap=3.0)
    found = of_step(config, SimpleNamespace(off_policy=off_policy))
    assert (found is not None) == weighed
    assert found is None or found.cap == 3.0


def a_batch(captioner: Captioner) -> Batch:
    prompts = captioner.prompts(random_images(2))
    sampler = TransformersSampler(captioner, group_size=3, max_new_tokens=6, seed=0,
                                  charts_at_once=2)  # fmt: skip
    captions = gather("ab", prompts, list(sampler.sample(prompts, list("ab"), 1)))
    valid = np.ones(6, bool)
    return Batch(captions, [0, 1], advantages(np.array([0.0, 2, 1, 1, 0.5, 2]), valid, 3), valid)


def gradient(captioner: Captioner, batch: Batch, weigh: Importance | None) -> torch.Tensor:
    captioner.model.zero_grad()
    accumulate(captioner, batch, "token_mean", 1, weigh=weigh)
    return torch.cat([p.grad.flatten() for p in captioner.model.parameters()])


def test_gradient_is_that_of_the_policy_where_all_ratios_are_one() -> None:
    captioner = random_captioner(double=True)
    batch = a_batch(captioner)
    plain, weigh = gradient(captioner, batch, None), Importance(2.0)
    weighed = gradient(captioner, batch, weigh)  # drawn by the same weights: ratios are 1
    assert (weighed - plain).norm() / plain.norm() < 1e-5  # what is drawn is kept in float32
    metrics = weigh.metrics()
    assert metrics["mismatch/logp_gap_mean"] < 1e-6
    assert metrics["mismatch/ratio_mean"] == pytest.approx(1.0, abs=1e-6)
    assert metrics["mismatch/capped_frac"] == 0.0


def test_gradient_is_weighed_token_by_token() -> None:
    captioner = random_captioner(double=True)
    batch = a_batch(captioner)
    rng = np.random.default_rng(1)
    shifted = [x.double() + torch.tensor(rng.normal(size=len(x)) * 0.8)
               for x in batch.rollout.token_logps]  # fmt: skip
    off = replace(batch, rollout=replace(batch.rollout, token_logps=shifted))
    got = gradient(captioner, off, Importance(2.0))
    captioner.model.zero_grad()
    n_tokens = sum(map(len, batch.rollout.token_ids))
    for i, (ids, drawn) in enumerate(zip(batch.rollout.token_ids, shifted, strict=True)):
        logp, _ = captioner.token_logps(batch.rollout.prompts.select([i // 3]), [[ids]])
        for t in range(len(ids)):
            weight = min(math.exp(float(logp[t].detach()) - float(drawn[t])), 2.0)
            (-batch.advantage[i] * weight * logp[t] / n_tokens).backward(retain_graph=True)
    expected = torch.cat([p.grad.flatten() for p in captioner.model.parameters()])
    assert (got - expected).norm() / expected.norm() < 1e-6
