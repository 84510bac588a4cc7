"""Kernels called from many threads at once, after a fork and in new processes give the same."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import warnings

import pytest

from tests.every_kernel import calls, digest, digests

N = 60
EXPECTED = digests(N, threads=1)


def test_threads_change_nothing() -> None:
    assert digests(N, threads=3) == EXPECTED


def test_many_threads_at_once() -> None:
    """The same calls and others beside them, on the same arrays and the same index."""
    shared, others = calls(N, threads=2), {n: digests(n, threads=1) for n in (17, 41)}

    def work(turn: int) -> bool:
        if turn % 3:
            return {name: digest(call()) for name, call in shared.items()} == EXPECTED
        n = (17, 41)[turn % 2]
        return digests(n, threads=2) == others[n]

    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        assert all(pool.map(work, range(24)))


def _forked() -> int:
    """The exit status of a child that does all calls: 0 where they give the same, 9 hung."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
        child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if digests(N, threads=2) == EXPECTED else 2
        finally:
            os._exit(status)  # nothing of pytest may run in the child
    deadline = time.monotonic() + 120
    while (done := os.waitpid(child, os.WNOHANG)) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.01)
    return os.waitstatus_to_exitcode(done[1])


def test_fork_after_threads() -> None:
    digests(N, threads=3)
    assert _forked() == 0


def test_fork_while_others_are_in_kernels() -> None:
    done = threading.Event()

    def work() -> None:
        while not done.is_set():
            digests(N, threads=2)

    workers = [threading.Thread(target=work) for _ in range(2)]
    for worker in workers:
        worker.start()
    try:
        assert [_forked() for _ in range(5)] == [0] * 5
    finally:
        done.set()
        for worker in workers:
            worker.join()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_multiprocessing(method: str) -> None:
    digests(N, threads=3)
    context = multiprocessing.get_context(method)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        with context.Pool(2) as pool:
            found = pool.starmap(digests, [(N, 2)] * 3)
    assert found == [EXPECTED] * 3


def test_import_beside_running_threads() -> None:
    """Many threads make the first calls of a process at the same time."""
    code = (
        "import concurrent.futures, sys\n"
        "from tests.every_kernel import digests\n"
        "with concurrent.futures.ThreadPoolExecutor(6) as pool:\n"
        f"    found = list(pool.map(digests, [{N}] * 6, [2] * 6))\n"
        "print(all(one == found[0] for one in found), *found[0].values())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True", *EXPECTED.values()]
