"""RLOO on the identification reward.

What is deliberately absent: no KL term and no reference model (the paper's coefficient is 0), no
clipped ratio (one update per rollout token: the ratio is 1; importance weighs the tokens of
captions from another engine or from earlier weights), no division of advantages by their standard
deviation, no critic, no learned baseline. What remains is REINFORCE with a leave-one-out baseline:
A_i = r_i - mean of the other valid r of the same series.

One step, in the order of the code below: series -> charts -> captions -> rewards -> advantages ->
updates -> record. Anything random is a function of (seed, step, series, rollout).

Letters: B series a step, G captions a series, L tokens of a caption.
Source: the paper's method section; reference training script (`token_mean`, no KL, ratio 1).
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from lineup_fast import counters
from lineup_fast.cli import one_line
from lineup_fast.prompts import PROMPT_VERSION
from lineup_fast.reward_rows import join
from lineup_fast.verifiers.base import BackendError
from trainer import checkpoint, collapse, loading, rewarding, validate
from trainer.ahead import Ahead
from trainer.baselines.words import reward_name
from trainer.checkpoint import Counters
from trainer.collapse import CollapseError
from trainer.config import RlooConfig
from trainer.loading import load_captioner, load_reward, load_sampler, settings
from trainer.optim import Schedule, apply_update, make_optimizer
from trainer.policy import Captioner, Prompts
from trainer.record import Best, RunFolder, check_folder
from trainer.record.console import Console, stop_requested, stopped
from trainer.record.metrics import Clock, mean, step_metrics
from trainer.record.trackers import Trackers
from trainer.rollouts import Part, Rollout, importance, of_all_ranks
from trainer.rollouts.asking import Asking
from trainer.rollouts.importance import Importance
from trainer.validate import Reward, Series
from trainer.world import ALONE, World

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Bools = NDArray[np.bool_]


# -------------------------------------------------------------------------------- the mathematics


def advantages(reward: NDArray[Any], valid: Bools, group_size: int) -> Floats:
    """Leave-one-out advantages, float64 [n]; 0 for invalid captions.

    Args:
        reward: [n], group after group; the value of an invalid caption is not looked at.
        valid: [n]. A group with fewer than two valid captions learns nothing.
    """
    r = np.where(valid, reward, 0.0).astype(np.float64).reshape(-1, group_size)
    others = np.maximum(valid.reshape(-1, group_size).sum(1, keepdims=True) - 1, 1)
    baseline = (r.sum(1, keepdims=True) - r) / others
    return np.where(learnable(valid, group_size), (r - baseline).ravel(), 0.0)


def learnable(valid: Bools, group_size: int) -> Bools:
    """Valid captions with at least one valid sibling, bool [n]."""
    v = valid.reshape(-1, group_size)
    return (v & (v.sum(1, keepdims=True) >= 2)).ravel()


def whitened(
    advantage: Floats, used: Bools, lengths: NDArray[np.int64], world: World = ALONE
) -> Floats:
    """Advantages with mean 0 and variance 1 over the tokens of the captions used; 0 elsewhere."""
    weight = np.where(used, lengths, 0).astype(np.float64)
    tokens = world.sum(weight.sum())
    if tokens == 0:
        return advantage
    centre = world.sum((advantage * weight).sum()) / tokens
    variance = world.sum(((advantage - centre) ** 2 * weight).sum()) / tokens
    return np.where(used, (advantage - centre) / np.sqrt(variance + 1e-8), 0.0)


def policy_loss(token_logp: Tensor, token_advantage: Tensor, denominator: int) -> Tensor:
    """-sum A log pi / n, with n known before the first micro-batch of the update."""
    return -(token_advantage * token_logp).sum() / denominator


# -------------------------------------------------------------------------------------- one update


@dataclass(frozen=True)
class Batch:
    """Groups behind one optimizer step.

    rows: which charts of the rollout. advantage float64, valid bool [B * G]: of the whole rollout.
    """

    rollout: Rollout
    rows: list[int]
    advantage: Floats
    valid: Bools


def update(
    captioner: Captioner,
    optimizer: Any,
    batch: Batch,
    config: RlooConfig,
    lr: float,
    world: World = ALONE,
    weigh: Importance | None = None,
) -> float:
    """One optimizer step on some groups of a rollout; returns the gradient norm before clipping."""
    accumulate(captioner, batch, config.normaliser, config.micro_groups, world, weigh)
    parameters = [p for p in captioner.model.parameters() if p.requires_grad]
    return apply_update(optimizer, parameters, lr, config.clip_norm)


def accumulate(
    captioner: Captioner,
    batch: Batch,
    normaliser: str,
    micro_groups: int,
    world: World = ALONE,
    weigh: Importance | None = None,
) -> None:
    """Adds the gradient of the loss of all groups of the update.

    A caption with advantage 0 has no gradient and is not computed; it still counts in the
    denominator, which is that of all valid captions of the update, on whatever rank. All ranks
    run equally many passes; one that has run out of groups runs them on a caption of weight 0.
    `weigh`: of off-policy tokens.
    """
    size, token_ids = batch.rollout.group_size, batch.rollout.token_ids
    captions = [row * size + g for row in batch.rows for g in range(size)]
    counted = [i for i in captions if batch.valid[i]]
    denominator = len(counted)
    if normaliser == "token_mean":
        denominator = sum(len(token_ids[i]) for i in counted)
    live = {
        row: [i for i in range(row * size, (row + 1) * size) if batch.advantage[i] != 0.0]
        for row in batch.rows
    }
    rows = [row for row in batch.rows if live[row]]
    passes = max(world.gather(-(-len(rows) // micro_groups)))
    denominator = world.sum(denominator)
    for n in range(passes):
        micro = rows[n * micro_groups : (n + 1) * micro_groups]
        completions = [[token_ids[i] for i in live[row]] for row in micro]
        spread = [batch.advantage[i] for row in micro for i in live[row] for _ in token_ids[i]]
        idle = not micro
        if idle:
            micro, completions, spread = batch.rows[:1], [[token_ids[captions[0]][:1]]], [0.0]
        world.last_pass(captioner, n == passes - 1)
        logp, _ = captioner.token_logps(batch.rollout.prompts.select(micro), completions)
        advantage = torch.tensor(spread, dtype=logp.dtype, device=logp.device)
        if weigh is not None and not idle:
            drawn = [batch.rollout.token_logps[i] for row in micro for i in live[row]]
            advantage = advantage * weigh.weights(logp, torch.cat(drawn))
        policy_loss(logp, advantage, denominator).backward()


# ---------------------------------------------------------------------------------------- the loop


def step_ids(ids: list[str], n_charts: int, seed: int, step: int) -> list[str]:
    """Series of a step (1, 2, …): every epoch in a new order, its last partial batch dropped."""
    per_epoch = len(ids) // n_charts
    epoch, place = divmod(step - 1, per_epoch)
    order = counters.order(len(ids), "series", seed, epoch)
    return [ids[row] for row in order[place * n_charts : (place + 1) * n_charts]]


def train(
    config: RlooConfig,
    corpus: Series,
    reward: Reward,
    *,
    console: Console | None = None,
    world: World = ALONE,
) -> bool:
    """Trains until the last step; False if it was interrupted (a checkpoint is there).

    world: the ranks that train together; each takes its share of the charts of every update.

    Raises:
        ValueError: run folder, corpus or model do not fit the settings.
        CollapseError: nothing was learned any more; a checkpoint is there.
    """
    world.check_shares(config.charts, config.group_size, config.captions_per_update)
    world.check_alike(config.as_dict() | {"corpus_fingerprint": corpus.fingerprint})
    folder = RunFolder(config.run, resume=config.resume, writes=world.first)
    if config.threads:
        torch.set_num_threads(config.threads)
    ids = corpus.ids("train")
    val_ids = validate.fixed_ids(corpus, "val", config.n_val)
    test_ids = validate.fixed_ids(corpus, "test", config.n_test)
    for split, found, least in (
        ("train", ids, config.charts), ("val", val_ids, 1), ("test", test_ids, 1)
    ):  # fmt: skip
        if len(found) < least:
            raise ValueError(f"corpus: expected {least} items in {split}, got {len(found)}")
    n_steps = config.steps or max(1, int(config.epochs * (len(ids) // config.charts)))
    n_updates = config.charts * config.group_size // config.captions_per_update
    schedule = Schedule(config.lr, config.warmup_updates, n_steps * n_updates, config.lr_floor_frac)

    loading.check_ranks(config, world.size)
    done = world.same(checkpoint.steps(folder.checkpoints))
    start = checkpoint.folder(folder.checkpoints, done[-1]) if done else Path(config.model)
    captioner = load_captioner(config, start if done else config.model, world)
    learner = world.learner(captioner)
    parameters = [p for p in learner.model.parameters() if p.requires_grad]
    optimizer = make_optimizer(config.optimizer, parameters, config.betas, config.weight_decay)
    counts = checkpoint.load(start, learner, optimizer) if done else Counters()
    folder.write_settings(  # from here on the folder holds a run
        settings("rloo", config, corpus)
        | {"prompt_version": PROMPT_VERSION, "recipe": reward_name(config), "ranks": world.size}
        | rewarding.facts(reward)
    )
    history = world.same(folder.cut(counts.step if done else -1))
    best = Best(folder, history)
    with world.whole(learner, captioner):
        sampler = load_sampler(config, captioner, world)
    console = console or Console(config.run.name, n_steps, enabled=None if world.first else False)

    def prepare(step: int) -> tuple[list[str], Prompts]:
        step_series = world.deal(step_ids(ids, config.charts, config.seed, step), n_updates)
        rewarding.prepare(reward, step_series, step)
        return step_series, validate.chart_prompts(captioner, corpus, step_series, config)

    with (
        console,
        stop_requested() as stop,
        ThreadPoolExecutor(1, "lineup-reward") as asker,
        Ahead(prepare, n_steps) as ahead,
        closing(sampler),
        Trackers(
            config.trackers if world.first else (), folder.path, config.as_dict(), counts.step
        ) as trackers,
    ):
        if not done:
            console.note("validating the start")
            with world.whole(learner, captioner):
                row = {"step": 0} | validate.row(
                    0, captioner, corpus, reward, val_ids, config, folder, world=world
                )
            row = world.same(row)
            best.see(row)
            folder.append(row)
            trackers.log(row)
            console.row(row)
        pending: deque[Asking] = deque()  # sampled, waiting for their rewards
        sampled, stopping = counts.step, world.any(stop())
        while counts.step < n_steps and not stopping:
            counts.step += 1
            started, clock = time.perf_counter(), Clock()

            # series -> charts -> captions, rewards asked for as captions finish
            console.note("writing captions")
            while sampled < furthest(config, counts.step, n_steps):
                sampled += 1
                with clock("charts"):  # time spent waiting for them
                    prepared = ahead.take(sampled)
                with clock("rollout"), world.whole(learner, captioner):
                    parts = sampler.sample(prepared[1], prepared[0], sampled)
                    if config.sleep:  # one engine at a time: no reward before the last caption
                        parts = iter(list(parts))
                        sampler.sleep()
                    pending.append(ask(Asking(reward, *prepared, sampled), parts, asker))

            # captions -> rewards -> advantages
            console.note("asking the verifier")
            with clock("reward"):
                captions, scores = pending.popleft().result()
                rewarding.idle(reward)
            lengths = np.array([len(t) for t in captions.token_ids])
            advantage = advantages(scores.reward, scores.valid, config.group_size)
            if config.whiten:
                used = learnable(scores.valid, config.group_size)
                advantage = whitened(advantage, used, lengths, world)

            # advantages -> updates
            console.note("learning")
            norms, weigh = [], importance.of_step(config, sampler)
            with clock("update"):
                for rows in np.array_split(np.arange(len(captions.ids)), n_updates):
                    lr = schedule.lr(counts.update)
                    batch = Batch(captions, rows.tolist(), advantage, scores.valid)
                    norms.append(update(learner, optimizer, batch, config, lr, world, weigh))
                    counts.update += 1
                if sampler.off_policy:
                    with world.whole(learner, captioner):
                        sampler.push(captioner)

            # record
            prompt_tokens = int(captions.prompts.mask.sum()) * config.group_size
            counts.tokens += world.sum(prompt_tokens + int(lengths.sum()))
            captions, scores = of_all_ranks(captions, world), join(world.gather(scores))
            row = {"step": counts.step} | step_metrics(captions, scores)
            row |= rewarding.metrics(reward, captions, scores)
            row |= {"grad_norm": mean(np.array(norms)), "lr": lr, "num_tokens": counts.tokens}
            row |= {} if weigh is None else weigh.metrics(world)
            row |= clock.seconds | {"step_time": time.perf_counter() - started}
            last = counts.step == n_steps
            if counts.step % config.eval_every == 0 or last:
                console.note("validating")
                with world.whole(learner, captioner):
                    row |= validate.row(
                        counts.step, captioner, corpus, reward, val_ids, config, folder,
                        best.floor, world,
                    )  # fmt: skip
            row = world.same(row)  # so that all ranks decide alike
            improved = best.see(row)
            history.append(row)
            folder.append(row)
            trackers.log(row)
            console.row(row)
            if counts.step % config.sample_every == 0:
                console.caption(captions.ids[0], captions.texts[0], float(scores.accuracy[0]))
            stopping, collapsed = world.any(stop()), collapse.reason(history, config)
            due = counts.step % config.checkpoint_every == 0 or improved or last or bool(collapsed)
            if due or (stopping and not pending):
                checkpoint.save(
                    folder.checkpoints, captioner, optimizer, counts, learner=learner, world=world
                )
                best.write()
                if world.first:
                    checkpoint.prune(
                        folder.checkpoints, config.keep_last, best.step, config.keep_every
                    )
            if collapsed:
                folder.write("stopped.json", {"step": counts.step, "reason": collapsed})
                raise CollapseError(f"ended at step {counts.step}: {collapsed}")
        if counts.step < n_steps:
            console.say(stopped(counts.step, checkpoint.steps(folder.checkpoints)))
            return False
        console.note("scoring the second fixed set")
        final = validate.final(config, corpus, reward, test_ids, folder, best.step, world)
        folder.write("final.json", final)
        console.say(
            f"second fixed set, {final['n']} items: accuracy {final['start_acc']:.3f} at the "
            f"start, {final['best_acc']:.3f} at step {best.step}, {final['floor']:.3f} blind"
        )
    return True


def ask(asking: Asking, parts: Iterator[Part], asker: Executor) -> Asking:
    """Asks for the rewards of each part of a rollout that is finished."""
    for part in parts:
        asking.ask(part, asker)
    return asking


def furthest(config: RlooConfig, step: int, n_steps: int) -> int:
    """The last step that may be sampled before the update of `step`.

    --async-depth steps further, but not past a validation or checkpoint: what a checkpoint holds
    is then all there is, and a resumed run samples what the uninterrupted one did.
    """
    ends = [-(-step // every) * every for every in (config.eval_every, config.checkpoint_every)]
    return min(step + config.async_depth, n_steps, *ends)


def run(config: RlooConfig) -> int:
    """`python -m trainer rloo`: corpus and reward from the settings, then `train`."""
    from lineup_fast.corpus import Corpus

    if config.threads:
        torch.set_num_threads(config.threads)
    try:
        world = World.join(config.device)
        if world.first:
            check_folder(config.run, resume=config.resume)  # before minutes of loading
        corpus = Corpus.load(config.corpus)
        reward = load_reward(config, corpus, world)
        with rewarding.closed_after(reward):
            finished = train(config, loading.training_series(config, corpus), reward, world=world)
        world.leave()
        return 0 if finished else 130
    except (ValueError, OSError, BackendError, CollapseError) as error:
        print(f"python -m trainer rloo: {one_line(error)}", file=sys.stderr)
        return 3 if isinstance(error, CollapseError) else 2
