"""What the settings of a run name: captioner, sampler, verifier and reward."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from lineup_fast import charts, kernels
from trainer.policy import Captioner
from trainer.record import versions
from trainer.rollout import Sampler, TransformersSampler
from trainer.world import ALONE, World

if TYPE_CHECKING:
    from lineup_fast.corpus import Corpus
    from trainer.config import RlooConfig
    from trainer.sft_config import SftConfig
    from trainer.validate import Reward, Series


def load_captioner(
    config: RlooConfig | SftConfig, path: str | Path, world: World = ALONE
) -> Captioner:
    """The captioner of the settings with the weights in `path`."""
    return Captioner.load(
        path,
        caption_prompt=config.caption_prompt,
        device=world.device(config.device),
        compute_dtype=getattr(torch, config.compute_dtype),
        gradient_checkpointing=config.gradient_checkpointing,
        freeze_vision=config.freeze_vision,
    )


def load_sampler(config: RlooConfig, captioner: Captioner) -> Sampler:
    """What draws the captions of a step."""
    return TransformersSampler(
        captioner,
        group_size=config.group_size,
        max_new_tokens=config.max_new_tokens,
        seed=config.seed,
        charts_at_once=config.charts_at_once,
    )


def load_reward(config: RlooConfig, corpus: Corpus, world: World = ALONE) -> Reward:
    """The identification reward with its verifier, one for each rank on a device of its own.

    Raises:
        ValueError: a caption could outgrow the verifier's context.
    """
    from transformers.utils import logging as transformers_logging

    from lineup_fast.rewards import IdentificationReward
    from lineup_fast.verifiers.transformers import TransformersVerifier

    transformers_logging.disable_progress_bar()  # the live table is ours
    tokenizer = Captioner.load_tokenizer(config.model)
    verifier = TransformersVerifier(
        config.verifier,
        device=world.device(config.verifier_device),
        dtype=config.verifier_dtype,
    )
    reward = IdentificationReward(
        corpus, verifier, config.recipe(), seed=config.seed, scale=config.reward_scale
    )
    reward.check_context(config.max_new_tokens, tokenizer)
    return reward


def settings(command: str, config: RlooConfig | SftConfig, corpus: Series) -> dict[str, Any]:
    """What is written into a run folder first: resolved settings, and what decides numbers."""
    style = charts.STYLES[config.chart_style]
    return {
        "command": command,
        "config": config.as_dict() | {"resume": False},
        "corpus_path": str(config.corpus.resolve()),
        "corpus_fingerprint": corpus.fingerprint,
        "style": {"name": style.name, "fingerprint": style.fingerprint},
        "versions": versions(),
        "build_info": kernels.build_info(),
        "threads": torch.get_num_threads(),
    }
