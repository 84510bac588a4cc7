"""An SGLang server as a child of this process: started, awaited, stopped."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

from lineup_fast.verifiers.base import BackendError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Self

POLL_S = 0.5
TAIL_LINES = 30
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # never through a proxy


class EngineProcess:
    """``python -m sglang.launch_server`` for one model, on loopback unless told otherwise.

    model: folder or hub id; python: interpreter of the environment that SGLang lives in (default:
    this one); port 0: a free one; arguments: further flags of the server; environment: variables
    set for it beside ours; log: where its output goes (default: a file that goes with it).
    ``url`` is where it answers. Use it in a ``with`` block, or call start and stop.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        python: str | Path = sys.executable,
        host: str = "127.0.0.1",
        port: int = 0,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        log: str | Path | None = None,
    ) -> None:
        self.port = port or _free_port(host)
        self.url = f"http://{host}:{self.port}"
        self.command = [
            str(python), "-m", "sglang.launch_server", "--model-path", str(model),
            "--host", host, "--port", str(self.port), *arguments,
        ]  # fmt: skip
        self._environment = os.environ | dict(environment or {})
        self._keep_log = log is not None
        if log is None:
            handle, log = tempfile.mkstemp(prefix="sglang-", suffix=".log")
            os.close(handle)
        self.log = Path(log)
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Process id of the server, which leads a process group of its own; None: not running."""
        return None if self._child is None or self._child.poll() is not None else self._child.pid

    def start(self, timeout_s: float = 900.0) -> Self:
        """Start the server and wait until it answers.

        Raises: BackendError with the end of its log when it exits first or takes longer.
        """
        if self.pid is not None:
            raise ValueError(f"engine: expected one that is not running, got pid {self.pid}")
        self.stop()  # what may be left of one that died
        deadline = time.monotonic() + timeout_s
        with self.log.open("ab") as log:
            try:
                # A session of its own: Ctrl+C reaches us alone, and stop() all of its processes.
                self._child = subprocess.Popen(
                    self.command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=self._environment,
                    start_new_session=True,
                )
            except OSError as error:
                raise BackendError(f"engine: {self.command[0]}: {error.strerror}") from error
        try:
            while not self.healthy(max(POLL_S, min(10.0, deadline - time.monotonic()))):
                code = self._child.poll()
                if code is not None:
                    raise BackendError(f"engine exited with status {code}\n{self.log_tail()}")
                if time.monotonic() > deadline:
                    raise BackendError(
                        f"engine did not answer within {timeout_s:.0f} s\n{self.log_tail()}"
                    )
                time.sleep(POLL_S)
        except BaseException:
            self.stop()
            raise
        return self

    def healthy(self, timeout_s: float = 10.0) -> bool:
        """Whether the server says that it can answer."""
        try:
            with _DIRECT.open(f"{self.url}/health", timeout=timeout_s) as response:
                return bool(response.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def log_tail(self, lines: int = TAIL_LINES) -> str:
        """The last lines of the server's output."""
        text = self.log.read_bytes().decode("utf-8", "replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    def stop(self, patience_s: float = 15.0) -> None:
        """End the server and everything it started: asked first, killed after ``patience_s``."""
        child, self._child = self._child, None
        if child is None:
            return
        child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(patience_s)
        _signal_group(child.pid, signal.SIGKILL)  # also what outlives the server
        child.wait()
        if not self._keep_log:
            self.log.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self if self.pid is not None else self.start()

    def __exit__(self, *error: object) -> None:
        self.stop()


def _signal_group(group: int, number: signal.Signals) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return  # all of it is gone


def _free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
