"""Single captions from many callers, scored together.

Callers hand in captions one at a time; one worker thread takes what has gathered, equal captions
once, and scores it as one batch. Groups of which all G captions are there go first: their prefix
is then paid once. Incomplete ones go when nothing complete waits and no more are coming in.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lineup_fast.reward_rows import free_of_charge, join, split
from lineup_fast.rewards import without_answer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lineup_fast.rewards import IdentificationReward, RewardBatch

    GroupKey = tuple[str, int | None]  # item, draw index
    AskKey = tuple[str, int | None, str]

log = logging.getLogger(__name__)

PATIENCE_S = 1.0  # how long complete groups may overtake an incomplete one
QUIET_SHARE = 0.25  # of the gathering time without a newcomer: nobody else is coming
COUNTED_GROUPS = 1 << 16  # groups whose captions are counted, the latest
PACE = 0.2  # weight of the latest batch in the seconds that a caption takes


class QueueFullError(Exception):
    """Too many captions wait; try again in ``retry_after_s`` seconds."""

    def __init__(self, waiting: int, retry_after_s: float) -> None:
        super().__init__(f"queue: {waiting} captions are waiting, which is as many as may")
        self.retry_after_s = retry_after_s


@dataclass(eq=False)
class _Ask:
    """A caption to be scored once, whoever waits for it."""

    key: AskKey
    tickets: list[Ticket] = field(default_factory=list)
    started: bool = False
    row: RewardBatch | None = None
    charged: bool = False


@dataclass(eq=False)
class Ticket:
    """Captions that one caller waits for; ``future`` gets their rewards as one batch."""

    asks: list[_Ask]
    missing: int
    future: Future[RewardBatch] = field(default_factory=Future)
    since: float = field(default_factory=time.perf_counter)

    def collect(self) -> RewardBatch:
        """The rewards, each caption's cost charged to whoever collects it first."""
        rows = []
        for ask in self.asks:
            assert ask.row is not None
            rows.append(free_of_charge(ask.row) if ask.charged else ask.row)
            ask.charged = True
        batch = join(rows)
        batch.timings["total_s"] = time.perf_counter() - self.since
        return batch


@dataclass(eq=False)
class _Group:
    """Waiting captions of one item and draw."""

    asks: dict[str, _Ask]
    since: float
    complete: bool = False


@dataclass
class Tally:
    """What a coalescer did so far."""

    captions: int = 0
    same_as_waiting: int = 0
    remembered: int = 0
    dropped: int = 0
    batches: int = 0
    scored: int = 0
    invalid: int = 0
    prefilled_tokens: int = 0
    prompt_tokens: int = 0
    verifier_s: float = 0.0
    queue_s: float = 0.0


