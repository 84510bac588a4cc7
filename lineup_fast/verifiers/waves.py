"""In which order prompts go to an engine with a prefix cache, so that it computes a prefix once.

Such an engine (SGLang's radix tree) knows a prefix only after it has answered a prompt that starts
with it; prompts that arrive together do not see each other. So one prompt of every distinct prefix
goes first, as its leader, and the others follow when the leader is answered, at every depth of the
prompt tree. The leader is always one of the questions themselves: no request is made for the sake
of the cache alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lineup_fast.verifiers.prefix_plan import Forest

MIN_SAVING = 16  # tokens that waiting has to save; below that a prefix is computed again instead


@dataclass(frozen=True)
class Prompt:
    """One question to send: the node of the forest that ends it, its length in tokens, and how many
    of them earlier waves of its unit have computed."""

    node: int
    tokens: int
    cached: int


@dataclass(frozen=True)
class Unit:
    """Prompts that wait for each other and for nobody else.

    waves: prompts to send together, wave after wave; every prefix that a prompt counts as cached
    is one of a prompt of an earlier wave. tokens: distinct tokens of all its prompts.
    """

    waves: list[list[Prompt]]
    tokens: int

    def prompts(self) -> list[Prompt]:
        """All prompts, wave after wave."""
        return [prompt for wave in self.waves for prompt in wave]


@dataclass(frozen=True)
class Plan:
    """Units to run side by side; head_first: only once the first wave of the first is answered."""

    units: list[Unit]
    head_first: bool


def plan(forest: Forest, *, min_saving: int = MIN_SAVING) -> Plan:
    """Units of waves that ask every question of the forest once.

    A prefix of n own tokens that is continued in c ways is waited for where that saves at least
    ``min_saving`` tokens, (c − 1)·n. The wait costs one round trip of its unit, which other units
    fill. Nothing fills a wait for the head of all prompts: it has to save more tokens than its
    leader's prompt has.
    """
    return _Planner(forest, min_saving).plan()


class _Planner:
    def __init__(self, forest: Forest, min_saving: int) -> None:
        self._forest = forest
        count = len(forest.ids)
        self._end = [start + len(ids) for start, ids in zip(forest.start, forest.ids, strict=True)]
        self._children: list[list[int]] = [[] for _ in range(count)]
        for node, parent in enumerate(forest.parent):
            if parent >= 0:
                self._children[parent].append(node)
        asked = {node for table in forest.questions for node in table.ravel().tolist()}
        self._asked = [node in asked for node in range(count)]
        self._waits = [False] * count  # whether the ways on from a node wait for its leader
        self._rank = [1] * count  # waves that the questions from here on take
        for node in reversed(range(count)):
            self._measure(node, min_saving)

    def plan(self) -> Plan:
        """See :func:`plan`."""
        units: list[Unit] = []
        roots = [node for node, parent in enumerate(self._forest.parent) if parent < 0]
        pending = roots[::-1]
        while pending:
            node = pending.pop()
            if not self._children[node] or self._waits[node]:
                units.append(self._unit(node))
                continue
            if self._asked[node]:
                units.append(Unit([[Prompt(node, self._end[node], 0)]], self._end[node]))
            pending += self._children[node][::-1]
        head_first = False
        if len(roots) == 1:
            saving = (len(units) - 1) * len(self._forest.ids[roots[0]])
            head_first = saving > units[0].waves[0][0].tokens
        return Plan(units, head_first)

    def _measure(self, node: int, min_saving: int) -> None:
        """Waves, order of ways and whether to wait at one node, its children being known."""
        ways = sorted(self._children[node], key=lambda child: -self._rank[child])
        self._children[node] = ways  # the leader goes on where most waves follow
        if not ways:
            return
        ranks = [self._rank[child] for child in ways] + [1] * self._asked[node]
        saving = (len(ranks) - 1) * len(self._forest.ids[node])
        # Everything has the head: a wait there would make one unit of it all.
        self._waits[node] = self._forest.parent[node] >= 0 and saving >= min_saving
        self._rank[node] = max(ranks[0], max(ranks[1:], default=0) + self._waits[node])

    def _unit(self, node: int) -> Unit:
        waves: list[list[Prompt]] = [[] for _ in range(self._rank[node])]
        tokens = self._emit(node, 0, 0, waves)
        return Unit(waves, self._forest.start[node] + tokens)

    def _emit(self, node: int, wave: int, cached: int, waves: list[list[Prompt]]) -> int:
        """Put the questions from ``node`` on into the waves; returns the tokens of these nodes."""
        tokens = len(self._forest.ids[node])
        waits = self._waits[node]
        for number, child in enumerate(self._children[node]):
            late = waits and number > 0
            tokens += self._emit(child, wave + late, self._end[node] if late else cached, waves)
        if self._asked[node]:
            late = waits and bool(self._children[node])
            # An engine computes the last token of a prompt even where it has all of it.
            held = self._end[node] - 1 if late else cached
            waves[wave + late].append(Prompt(node, self._end[node], held))
        return tokens
