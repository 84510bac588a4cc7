"""OpenRLHF (0.11): ``--reward.remote_url …/lineup_fast/adapters/openrlhf.py``.

A file takes no arguments, so the environment does: LINEUP_URL (servers, separated by commas),
LINEUP_TOKEN, LINEUP_FALLBACK. The server's own ``/get_reward`` speaks OpenRLHF's HTTP contract:
``--reward.remote_url http://127.0.0.1:8900/get_reward`` needs no file at all.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from functools import cache
from typing import Any

from lineup_fast.client import RewardClient
from lineup_fast.openrlhf_contract import caption_of, item_of

log = logging.getLogger(__name__)

GUESS = 0.5  # reward 2 x accuracy 1/4: what guessing among four candidates earns


@cache
def _client(urls: str) -> RewardClient:
    return RewardClient(urls.split(","))


def reward_func(
    queries: Sequence[str], prompts: Sequence[str], labels: Sequence[str], **others: Any
) -> dict[str, Any]:
    """OpenRLHF's dictionary for the captions in the queries (it sends one at a time).

    The caption is cut out of the query behind the assistant's marker; the label names the item
    ({"uid": …} as JSON). OpenRLHF swallows exceptions and breaks later, so a caption without an
    answer gets the reward of guessing (LINEUP_FALLBACK, default 0.5), ``lineup_failed`` 1 in
    extra_logs and a warning. Raises: ValueError on rows that can never be scored.
    """
    del others
    url = os.environ.get("LINEUP_URL")
    if not url:
        raise ValueError("LINEUP_URL: expected the URL of a reward server, got nothing")
    fallback = float(os.environ.get("LINEUP_FALLBACK", GUESS))
    captions = [caption_of(*pair) for pair in zip(queries, prompts, strict=True)]
    items = [item_of(label) for label in labels]
    given = [index for _, index in items if index is not None]
    if given and len(given) < len(items):
        raise ValueError("labels: expected an index in all of them or in none")
    batch = _client(url).score(captions, [item for item, _ in items], index=given or None)
    for reason in filter(None, batch.reason):
        log.warning("no answer, reward %g: %s", fallback, reason)
    valid = batch.valid.tolist()
    rewards = [float(r) if ok else fallback for r, ok in zip(batch.reward, valid, strict=True)]
    scores = [float(a) if ok else -1.0 for a, ok in zip(batch.accuracy, valid, strict=True)]
    failed = [float(not ok) for ok in valid]
    if len(rewards) == 1:
        return {
            "rewards": rewards[0],
            "scores": scores[0],
            "extra_logs": {"lineup_acc": scores[0], "lineup_failed": failed[0]},
        }
    logs = {"lineup_acc": scores, "lineup_failed": failed}
    return {"rewards": rewards, "scores": scores, "extra_logs": logs}
