"""Benchmarks leave their rows in bench/results/latest.json."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from bench import record

if TYPE_CHECKING:
    import pytest

# Peers start threads of their own as they are loaded; one thread is what is compared.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")


def pytest_sessionfinish(session: pytest.Session) -> None:
    if record.ROWS:
        record.write(Path(str(session.config.rootpath)) / "bench/results/latest.json")
