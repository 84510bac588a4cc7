"""Sends the waves of a plan to a fleet and gathers the answers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from lineup_fast.verifiers.sglang_wire import PromptWriter, Reply

if TYPE_CHECKING:
    from lineup_fast.verifiers.fleet import Fleet
    from lineup_fast.verifiers.prefix_plan import Forest
    from lineup_fast.verifiers.replicas import Replica
    from lineup_fast.verifiers.waves import Plan, Unit

PARCEL = 32  # prompts of one request


async def run_waves(
    fleet: Fleet,
    forest: Forest,
    plan: Plan,
    options: dict[str, Any],
    deadline_s: float,
) -> dict[int, Reply | str]:
    """Of every question's node, the reply, or in words why there is none.

    Units run side by side, the waves of a unit one after the other. Once a caption has lost an
    answer it cannot be judged, and what nobody else asks of its questions is not sent any more.
    """
    runner = _Runner(fleet, forest, options)
    head = asyncio.Event()
    try:
        async with asyncio.timeout(deadline_s), fleet.call(), asyncio.TaskGroup() as tasks:
            for number, unit in enumerate(plan.units):
                tasks.create_task(runner.unit(unit, head))
                if number == 0 and plan.head_first:
                    await head.wait()
    except TimeoutError:
        runner.give_up(plan, f"no answer within {deadline_s:g} s")
    return runner.found


class _Runner:
    def __init__(self, fleet: Fleet, forest: Forest, options: dict[str, Any]) -> None:
        self.found: dict[int, Reply | str] = {}
        self._fleet = fleet
        self._writer = PromptWriter(forest)
        self._options = options
        self._captions: dict[int, list[tuple[int, int]]] = {}  # who asks the question of a node
        for tree, table in enumerate(forest.questions):
            for caption, row in enumerate(table.tolist()):
                for node in row:
                    self._captions.setdefault(node, []).append((tree, caption))
        self._lost: dict[tuple[int, int], str] = {}

    async def unit(self, unit: Unit, first_wave: asyncio.Event) -> None:
        """Ask a unit's questions; sets the event once its first wave is answered."""
        async with self._fleet.place(unit.tokens) as replica:
            for wave in unit.waves:
                nodes = [prompt.node for prompt in wave if not self._given_up(prompt.node)]
                parcels = [nodes[at : at + PARCEL] for at in range(0, len(nodes), PARCEL)]
                await asyncio.gather(*(self._parcel(replica, parcel) for parcel in parcels))
                first_wave.set()

    def give_up(self, plan: Plan, reason: str) -> None:
        """The same reason for all that has no answer."""
        for unit in plan.units:
            for prompt in unit.prompts():
                self.found.setdefault(prompt.node, reason)

    async def _parcel(self, replica: Replica, nodes: list[int]) -> None:
        answers = await self._fleet.ask(replica, self._writer, nodes, self._options)
        for node, answer in zip(nodes, answers, strict=True):
            self.found[node] = answer
            if isinstance(answer, str):
                for caption in self._captions[node]:
                    self._lost.setdefault(caption, answer)

    def _given_up(self, node: int) -> bool:
        """Whether every caption that asks this question has lost an answer already."""
        askers = self._captions[node]
        if not all(caption in self._lost for caption in askers):
            return False
        self.found[node] = self._lost[askers[0]]
        return True
