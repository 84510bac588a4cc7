"""Real SGLang servers on this machine's CPU, for the tests marked "engine"."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lineup_fast.verifiers.engine_process import EngineProcess
from tests.toy_models import model

HERE = Path(__file__).parent
TINY = HERE.parents[1] / "trainer/tiny/verifier"
CONTEXT, POOL = 2048, 32768  # tokens
SHIM = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "PYTHONPATH": str(HERE / "shim"),
}
ARGUMENTS = [
    "--device", "cpu", "--attention-backend", "torch_native", "--dtype", "float32",
    "--context-length", str(CONTEXT), "--max-total-tokens", str(POOL), "--sleep-on-idle",
    "--skip-server-warmup",
]  # fmt: skip


def engine_python() -> str:
    """Interpreter of the environment that make test-engines builds."""
    python = os.environ.get("LINEUP_ENGINE_PYTHON", "")
    if not Path(python).is_file():
        pytest.fail(f"LINEUP_ENGINE_PYTHON: expected make test-engines to set it, got {python!r}")
    return python


def _server(folder: Path, *arguments: str) -> EngineProcess:
    return EngineProcess(
        folder, python=engine_python(), arguments=[*ARGUMENTS, *arguments], environment=SHIM
    )


@pytest.fixture(scope="session")
def llamas(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two random models of two layers, in folders."""
    folders = [tmp_path_factory.mktemp("llama") / name for name in ("first", "second")]
    for seed, folder in enumerate(folders):
        model("llama", 300, seed=seed).save_pretrained(folder)
    return folders


@pytest.fixture(scope="session")
def llama_server(llamas: list[Path]) -> Iterator[EngineProcess]:
    """SGLang with the first random model and without a tokenizer."""
    with _server(llamas[0], "--skip-tokenizer-init") as server:
        yield server


@pytest.fixture(scope="session")
def tiny_server() -> Iterator[EngineProcess]:
    """SGLang with the tiny verifier of this repository."""
    with _server(TINY) as server:
        yield server
