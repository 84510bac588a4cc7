"""Advantages, loss and update against plain loops; a short run that learns."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, Qwen2_5_VLForConditionalGeneration

from tests.random_vlm import byte_tokenizer, random_captioner, random_images, random_model
from tests.scripted_run import FewSeries, ScriptedReward, settings, vowels
from trainer.optim import Schedule
from trainer.policy import Captioner
from trainer.record.console import Console
from trainer.rloo import (
    Batch,
    accumulate,
    advantages,
    learnable,
    policy_loss,
    step_ids,
    train,
    whitened,
)
from trainer.rollouts import TransformersSampler, gather


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random captioner on disk."""
    folder = tmp_path_factory.mktemp("model")
    random_model().save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def test_advantages_equal_a_plain_loop() -> None:
    rng = np.random.default_rng(0)
    reward, valid = rng.random(40).astype(np.float32), rng.random(40) < 0.7
    reward[~valid] = np.nan
    expected = np.zeros(40)
    for i in range(40):
        group = range(i - i % 8, i - i % 8 + 8)
        others = [float(reward[j]) for j in group if valid[j] and j != i]
        if valid[i] and others:
            expected[i] = float(reward[i]) - sum(others) / len(others)
    np.testing.assert_allclose(advantages(reward, valid, 8), expected, atol=1e-12)


def test_one_valid_caption_in_a_group_has_no_advantage() -> None:
    valid = np.array([True, False, False, True, True, False])
    reward = np.array([1.0, 9.0, 9.0, 1.0, 0.0, 9.0])
    assert advantages(reward, valid, 3).tolist() == [0.0, 0.0, 0.0, 1.0, -1.0, 0.0]
    assert learnable(valid, 3).tolist() == [False, False, False, True, True, False]


def test_whitened_advantages_have_unit_variance_over_tokens() -> None:
    rng = np.random.default_rng(0)
    used, lengths = rng.random(24) < 0.8, rng.integers(1, 9, 24)
    white = whitened(rng.normal(size=24), used, lengths)
    tokens = np.repeat(white[used], lengths[used])
    assert abs(tokens.mean()) < 1e-6
    assert abs(tokens.std() - 1) < 1e-6
    assert not white[~used].any()


def test_policy_loss_is_the_formula() -> None:
    logp = torch.tensor([-1.0, -2.0, -3.0], requires_grad=True)
    loss = policy_loss(logp, torch.tensor([1.0, 1.0, -0.5]), 4)
    assert loss.item() == pytest.approx(-(-1 - 2 + 1.5) / 4)
    loss.backward()
    assert logp.grad is not None
    assert logp.grad.tolist() == [-0.25, -0.25, 0.125]


def a_batch(captioner: Captioner, reward: list[float], valid: list[bool]) -> Batch:
    prompts = captioner.prompts(random_images(4))
    sampler = TransformersSampler(captioner, group_size=3, max_new_tokens=6, seed=0,
                                  charts_at_once=4)  # fmt: skip
    captions = gather("abcd", prompts, list(sampler.sample(prompts, list("abcd"), 1)))
    token_ids = [ids[: 1 + i % 6] for i, ids in enumerate(captions.token_ids)]
    ragged = replace(captions, token_ids=token_ids)
    ok = np.array(valid)
    return Batch(ragged, [0, 1, 2, 3], advantages(np.array(reward), ok, 3), ok)


def gradient(captioner: Captioner, batch: Batch, normaliser: str, micro: int) -> torch.Tensor:
    captioner.model.zero_grad()
    accumulate(captioner, batch, normaliser, micro)
    grads = [p.grad for p in captioner.model.parameters()]
    return torch.cat([g.flatten() if g is not None else torch.zeros(0) for g in grads])


REWARD = [0.0, 2.0, 1.0, 1.0, 1.0, 1.0, 2.0, 0.5, 7.0, 1.0, 7.0, 7.0]
VALID = [True] * 8 + [False, True, False, False]


