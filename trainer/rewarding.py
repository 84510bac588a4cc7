"""Rewards as the trainer asks for them: from reward servers, and from a verifier that sleeps."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from lineup_fast.candidates import CandidateError
from lineup_fast.client import RewardClient

if TYPE_CHECKING:
    from lineup_fast.rewards import RewardBatch
    from trainer.rollouts import Rollout
    from trainer.validate import Reward, Series


class Engine(Protocol):
    """Holds device memory that it can give back; `lineup_fast.verifiers.sglang` has one."""

    asleep: bool

    def sleep(self) -> None: ...

    def wake(self) -> None: ...


class ServedReward:
    """Rewards of servers that score alike, each call to the least busy one.

    corpus: fingerprint, recipe: name, of what the servers must score by.

    Raises:
        BackendError: a server does not answer.
    """

    def __init__(self, urls: Sequence[str], *, corpus: str, recipe: str) -> None:
        self._expected = {"corpus": corpus, "recipe": recipe}
        self._client = RewardClient(list(urls))
        try:
            self._client.health()
        except BaseException:
            self._client.close()
            raise

    def score(
        self, captions: Sequence[str], ids: Sequence[str], *, index: int | None = None
    ) -> RewardBatch:
        """See `Reward`.

        Raises:
            ValueError: the servers score by another corpus or recipe.
        """
        batch = self._client.score(captions, ids, index=index, fixed=index is None)
        if batch.recipe:  # a call that failed names none
            found = {"corpus": batch.fingerprints.get("corpus"), "recipe": batch.recipe}
            if found != self._expected:
                raise ValueError(f"reward_url: expected servers of {self._expected}, got {found}")
        return batch

    def close(self) -> None:
        """Ends the connections."""
        self._client.close()


class SleepingReward:
    """A reward whose verifier is woken when it is asked and sleeps when it is idle."""

    def __init__(self, reward: Any, engine: Engine) -> None:
        self._reward, self._engine = reward, engine
        self._lock = threading.Lock()  # nothing is asked while it goes to sleep
        self.sleep()

    def score(
        self, captions: Sequence[str], ids: Sequence[str], *, index: int | None = None
    ) -> RewardBatch:
        """See `Reward`."""
        with self._lock:
            if self._engine.asleep:
                self._engine.wake()
            batch: RewardBatch = self._reward.score(captions, ids, index=index)
            return batch

    def prepare(self, ids: Sequence[str], index: int) -> None:
        """See :func:`prepare`."""
        prepare(self._reward, ids, index)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reward, name)

    def sleep(self) -> None:
        """Gives the verifier's memory back until it is asked again."""
        with self._lock:
            if not self._engine.asleep:
                self._engine.sleep()


def prepare(reward: Reward, ids: Sequence[str], index: int) -> None:
    """Lets a reward that can get ready for the questions about the items at a draw."""
    if hasattr(reward, "prepare"):
        reward.prepare(ids, index)


def metrics(reward: Reward, captions: Rollout, scores: RewardBatch) -> dict[str, Any]:
    """What a reward records of its own about a step."""
    if not hasattr(reward, "metrics"):
        return {}
    found: dict[str, Any] = reward.metrics(scores, np.array([len(t) for t in captions.token_ids]))
    return found


def facts(reward: Reward) -> dict[str, Any]:
    """What a reward has to say of itself in the settings of a run."""
    of_corpus = getattr(getattr(reward, "corpus", None), "facts", {})
    return {**of_corpus, **getattr(reward, "facts", {})}


def distractors(reward: Reward, corpus: Series, item: str, n: int) -> list[str]:
    """Names of the n others of an item's fixed question; none where it is not about candidates.

    What the reward itself asks counts, where it says so; else the nearest neighbours.
    """
    if not hasattr(reward, "candidates"):
        return corpus.pool(item)[:n]
    try:
        return list(reward.candidates(item).distractors)
    except CandidateError:
        return []


@contextmanager
def closed_after(reward: Reward) -> Iterator[None]:
    """Ends the connections of a reward's verifier or servers, if it has any, at the end."""
    try:
        yield
    finally:
        holder = getattr(reward, "verifier", reward)
        if hasattr(holder, "close"):
            holder.close()


def idle(reward: Reward) -> None:
    """Tells a reward that sleeps that nothing is asked for a while."""
    if hasattr(reward, "sleep"):
        reward.sleep()
