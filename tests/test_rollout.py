"""Sampling as a function of counters."""

from __future__ import annotations

import numpy as np
import torch

from tests.random_vlm import random_captioner, random_images
from trainer.policy import Captioner, Prompts
from trainer.rollouts.sampling import Rollout, TransformersSampler, gather, uniforms


def captions(captioner: Captioner, prompts: Prompts, ids: list[str], **changes: int) -> Rollout:
    options = {"group_size": 3, "max_new_tokens": 7, "seed": 0, "charts_at_once": 4}
    step = changes.pop("step", 1)
    sampler = TransformersSampler(captioner, **(options | changes))
    return gather(ids, prompts, list(sampler.sample(prompts, ids, step)))


def test_numbers_are_a_function_of_seed_step_series_and_rollout() -> None:
    both = uniforms(0, 5, ["a", "b"], 3, 10)
    assert both.shape == (6, 10)
    assert both.min() >= 0
    assert both.max() < 1
    np.testing.assert_array_equal(uniforms(0, 5, ["b", "a"], 3, 10), both[[3, 4, 5, 0, 1, 2]])
    np.testing.assert_array_equal(uniforms(0, 5, ["b"], 2, 4), both[3:5, :4])
    assert len(np.unique(both)) == both.size
    for other in (uniforms(1, 5, ["a"], 3, 10), uniforms(0, 6, ["a"], 3, 10)):
        assert not np.isin(other, both).any()


def test_numbers_are_uniform() -> None:
    numbers = uniforms(0, 0, [str(i) for i in range(200)], 4, 50).ravel()
    histogram = np.histogram(numbers, bins=10, range=(0, 1))[0] / numbers.size
    assert np.abs(histogram - 0.1).max() < 0.01


def test_captions_do_not_depend_on_order_or_batch() -> None:
    captioner = random_captioner()
    prompts = captioner.prompts(random_images(4))
    together = captions(captioner, prompts, list("abcd"))
    turned = captions(captioner, prompts.select([3, 1, 0, 2]), list("dbac"))
    in_pieces = captions(captioner, prompts, list("abcd"), charts_at_once=1)
    assert sorted(zip(together.row_ids(), together.texts, strict=True)) == sorted(
        zip(turned.row_ids(), turned.texts, strict=True)
    )
    assert in_pieces.texts == together.texts
    assert len(set(together.texts)) > 8  # different numbers inside a group
    assert captions(captioner, prompts, list("abcd"), step=2).texts != together.texts


def test_token_ids_are_the_sampled_ones() -> None:
    captioner = random_captioner()
    rollout = captions(captioner, captioner.prompts(random_images(2)), ["a", "b"])
    assert rollout.group_size == 3
    assert all(ids.dtype == torch.int64 and len(ids) <= 7 for ids in rollout.token_ids)
    assert captioner.texts(rollout.token_ids) == rollout.texts
    ends = [bool(torch.isin(ids[-1], torch.tensor(sorted(captioner.eos_ids))))
            for ids in rollout.token_ids]  # fmt: skip
    assert ends == rollout.finished
