"""Our trainer against TRL's RLOOTrainer: steps a minute, and memory above the loaded model.

Each runs in its own environment and process, in turns: same tiny captioner and charts, the same
scripted reward, B 16, G 8, at most 48 tokens, one update a step, float32, one thread. The captioner
hardly moves (lr 1e-6), so that both write captions of the same length, which is asserted. A step
is what lies between two calls of the reward. Needs LINEUP_TRL_PYTHON and the folder of `make
test-adapters` (`make bench-train` sees to both).
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.record import Ratio, row

ROOT = Path(__file__).parents[1]
PREPARED = ROOT / "build" / "adapters"
STEPS, SKIPPED, ROUNDS = 10, 2, 3

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("LINEUP_TRL_PYTHON" not in os.environ, reason="needs LINEUP_TRL_PYTHON"),
]


def measured(command: list[str], cwd: Path, out: Path) -> dict[str, Any]:
    """Runs one trainer; what its meter wrote."""
    environment = os.environ | {
        "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip
    done = subprocess.run(
        [*command, str(out), "--steps", str(STEPS)], cwd=cwd, env=environment, check=False,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(out.read_text()))


def step_seconds(meter: dict[str, Any]) -> list[float]:
    """CPU seconds of the steps that count."""
    stamps = meter["cpu_s"][SKIPPED:]
    return [b - a for a, b in itertools.pairwise(stamps)]


def test_steps_and_memory_against_trl(tmp_path: Path) -> None:
    trl_command = [os.environ["LINEUP_TRL_PYTHON"], str(ROOT / "bench" / "trl_steps.py")]
    trl_command.append(str(PREPARED / "set" / "trl" / "train.parquet"))
    our_command = [sys.executable, "-m", "bench.our_steps", str(PREPARED / "corpus")]
    ours, theirs = [], []
    for turn in range(ROUNDS):
        theirs.append(measured(trl_command, PREPARED, tmp_path / f"trl-{turn}.json"))
        ours.append(measured(our_command, ROOT, tmp_path / f"ours-{turn}.json"))
    characters = [statistics.mean(x for m in side for x in m["lengths"]) for side in (ours, theirs)]
    assert max(characters) < 1.05 * min(characters), characters
    assert all(len(m["cpu_s"]) == STEPS for m in ours + theirs)

    own = [statistics.median(step_seconds(m)) for m in ours]
    peer = [statistics.median(step_seconds(m)) for m in theirs]
    ratios = sorted(b / a for a, b in zip(own, peer, strict=True))
    speed = Ratio(statistics.median(peer) / statistics.median(own), ratios[0], ratios[-1])
    equal = "caption lengths within 5 %"
    row("steps a minute", "tiny, B 16, G 8", "TRL RLOOTrainer", speed, 3.0, 4.0, equal)
    memories = sorted(
        b["above_model"] / a["above_model"] for a, b in zip(ours, theirs, strict=True)
    )
    memory = Ratio(statistics.median(memories), memories[0], memories[-1])
    row("memory above the model", "tiny, B 16, G 8", "TRL RLOOTrainer", memory, 2.0, 3.0, equal)
    for name, side in (("ours", ours), ("TRL", theirs)):
        steps = STEPS - 3
        shown = {k: round(v / steps, 3) for k, v in side[-1]["stages_s"].items()}
        mib = side[-1]["above_model"] / 2**20
        print(f"{name}: seconds a step by stage {shown}; {mib:.0f} MiB above the model")
