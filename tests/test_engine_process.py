"""The engine as a child process, with a script in the place of SGLang."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from lineup_fast.encoders import ByteEncoder
from lineup_fast.verifiers.base import BackendError
from lineup_fast.verifiers.engine_process import EngineProcess
from lineup_fast.verifiers.sglang import SGLangVerifier

ROOT = Path(__file__).parent.parent

SCRIPT = """
import os, signal, subprocess, sys, time
sys.path.insert(0, {root!r})
mode = os.environ["MODE"]
if mode == "exit":
    print("no such model:", sys.argv[sys.argv.index("--model-path") + 1])
    sys.exit(3)
helper = subprocess.Popen(["sleep", "300"])
with open(os.environ["PIDS"], "w") as out:
    print(os.getpid(), helper.pid, file=out)
if mode == "silent":
    time.sleep(300)
if mode == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
from tests.standin_sglang import StandIn
assert sys.argv[1:3] == ["-m", "sglang.launch_server"]
assert sys.argv[-1] == "--extra"
with StandIn(int(sys.argv[sys.argv.index("--port") + 1])):
    time.sleep(300)
"""


def _engine(tmp_path: Path, mode: str) -> EngineProcess:
    script, python = tmp_path / "server.py", tmp_path / "python"
    script.write_text(SCRIPT.format(root=str(ROOT)))
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {script} "$@"\n')
    python.chmod(0o755)
    return EngineProcess(
        "models/x",
        python=python,
        arguments=["--extra"],
        environment={"MODE": mode, "PIDS": str(tmp_path / "pids")},
        log=tmp_path / "log",
    )


def _pids(tmp_path: Path) -> list[int]:
    return [int(word) for word in (tmp_path / "pids").read_text().split()]


def _gone(pid: int) -> bool:
    """Whether a process has ended; waits a little for it."""
    for _ in range(100):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("mode", ["serve", "stubborn"])
def test_a_child_is_started_awaited_and_stopped_with_all_it_started(
    tmp_path: Path, mode: str
) -> None:
    with _engine(tmp_path, mode) as engine:
        assert engine.healthy()
        assert engine.pid == _pids(tmp_path)[0]
        with SGLangVerifier(engine.url, tokenizer=ByteEncoder()) as verifier:
            assert verifier.name == "/models/a"
        with pytest.raises(ValueError, match="engine: expected one that is not running"):
            engine.start()
        engine.stop(patience_s=0.5)
        assert engine.pid is None
        assert not engine.healthy(0.5)
    assert all(_gone(pid) for pid in _pids(tmp_path))
    engine.stop()  # once more does no harm


def test_a_child_that_dies_is_noticed_and_can_be_started_again(tmp_path: Path) -> None:
    engine = _engine(tmp_path, "serve").start()
    try:
        first, before = engine.pid, _pids(tmp_path)
        assert first is not None
        os.kill(first, signal.SIGKILL)
        assert _gone(first)
        end = time.monotonic() + 30  # its threads may take longer than its first one
        while engine.pid is not None and time.monotonic() < end:
            time.sleep(0.01)
        assert engine.pid is None
        assert engine.start().healthy()
        assert engine.pid not in (None, first)
    finally:
        engine.stop()
    assert all(_gone(pid) for pid in before + _pids(tmp_path))


def test_a_log_of_our_own_goes_with_the_child(tmp_path: Path) -> None:
    engine = _engine(tmp_path, "serve")
    given = engine.log
    (engine.log, engine._keep_log) = (tmp_path / "ours", False)
    with engine:
        assert engine.log.exists()
    assert not engine.log.exists()
    assert engine.log_tail() == ""
    assert not given.exists()


def test_a_child_that_exits_says_why(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match=r"status 3\nno such model: models/x"):
        _engine(tmp_path, "exit").start()


def test_a_child_that_never_answers_is_given_up(tmp_path: Path) -> None:
    engine = _engine(tmp_path, "silent")
    with pytest.raises(BackendError, match="did not answer within 2 s"):
        engine.start(timeout_s=2)
    assert engine.pid is None
    assert all(_gone(pid) for pid in _pids(tmp_path))


def test_a_missing_interpreter_is_said(tmp_path: Path) -> None:
    engine = EngineProcess("x", python=tmp_path / "nothing", log=tmp_path / "log")
    with pytest.raises(BackendError, match="nothing: No such file"):
        engine.start()