class Coalescer:
    """Scores captions of many callers in batches, on a thread of its own.

    reward: what scores them. group_size: G where captions come in groups, None where nothing is
    known about them. gather_s: how long an idle worker waits for company, at most. max_batch:
    captions of one call. max_waiting: captions that may wait. remember: valid answers kept, so that
    a retry costs nothing.
    """

    def __init__(
        self,
        reward: IdentificationReward,
        *,
        group_size: int | None = None,
        gather_s: float = 0.01,
        max_batch: int = 512,
        max_waiting: int = 4096,
        remember: int = 4096,
    ) -> None:
        for name, value in (("max_batch", max_batch), ("max_waiting", max_waiting)):
            if value < 1:
                raise ValueError(f"{name}: expected at least 1, got {value}")
        if not gather_s >= 0:
            raise ValueError(f"gather_s: expected 0 or more, got {gather_s}")
        self.reward = reward
        self.tally = Tally()
        self.max_waiting = max_waiting
        self._group_size = group_size
        self._gather_s = gather_s
        self._max_batch = max_batch
        self._remember = remember
        self._changed = threading.Condition()
        self._groups: dict[GroupKey, _Group] = {}
        self._asks: dict[AskKey, _Ask] = {}  # waiting and being scored
        self._answers: OrderedDict[AskKey, RewardBatch] = OrderedDict()
        self._counted: OrderedDict[GroupKey, int] = OrderedDict()
        self._waiting = 0
        self._latest = 0.0
        self._caption_s = 0.0
        self._closing = False
        self._worker = threading.Thread(target=self._run, name="lineup-score", daemon=True)
        self._worker.start()

    @property
    def waiting(self) -> int:
        """Captions that wait for the worker."""
        return self._waiting

    @property
    def alive(self) -> bool:
        """Whether the worker runs."""
        return self._worker.is_alive()

    def check_room(self, n: int) -> None:
        """Raises QueueFullError where n more captions may not wait."""
        if self._waiting + n > self.max_waiting:
            seconds = self._caption_s * self._waiting
            raise QueueFullError(self._waiting, min(60.0, max(1.0, seconds)))

    def submit(
        self, captions: Sequence[str], ids: Sequence[str], indices: Sequence[int | None]
    ) -> Ticket:
        """Hand in captions, at least one; raises QueueFullError."""
        now = time.monotonic()
        with self._changed:
            self.check_room(len(captions))
            ticket = Ticket([], 0)
            for caption, item, index in zip(captions, ids, indices, strict=True):
                ticket.asks.append(self._ask((item, index, caption), ticket, now))
            self.tally.captions += len(captions)
            self._latest = now
            self._changed.notify()
        if not ticket.missing:
            ticket.future.set_result(ticket.collect())
        return ticket

    def drop(self, ticket: Ticket) -> None:
        """Nobody waits for this any more: what has not begun and no other wants is not scored."""
        with self._changed:
            for ask in ticket.asks:
                if ticket in ask.tickets:
                    ask.tickets.remove(ticket)
                    if not ask.tickets and not ask.started:
                        self._forget(ask)

    def close(self, timeout_s: float | None = None) -> bool:
        """Score what waits, then stop; whether that came to an end in time."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._worker.join(timeout_s)
        return not self._worker.is_alive()

    def _ask(self, key: AskKey, ticket: Ticket, now: float) -> _Ask:
        """The caption's place, new or shared. Called with the lock."""
        item, index, caption = key
        group_key = (item, index)
        count = self._counted.pop(group_key, 0) + 1
        self._counted[group_key] = count
        if len(self._counted) > COUNTED_GROUPS:
            self._counted.popitem(last=False)
        row = self._answers.get(key)
        if row is not None:
            self._answers.move_to_end(key)
            self.tally.remembered += 1
            return _Ask(key, started=True, row=row, charged=True)
        ask = self._asks.get(key)
        if ask is None:
            ask = self._asks[key] = _Ask(key)
            self._groups.setdefault(group_key, _Group({}, now)).asks[caption] = ask
            self._waiting += 1
        else:
            self.tally.same_as_waiting += 1
        if ticket not in ask.tickets:
            ask.tickets.append(ticket)
            ticket.missing += 1
        group = self._groups.get(group_key)
        if group is not None and index is not None and self._group_size is not None:
            group.complete = count >= self._group_size
        return ask

    def _forget(self, ask: _Ask) -> None:
        """Take a waiting caption out. Called with the lock."""
        item, index, caption = ask.key
        group = self._groups[item, index]
        del self._asks[ask.key], group.asks[caption]
        if not group.asks:
            del self._groups[item, index]
        if (item, index) in self._counted:
            self._counted[item, index] -= 1
        self._waiting -= 1
        self.tally.dropped += 1

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._groups and not self._closing:
                    while not self._groups and not self._closing:
                        self._changed.wait()
                    self._gather()
                if not self._groups:
                    if self._closing:
                        return
                    continue  # what was gathered has been dropped
                asks = self._take(time.monotonic())
            self._answer(asks)

    def _gather(self) -> None:
        """Wait for company: until a group is complete, nobody comes any more, or it takes too long.

        Called with the lock, by an idle worker.
        """
        end = time.monotonic() + self._gather_s
        while not self._closing and not any(g.complete for g in self._groups.values()):
            wait = min(end, self._latest + QUIET_SHARE * self._gather_s) - time.monotonic()
            if wait <= 0:
                return
            self._changed.wait(wait)

    def _take(self, now: float) -> list[_Ask]:
        """The captions to be scored next. Called with the lock."""
        keys = [
            key
            for key, group in self._groups.items()
            if group.complete or now - group.since > PATIENCE_S
        ]
        if not keys:
            coming = now - self._latest < QUIET_SHARE * self._gather_s
            if self._group_size is None or not coming or self._closing:
                keys = list(self._groups)
            else:  # siblings are on their way: begin with the group that lacks the fewest
                keys = [max(self._groups, key=lambda key: len(self._groups[key].asks))]
        asks: list[_Ask] = []
        for key in keys:
            group = self._groups[key]
            if asks and len(asks) + len(group.asks) > self._max_batch:
                break
            asks += group.asks.values()
            del self._groups[key]
            if group.complete:
                self._counted.pop(key, None)
        for ask in asks:
            ask.started = True
        self._waiting -= len(asks)
        self.tally.queue_s += sum(
            time.perf_counter() - ticket.since for ask in asks for ticket in ask.tickets[:1]
        )
        return sorted(asks, key=lambda ask: ask.key[0])  # draws of a series side by side

    def _answer(self, asks: list[_Ask]) -> None:
        """Score captions and tell everybody who waits for them."""
        start = time.perf_counter()
        batch = self._score([ask.key for ask in asks])
        seconds = time.perf_counter() - start
        log.info(
            "%d captions in %d groups, %d of %d tokens prefilled, %.2f s",
            len(asks),
            batch.counts["groups"],
            batch.counts["prefilled_tokens"],
            batch.counts["prompt_tokens"],
            seconds,
        )
        done: list[tuple[Ticket, RewardBatch]] = []
        with self._changed:
            self._caption_s += PACE * (seconds / len(asks) - self._caption_s)
            for ask, row in zip(asks, split(batch), strict=True):
                ask.row = row
                del self._asks[ask.key]
                if row.valid[0]:
                    self._answers[ask.key] = row
                for ticket in ask.tickets:
                    ticket.missing -= 1
                    if not ticket.missing:
                        done.append((ticket, ticket.collect()))
            while len(self._answers) > self._remember:
                self._answers.popitem(last=False)
            self._count(batch, seconds)
        for ticket, answer in done:
            if ticket.future.set_running_or_notify_cancel():
                ticket.future.set_result(answer)

    def _score(self, keys: list[AskKey]) -> RewardBatch:
        """Rewards of captions; where scoring breaks, the reason in words."""
        items, indices, captions = zip(*keys, strict=True)
        try:
            return self.reward.score(captions, items, index=indices)
        except Exception as error:
            groups: dict[GroupKey, list[int]] = {}
            for at, (item, index, _) in enumerate(keys):
                groups.setdefault((item, index), []).append(at)
            if len(groups) == 1:
                log.exception("scoring captions of %s failed", items[0])
                return without_answer(
                    f"{type(error).__name__}: {error}",
                    indices,
                    k=self.reward.recipe.k,
                    recipe=self.reward.recipe.name,
                    fingerprints=self.reward.fingerprints,
                )
        # One group may be at fault: score each alone, so that the others still count.
        parts: dict[int, RewardBatch] = {}
        for members in groups.values():
            batch = self._score([keys[at] for at in members])
            parts |= dict(zip(members, split(batch), strict=True))
        return join([parts[at] for at in range(len(keys))])

    def _count(self, batch: RewardBatch, seconds: float) -> None:
        tally = self.tally
        tally.batches += 1
        tally.scored += batch.counts["captions"]
        tally.invalid += batch.counts["invalid"]
        tally.prefilled_tokens += batch.counts["prefilled_tokens"]
        tally.prompt_tokens += batch.counts["prompt_tokens"]
        tally.verifier_s += seconds
