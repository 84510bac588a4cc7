"""What the settings of a run name: captioner, sampler, verifier and reward."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from lineup_fast import charts, kernels
from trainer.baselines.questions import Bank, Questioned, check_answers
from trainer.baselines.reading import MaskedReward
from trainer.config import RlooConfig
from trainer.lora import LoraSettings
from trainer.policy import Captioner
from trainer.record import versions
from trainer.rewarding import ServedReward, SleepingReward
from trainer.rollouts import Sampler, TransformersSampler
from trainer.world import ALONE, World

if TYPE_CHECKING:
    from lineup_fast.corpus import Corpus
    from lineup_fast.verifiers.base import Verifier
    from trainer.config import RlooConfig
    from trainer.sft_config import SftConfig
    from trainer.validate import Reward, Series


def load_captioner(
    config: RlooConfig | SftConfig, path: str | Path, world: World = ALONE
) -> Captioner:
    """The captioner of the settings with the weights in `path`."""
    adapters = None
    if config.lora_rank:
        adapters = LoraSettings(
            config.lora_rank, config.lora_alpha, config.lora_modules, config.seed
        )
    return Captioner.load(
        path,
        caption_prompt=config.caption_prompt,
        device=world.device(config.device),
        compute_dtype=getattr(torch, config.compute_dtype),
        gradient_checkpointing=config.gradient_checkpointing,
        freeze_vision=config.freeze_vision,
        adapters=adapters,
        dtype=getattr(torch, config.frozen_dtype),
    )


def check_ranks(config: RlooConfig, n_ranks: int) -> None:
    """Raises ValueError for what is not made for sharded weights."""
    if n_ranks > 1 and config.optimizer != "adamw":
        raise ValueError(f"optimizer: expected adamw with several ranks, got {config.optimizer}")


def load_sampler(config: RlooConfig, captioner: Captioner, world: World = ALONE) -> Sampler:
    """What draws the captions of a step, with the captioner's weights. Ranks share no server.

    Raises:
        ValueError: there are fewer servers than ranks, or ranks whose engines should take turns.
        BackendError: servers do not answer or take no weights.
    """
    if config.sleep and world.size > 1:
        raise ValueError(f"sleep: expected one process, got {world.size} ranks")
    if config.sampler == "sglang":
        from trainer.rollouts.engine import SGLangSampler

        urls = config.sampler_url[world.rank :: world.size]
        if not urls:
            raise ValueError(
                f"sampler_url: expected a server for each of {world.size} ranks, "
                f"got {len(config.sampler_url)}"
            )
        sampler = SGLangSampler(
            captioner,
            urls,
            folder=config.run / "engine" / str(world.rank),
            group_size=config.group_size,
            max_new_tokens=config.max_new_tokens,
            seed=config.seed,
        )
        if config.sleep:
            sampler.sleep()
        return sampler
    return TransformersSampler(
        captioner,
        group_size=config.group_size,
        max_new_tokens=config.max_new_tokens,
        seed=config.seed,
        charts_at_once=config.charts_at_once,
    )


def load_reward(config: RlooConfig, corpus: Corpus, world: World = ALONE) -> Reward:
    """The reward that the settings name: its verifier here (one for each rank, on a device of its
    own), on SGLang, or all of it on reward servers.

    corpus: all of it, for distractors. Raises:
        ValueError: a caption could outgrow the verifier's context; the corpus has too few
            neighbours for k; a judge cannot tell true captions from false ones.
        BackendError: servers do not answer.
    """
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()  # the live table is ours
    reward: Any
    if config.reward_url:
        reward = ServedReward(
            config.reward_url, corpus=corpus.fingerprint, recipe=config.recipe().name
        )
        return MaskedReward(reward) if config.mask_numbers else reward
    verifier = load_verifier(config, world)
    reward = reward_of(config, corpus, verifier)
    reward.check_context(config.max_new_tokens, Captioner.load_tokenizer(config.model))
    if config.mask_numbers:
        reward = MaskedReward(reward)
    if config.sleep and config.verifier_url:
        return SleepingReward(reward, verifier)
    return reward


def reward_of(config: RlooConfig, corpus: Corpus, verifier: Verifier) -> Any:
    """The reward by its config word, with a verifier that is there.

    Raises:
        ValueError: see `load_reward`.
    """
    if config.reward == "answerability":
        from trainer.baselines.answerability import AnswerabilityReward

        assert config.questions is not None  # the settings are checked
        return AnswerabilityReward(
            Bank.load(config.questions), verifier,
            scoring=config.scoring, seed=config.seed, scale=config.reward_scale,
        )  # fmt: skip
    if config.reward == "judge":
        from trainer.baselines.judge import JudgeReward, self_test, self_test_items

        judge = JudgeReward(corpus, verifier, scoring=config.scoring, scale=config.reward_scale)
        judge.facts = {"judge_self_test": asdict(self_test(judge, self_test_items(corpus)))}
        return judge
    from lineup_fast.rewards import IdentificationReward

    if config.lookalikes is not None:
        from trainer.baselines.lookalikes import with_lookalikes

        corpus = with_lookalikes(corpus, config.lookalikes, k=config.k)
    elif config.distractors == "nearest":
        short = len(corpus.ids()) - len(set(corpus.ids()) & set(corpus.ids(k=config.k)))
        if short:
            raise ValueError(
                f"k: expected {config.k - 1} neighbours of every series, got fewer of {short}; "
                f"lineup-fast index --k {config.k} leaves those out"
            )
    return IdentificationReward(
        corpus, verifier, config.recipe(),
        seed=config.seed, scale=config.reward_scale, kind=config.distractors,
    )  # fmt: skip


def training_series(config: RlooConfig, corpus: Corpus) -> Series:
    """The series that are trained and validated on: those of a bank, if there is one.

    Raises:
        ValueError: a question of the bank does not hold on its series.
    """
    if config.questions is None:
        return corpus
    bank = Bank.load(config.questions)
    check_answers(bank, corpus)
    return Questioned(corpus, bank)


def load_verifier(config: RlooConfig, world: World = ALONE) -> Any:
    """The frozen reader: behind URLs where there are some, else in this process."""
    if config.verifier_url:
        from lineup_fast.verifiers.sglang import SGLangVerifier

        return SGLangVerifier(config.verifier_url)
    from lineup_fast.verifiers.transformers import TransformersVerifier

    return TransformersVerifier(
        config.verifier,
        device=world.device(config.verifier_device),
        dtype=config.verifier_dtype,
    )


def settings(command: str, config: RlooConfig | SftConfig, corpus: Series) -> dict[str, Any]:
    """What is written into a run folder first: resolved settings, and what decides numbers."""
    style = charts.STYLES[config.chart_style]
    of_bank: dict[str, Any] = {}
    if isinstance(corpus, Questioned):
        bank = corpus.bank
        of_bank = {"bank_fingerprint": bank.fingerprint, "bank_survival": bank.survival}
    return of_bank | {
        "command": command,
        "config": config.as_dict() | {"resume": False},
        "corpus_path": str(config.corpus.resolve()),
        "corpus_fingerprint": corpus.fingerprint,
        "style": {"name": style.name, "fingerprint": style.fingerprint},
        "versions": versions(),
        "build_info": kernels.build_info(),
        "threads": torch.get_num_threads(),
    }