@pytest.mark.parametrize("normaliser", ["token_mean", "caption_sum"])
def test_update_equals_the_plain_formula_for_any_micro_batch(normaliser: str) -> None:
    captioner = random_captioner(double=True)
    batch = a_batch(captioner, REWARD, VALID)
    token_ids = batch.rollout.token_ids
    denominator = sum(len(token_ids[i]) if normaliser == "token_mean" else 1
                      for i in range(12) if VALID[i])  # fmt: skip
    captioner.model.zero_grad()
    for i in range(12):  # every caption by itself, no group left out
        one = batch.rollout.prompts.select([i // 3])
        logp, _ = captioner.token_logps(one, [[token_ids[i]]])
        (-logp.sum() * batch.advantage[i] / denominator).backward()
    expected = torch.cat([p.grad.flatten() for p in captioner.model.parameters()])
    for micro in (1, 2, 4):
        got = gradient(captioner, batch, normaliser, micro)
        assert (got - expected).norm() / expected.norm() < 1e-6


def test_a_group_with_one_valid_caption_learns_nothing() -> None:
    captioner = random_captioner()
    with_it = a_batch(captioner, REWARD, VALID)
    other = [*REWARD[:9], -5.0, *REWARD[10:]]
    assert torch.equal(
        gradient(captioner, with_it, "caption_sum", 4),
        gradient(captioner, a_batch(captioner, other, VALID), "caption_sum", 4),
    )
    alone = Batch(with_it.rollout, [3], with_it.advantage, with_it.valid)
    assert gradient(captioner, alone, "token_mean", 4).numel() == 0


def test_end_token_is_learned_only_where_the_caption_ended_by_itself() -> None:
    captioner = random_captioner()
    prompts, end = captioner.prompts(random_images(1)), min(captioner.eos_ids)
    with torch.no_grad():  # all tokens equally likely, so that the last number chooses
        captioner.model.model.language_model.norm.weight.zero_()
    uniforms = torch.full((2, 3), 0.1, dtype=torch.float64)
    uniforms[0, 2] = (end + 0.5) / captioner.banned[0].item()
    decoded = captioner.generate(prompts, group_size=2, max_new_tokens=3, uniforms=uniforms)
    assert decoded.finished == [True, False]
    learned = [end in ids.tolist() for ids in decoded.token_ids]
    assert learned == [True, False]
    logps, _ = captioner.token_logps(prompts, [decoded.token_ids])
    assert logps.shape == (6,)  # three tokens each: the cut one has no fourth, unsampled end


def test_schedule_warms_up_and_ends_at_the_floor() -> None:
    schedule = Schedule(peak=2.0, warmup=4, total=20, floor_frac=0.1)
    assert [schedule.lr(u) for u in range(4)] == [0.5, 1.0, 1.5, 2.0]
    assert schedule.lr(4) == 2.0
    assert schedule.lr(12) == pytest.approx(2.0 * (0.1 + 0.9 * 0.5))
    assert schedule.lr(20) == pytest.approx(0.2)


def test_every_epoch_visits_every_series_once() -> None:
    ids = [str(i) for i in range(10)]
    epochs = [[i for s in (1 + 3 * e, 2 + 3 * e, 3 + 3 * e) for i in step_ids(ids, 3, 0, s)]
              for e in range(2)]  # fmt: skip
    assert all(len(set(epoch)) == 9 for epoch in epochs)
    assert epochs[0] != epochs[1]
    assert step_ids(ids, 3, 1, 1) != step_ids(ids, 3, 0, 1)


def test_a_short_run_raises_the_reward(model_folder: Path, tmp_path: Path) -> None:
    config = settings(
        model_folder, tmp_path / "run", steps=25, charts=8, group_size=8,
        captions_per_update=64, lr=1e-2, eval_every=25, checkpoint_every=25,
    )  # fmt: skip
    reward = ScriptedReward(vowels, fails=lambda caption: caption.startswith("x"))
    assert train(config, FewSeries(), reward, console=Console("test", 25, enabled=False))
    rows = [json.loads(line) for line in (config.run / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(26))
    first = np.mean([row["reward"] for row in rows[1:4]])
    last = np.mean([row["reward"] for row in rows[-3:]])
    assert last > first + 0.3
    final = json.loads((config.run / "final.json").read_text())
    assert final["best_step"] == 25
    assert final["best_acc"] > final["start_acc"] + 0.1
    saved = config.run / "checkpoints" / "step-000025"
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(saved)
    weight = model.get_output_embeddings().weight
    assert weight.shape == random_model().lm_head.weight.shape
    assert not torch.equal(weight, random_model().lm_head.weight)
    assert AutoTokenizer.from_pretrained(saved).chat_template == byte_tokenizer().chat_template


def test_invalid_captions_are_counted_and_left_out(model_folder: Path, tmp_path: Path) -> None:
    config = settings(model_folder, tmp_path / "run", steps=1)
    seen: list[str] = []

    def every_third(caption: str) -> bool:
        seen.append(caption)
        return len(seen) % 3 == 0

    reward = ScriptedReward(lambda caption: 0.5, fails=every_third)
    train(config, FewSeries(), reward, console=Console("test", 1, enabled=False))
    row = [json.loads(line) for line in (config.run / "metrics.jsonl").read_text().splitlines()][1]
    assert 0.2 < row["lineup/invalid_frac"] < 0.45
    assert row["reward"] == 1.0  # a failure is no reward of 0
    assert row["frac_reward_zero_std"] == 1.0
    assert row["grad_norm"] == 0.0
