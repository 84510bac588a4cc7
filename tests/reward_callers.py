"""Processes that ask a reward server one caption at a time, also as a program.

``python -m tests.reward_callers URL PLAN.json``: reads the calls of one process from the plan, says
"ready", waits for a line, makes all calls at once, and prints its answers and CPU seconds as JSON.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lineup_fast.client import RewardClient

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Call:
    """One caption of one item; index None: the server counts."""

    caption: str
    item: str
    index: int | None = None


def ask_at_once(urls: list[str], plan: list[list[Call]], folder: Path) -> tuple[list[Any], float]:
    """Answers of every process's calls in order, and the wall seconds from start to end."""
    children = []
    for number, calls in enumerate(plan):
        file = folder / f"plan{number}.json"
        file.write_text(json.dumps([[call.caption, call.item, call.index] for call in calls]))
        children.append(
            subprocess.Popen(
                [sys.executable, "-m", "tests.reward_callers", ",".join(urls), str(file)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=ROOT,
            )
        )
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    start = time.perf_counter()
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    outputs = [child.communicate()[0] for child in children]
    wall_s = time.perf_counter() - start
    assert [child.returncode for child in children] == [0] * len(children)
    return [json.loads(output) for output in outputs], wall_s


async def _ask(client: RewardClient, calls: list[list[Any]]) -> list[dict[str, Any]]:
    batches = await asyncio.gather(
        *(client.ascore([caption], [item], index=index) for caption, item, index in calls)
    )
    return [
        {"reward": float(batch.reward[0]), "index": batch.index[0], "reason": batch.reason[0]}
        for batch in batches
    ]


def main(urls: str, plan: str) -> None:
    calls = json.loads(Path(plan).read_text())
    with RewardClient(urls.split(",")) as client:
        client.health()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        sys.stdin.readline()
        before = time.process_time()
        answers = asyncio.run(_ask(client, calls))
        sys.stdout.write(json.dumps({"answers": answers, "cpu_s": time.process_time() - before}))


if __name__ == "__main__":
    main(*sys.argv[1:])
