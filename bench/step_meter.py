"""What both trainers are measured by: the same reward, stamps at every step, memory.

Standard library only, because TRL's environment imports it too.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path


def scripted_reward(caption: str) -> float:
    """Twice the share of letters from the first half of the alphabet."""
    letters = [c for c in caption.lower() if c.isalpha()]
    return 2.0 * sum(c <= "m" for c in letters) / max(1, len(letters))


class Meter:
    """Stamps at each call of the reward, of which there is one a step.

    Between two stamps lies one whole step, whatever the trainer does in which order.
    """

    def __init__(self) -> None:
        self.cpu_s: list[float] = []
        self.wall_s: list[float] = []
        self.lengths: list[float] = []
        self.stages_s: dict[str, float] = {}
        self.baseline = 0

    def model_is_loaded(self) -> None:
        """From here on memory counts."""
        self.baseline = resident_bytes()
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew

    def rewards(self, captions: Sequence[str]) -> list[float]:
        """Scores a step's captions and stamps it."""
        self.cpu_s.append(time.process_time())
        self.wall_s.append(time.perf_counter())
        self.lengths.append(sum(map(len, captions)) / len(captions))
        return [scripted_reward(caption) for caption in captions]

    def stage(self, name: str, seconds: float) -> None:
        """Adds seconds of a stage."""
        self.stages_s[name] = self.stages_s.get(name, 0.0) + seconds

    def write(self, path: Path) -> None:
        """All of it as JSON."""
        found = vars(self) | {"above_model": peak_bytes() - self.baseline}
        path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def resident_bytes() -> int:
    """Resident memory of this process now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def peak_bytes() -> int:
    """The most resident memory since the last reset."""
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in x)
    return int(line.split()[1]) * 1024
