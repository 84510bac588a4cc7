"""verl (0.9): a score function for single samples, and a reward manager of the reward loop.

Score function: ``reward.custom_reward_function.path=pkg://lineup_fast.adapters.verl``,
``.name=compute_score``, ``.reward_kwargs.url=http://127.0.0.1:8900``. Reward manager, which reads
the response once and needs no reward_model column: ``reward.reward_manager.source=importlib``,
``.name=LineupRewardManager``, ``.module.path=pkg://lineup_fast.adapters.verl``, with
``+reward.lineup.url=http://127.0.0.1:8900``.

verl asks for one sample at a time from several processes; the reward server gathers them.
"""

from __future__ import annotations

import asyncio
from functools import cache
from typing import TYPE_CHECKING, Any

from lineup_fast.client import RewardClient
from lineup_fast.verifiers.base import BackendError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lineup_fast.rewards import RewardBatch


@cache
def _client(urls: str, token: str | None, deadline_s: float) -> RewardClient:
    """One client per process and set of servers (URLs separated by commas)."""
    return RewardClient(urls.split(","), token=token, deadline_s=deadline_s)


async def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: Mapping[str, Any] | None = None,
    *,
    url: str,
    token: str | None = None,
    deadline_s: float = 600.0,
    fallback: float | None = None,
    **others: Any,
) -> dict[str, float]:
    """verl's dictionary for one caption: score, and what goes into its metrics.

    The item is ``extra_info["uid"]``, else ``ground_truth``; the server counts the draws. url:
    servers, separated by commas. fallback: score of a caption without an answer, marked by
    ``lineup_failed`` 1; None raises BackendError, which stops the run.
    """
    del data_source, others
    uid = str((extra_info or {}).get("uid", ground_truth))
    batch = await _client(url, token, deadline_s).ascore([solution_str], [uid])
    return score_fields(batch, fallback)


def score_fields(batch: RewardBatch, fallback: float | None) -> dict[str, float]:
    """The same keys for every sample, as verl wants; lineup_acc of a failure is -1."""
    if batch.valid[0]:
        return {
            "score": float(batch.reward[0]),
            "lineup_acc": float(batch.accuracy[0]),
            "lineup_failed": 0.0,
        }
    if fallback is None:
        raise BackendError(f"reward: expected an answer, got none ({batch.reason[0]})")
    return {"score": fallback, "lineup_acc": -1.0, "lineup_failed": 1.0}


@cache
def _manager() -> type:
    from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase

    class LineupRewardManager(RewardManagerBase):
        """Decodes a response and asks the reward server; settings under ``reward.lineup``."""

        def __init__(
            self, config: Any, tokenizer: Any, compute_score: Any = None, **others: Any
        ) -> None:
            del others
            super().__init__(config, tokenizer, compute_score)
            settings = config.reward.get("lineup") or {}
            if not settings.get("url"):
                raise ValueError("reward.lineup.url: expected the URL of a reward server, got none")
            self.settings = settings

        async def run_single(self, data: Any) -> dict[str, Any]:
            """Score of the last sequence of ``data``."""
            item = data[-1:][0]
            ids = item.batch["responses"]
            length = int(item.batch["attention_mask"][-ids.shape[-1] :].sum())
            text = await asyncio.to_thread(
                self.tokenizer.decode, ids[:length], skip_special_tokens=True
            )
            columns = item.non_tensor_batch
            fields = await compute_score(
                str(columns.get("data_source", "")),
                text,
                str((columns.get("reward_model") or {}).get("ground_truth", "")),
                columns.get("extra_info"),
                url=self.settings["url"],
                token=self.settings.get("token"),
                deadline_s=float(self.settings.get("deadline_s", 600.0)),
                fallback=self.settings.get("fallback"),
            )
            return {"reward_score": fields["score"], "reward_extra_info": dict(fields)}

    return LineupRewardManager


def __getattr__(name: str) -> Any:
    if name == "LineupRewardManager":  # made when verl asks for it: its base class is verl's
        return _manager()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
