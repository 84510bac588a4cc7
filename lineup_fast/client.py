"""The reward behind one call, in this process or over HTTP.

Retries, deadlines and what a failure means live here and nowhere else: an adapter maps its host's
fields onto ``RewardClient`` and leaves the rest to it.
"""

from __future__ import annotations

import asyncio
import os
import threading
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from lineup_fast.reward_calls import ServerCalls
from lineup_fast.rewards import without_answer
from lineup_fast.verifiers.base import BackendError
from lineup_fast.wire import ScoreRequest

if TYPE_CHECKING:
    from lineup_fast.draw_counter import DrawCounter
    from lineup_fast.rewards import IdentificationReward, RewardBatch


class RewardClient:
    """Rewards from an ``IdentificationReward`` or from reward servers, with the same words.

    reward: the reward itself, the URL of a server ("http://127.0.0.1:8900"), or several URLs of
    servers that score alike: each call goes to the least busy one that answers. token: of the
    servers, else the environment's LINEUP_TOKEN. deadline_s: of a call with all its retries, over
    HTTP. retries: tries after the first that failed; a server that is busy (429) is not a failure,
    it is asked again when it says until the deadline. on_failure: "invalid" gives captions without
    an answer valid=False and the reason, "raise" raises BackendError. group_size: in this process,
    counts captions per item where no draw index is given, as a server does.

    Works from threads, inside running event loops, after a fork, and can be pickled. Proxies in the
    environment are not used.
    """

    def __init__(
        self,
        reward: IdentificationReward | str | Sequence[str],
        *,
        token: str | None = None,
        deadline_s: float = 600.0,
        retries: int = 8,
        on_failure: Literal["invalid", "raise"] = "invalid",
        group_size: int | None = None,
    ) -> None:
        if on_failure not in ("invalid", "raise"):
            raise ValueError(f"on_failure: expected invalid or raise, got {on_failure!r}")
        if not deadline_s > 0:
            raise ValueError(f"deadline_s: expected more than 0, got {deadline_s}")
        if retries < 0:
            raise ValueError(f"retries: expected 0 or more, got {retries}")
        self._raise = on_failure == "raise"
        self._here: IdentificationReward | None = None
        self._there: ServerCalls | None = None
        self._counter: DrawCounter | None = None
        self._lock = threading.Lock()
        if isinstance(reward, str | Sequence):
            if group_size is not None:
                raise ValueError("group_size: expected None with a server, which has its own")
            urls = [reward] if isinstance(reward, str) else list(reward)
            token = token if token is not None else os.environ.get("LINEUP_TOKEN")
            self._there = ServerCalls(urls, token, deadline_s, retries)
            return
        self._here = reward
        if group_size is not None:
            from lineup_fast.draw_counter import DrawCounter

            self._counter = DrawCounter(group_size)

    def score(
        self,
        captions: Sequence[str],
        ids: Sequence[str],
        *,
        index: int | Sequence[int] | None = None,
        fixed: bool = False,
        request_ids: Sequence[str] | None = None,
    ) -> RewardBatch:
        """Rewards of captions, each of the item at the same place in ``ids``.

        index: the draw (the training step where the host knows it), one for all or one each; None
        lets the captions of an item be counted. fixed: ask the fixed validation sets. request_ids:
        one per caption, the same again when the host itself repeats a call; made up by default.
        Raises: ValueError on bad input, BackendError after the retries with on_failure="raise".
        """
        request = _request(captions, ids, index, fixed, request_ids)
        if self._here is not None:
            return self._score_here(self._here, request)
        assert self._there is not None
        batch = self._there.wait(request) if request.captions else None
        return self._checked(batch, request)

    async def ascore(
        self,
        captions: Sequence[str],
        ids: Sequence[str],
        *,
        index: int | Sequence[int] | None = None,
        fixed: bool = False,
        request_ids: Sequence[str] | None = None,
    ) -> RewardBatch:
        """As :meth:`score`, without blocking the running event loop."""
        request = _request(captions, ids, index, fixed, request_ids)
        if self._here is not None:
            return await asyncio.to_thread(self._score_here, self._here, request)
        assert self._there is not None
        if not request.captions:
            return self._checked(None, request)
        batch = await asyncio.wrap_future(self._there.submit(request))
        return self._checked(batch, request)

    def health(self) -> None:
        """Ask every server whether it is there; raises BackendError where one does not answer."""
        if self._there is not None:
            self._there.check_health()

    def close(self) -> None:
        """Close connections; a later call opens new ones."""
        if self._there is not None:
            self._there.close()

    def __enter__(self) -> RewardClient:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    def _score_here(self, reward: IdentificationReward, request: ScoreRequest) -> RewardBatch:
        index: Sequence[int] | None = request.index
        if index is None and not request.fixed:
            if self._counter is None:
                raise ValueError(
                    "index: expected the draw of each caption, or a client with group_size"
                )
            index = self._counter.assign(request.ids, request.request_ids)
        with self._lock:
            return reward.score(request.captions, request.ids, index=index)

    def _checked(self, batch: RewardBatch | str | None, request: ScoreRequest) -> RewardBatch:
        """The answer, or what stands for none."""
        if isinstance(batch, str) and self._raise:
            raise BackendError(batch)
        if batch is None or isinstance(batch, str):
            assert self._there is not None
            index: Sequence[int | None] = request.index or [None] * len(request.captions)
            return without_answer(batch or "", index, k=self._there.k)
        return batch


def _request(
    captions: Sequence[str],
    ids: Sequence[str],
    index: int | Sequence[int] | None,
    fixed: bool,
    request_ids: Sequence[str] | None,
) -> ScoreRequest:
    """A checked request, with ids of its own so that a retry is known as one."""
    if isinstance(captions, str) or isinstance(ids, str):
        raise ValueError("captions, ids: expected sequences of strings, got a string")
    captions, ids = list(captions), list(ids)
    n = len(captions)
    for name, texts in (("captions", captions), ("ids", ids), ("request_ids", request_ids)):
        if texts is not None and not all(isinstance(text, str) for text in texts):
            raise ValueError(f"{name}: expected strings")
        if texts is not None and len(texts) != n:
            raise ValueError(f"{name}: expected one per caption ({n}), got {len(texts)}")
    if fixed and index is not None:
        raise ValueError("index: expected None with fixed, which has no draw")
    numbers: list[int] | None = None
    if index is not None:
        given: Any = index if hasattr(index, "__len__") else [index] * n
        numbers = [_whole(number) for number in given]
        if len(numbers) != n:
            raise ValueError(f"index: expected one per caption ({n}), got {len(numbers)}")
    made = list(request_ids) if request_ids is not None else None
    if made is None and numbers is None and not fixed:
        call = uuid.uuid4().hex
        made = [f"{call}.{at}" for at in range(n)]
    return ScoreRequest(captions, ids, numbers, fixed, made)


def _whole(number: Any) -> int:
    """An integer, numpy's included."""
    if isinstance(number, bool) or not hasattr(number, "__index__"):
        raise ValueError(f"index: expected integers, got {number!r}")
    return int(number)
