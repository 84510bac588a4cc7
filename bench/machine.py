"""Where and with what a run was measured."""

from __future__ import annotations

import datetime
import os
import platform
import re
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

from lineup_fast import kernels

ROOT = Path(__file__).parents[1]
# Beside what the extra "bench" names.
MORE_PEERS = ("numpy", "tokenizers", "torch", "transformers")


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text(encoding="utf-8") if cpuinfo.exists() else ""
    named = re.search(r"^model name\s*: (.+)$", text, re.MULTILINE)
    return named[1] if named else platform.processor() or platform.machine()


def _memory_gib() -> float:
    return round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1)


def _commit() -> str | None:
    """The commit that was measured, "…, changed" where files differ from it; None outside git."""
    if not (ROOT / ".git").exists():
        return None

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    changed = ", changed" if git("status", "--porcelain", "--untracked-files=no") else ""
    return git("rev-parse", "--short=12", "HEAD") + changed


def _peers() -> dict[str, str]:
    """Versions of every peer that is installed."""
    named = [
        re.match(r"[\w.-]+", line)
        for line in metadata.requires("lineup-fast") or []
        if re.search(r"extra == .bench.", line)
    ]
    names = {found[0].lower() for found in named if found} | set(MORE_PEERS)
    installed = {d.metadata["Name"].lower(): d.version for d in metadata.distributions()}
    return {name: installed[name] for name in sorted(names) if name in installed}


def load() -> float:
    """Processes that ran or waited to, averaged over the last minute."""
    return round(os.getloadavg()[0], 2)


def describe(began: datetime.datetime, load_at_start: float) -> dict[str, Any]:
    """The record of a run that ends now."""
    ended = datetime.datetime.now(datetime.UTC)
    return {
        "date": began.isoformat(timespec="seconds"),
        "seconds": round((ended - began).total_seconds()),
        "commit": _commit(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": _memory_gib(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "build": kernels.build_info(),
        "peers": _peers(),
        "load": [load_at_start, load()],
        "threads": {
            name: os.environ[name] for name in sorted(os.environ) if name.startswith("OMP_")
        },
    }


def lines(machine: dict[str, Any]) -> str:
    """The record for people."""
    shown = {
        name: ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else value
        for name, value in machine.items()
    }
    shown["load"] = "{} at the start, {} at the end".format(*machine["load"])
    return "\n".join(f"{name:<11} {value}" for name, value in shown.items())
