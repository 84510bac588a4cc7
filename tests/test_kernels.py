"""Choosing the implementation, and stopping a long kernel."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from lineup_fast import kernels


def _python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | environment
    )


@pytest.mark.parametrize("name", ["native", "reference"])
def test_environment_chooses_the_implementation(name: str) -> None:
    code = "from lineup_fast import kernels; print(kernels.build_info()['implementation'])"
    assert _python(code, LINEUP_IMPL=name).stdout.strip() == name


def test_unknown_implementation_is_refused() -> None:
    done = _python("import lineup_fast.kernels", LINEUP_IMPL="fast")
    assert "ValueError: LINEUP_IMPL: expected native or reference, got 'fast'" in done.stderr


def test_missing_extension_is_an_error_that_says_what_to_do() -> None:
    code = "import sys; sys.modules['lineup_fast._core'] = None; import lineup_fast.kernels"
    done = _python(code, LINEUP_IMPL="native")
    assert done.returncode == 1
    assert "ImportError: lineup_fast._core: expected the built extension" in done.stderr
    assert "pip install --no-build-isolation -e ." in done.stderr


def test_build_info_names_everything() -> None:
    info = kernels.build_info()
    names = ["version", "implementation", "compiler", "isa", "cairo", "cuda", "threads"]
    assert list(info) == names
    assert all(value not in (None, "") for value in info.values())


def test_interrupt_stops_a_long_kernel() -> None:
    rng = np.random.default_rng(0)
    # Ten dimensions, in which boxes help little, and many neighbours: to its end it takes minutes.
    z, series = rng.normal(size=(60_000, 10)), rng.normal(size=(60_000, 8))
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    # A process that a shell started in the background inherits an ignored SIGINT.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        began = time.monotonic()
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            kernels.neighbours(z, series, k=200, max_run=2, decimals=4, threads=1)
        timer.join()
    finally:
        signal.signal(signal.SIGINT, before)
    # The calls after it work as before.
    assert time.monotonic() - began < 6
    assert kernels.longest_run([1.0], [1.0], decimals=4) == 1
