"""``device="cuda"``: equality with the CPU where there is a GPU, and clear refusals elsewhere.

The kernels themselves are also run on the CPU, thread after thread, by tests/core/test_cuda_bodies.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lineup_fast import cli, corpus, kernels
from lineup_fast.readers import Channel
from lineup_fast.sliding import SlidingWindows

ROOT = Path(__file__).parent.parent
BUILD = str(kernels.build_info()["cuda"])
HAS_DEVICE = re.search(r"; \d+ devices?: ", BUILD) is not None

# Marks what compares with a real device.
on_device = [
    pytest.mark.gpu,
    pytest.mark.skipif(not HAS_DEVICE, reason=f"needs CUDA kernels and a GPU, has: {BUILD}"),
]
without_device = pytest.mark.skipif(HAS_DEVICE, reason="there is a GPU")
REFUSAL = (
    "expected a build with CUDA kernels, got one without. With nvcc 13: "
    "pip install . -C cmake.define.LINEUP_CUDA=ON"
    if BUILD == "not built"
    else f"expected an NVIDIA GPU and its driver, got {BUILD.split('no device: ')[-1]}"
)

SERIES = np.arange(12.0).reshape(4, 3) ** 2
ASKED: dict[str, Any] = {"k": 2, "max_run": 1, "decimals": 4}


def test_build_info_says_what_was_built_and_what_is_there() -> None:
    pattern = r"not built|\d+\.\d+ for sm_\d+(, sm_\d+)*; (no device: .+|\d+ devices?: .+)"
    assert re.fullmatch(pattern, BUILD)


@without_device
def test_refusal_names_the_reason_and_computes_nothing() -> None:
    out = np.full((4, 4), np.nan)
    for call in (
        lambda: kernels.features(SERIES, device="cuda", out=out),
        lambda: kernels.neighbours(SERIES, SERIES, **ASKED, device="cuda"),
        lambda: kernels.require_device("cuda"),
        lambda: corpus.build([Channel("a", SERIES.ravel())], lengths=[3], device="cuda"),
    ):
        with pytest.raises(RuntimeError) as caught:
            call()
        assert str(caught.value) == f"cuda: {REFUSAL}"
    assert np.isnan(out).all()


@without_device
def test_the_native_functions_refuse_too() -> None:
    place = np.zeros(4, np.int32), np.zeros(4, np.int64), np.zeros(4, np.int32)
    with pytest.raises(RuntimeError, match="cuda: expected"):
        kernels._impl.cuda_features(SERIES)
    with pytest.raises(RuntimeError, match="cuda: expected"):
        kernels._impl.cuda_neighbours(SERIES, SERIES, 2, 1, 4, "run", *place)


@without_device
def test_index_refuses_before_it_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "corpus"
    assert cli.main(["index", "absent.csv", "-o", str(target), "--device", "cuda"]) == 2
    assert capsys.readouterr().err == f"lineup-fast index: --device: cuda: {REFUSAL}\n"
    assert not target.exists()


@pytest.mark.parametrize("device", ["gpu", "cuda:0", "", None])
def test_other_devices_are_refused(device: Any) -> None:
    text = re.escape(f"device: expected cpu or cuda, got {device!r}")
    with pytest.raises(ValueError, match=text):
        kernels.features(SERIES, device=device)
    with pytest.raises(ValueError, match=text):
        kernels.neighbours(SERIES, SERIES, **ASKED, device=device)


def test_the_reference_has_no_device() -> None:
    code = "from lineup_fast import kernels; kernels.features([[1.0]], device='cuda')"
    environment = os.environ | {"LINEUP_IMPL": "reference"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    expected = "RuntimeError: device: expected cpu with LINEUP_IMPL=reference, got cuda"
    assert done.stderr.splitlines()[-1] == expected


def _walks(n: int, steps: int, decimals: int = 1) -> np.ndarray:
    """Windows at stride 1 of random walks, so that most near ones overlap."""
    rng = np.random.default_rng(n + steps)
    walks = rng.normal(size=(3, n // 3 + steps)).cumsum(axis=1).round(decimals)
    windows = np.lib.stride_tricks.sliding_window_view(walks, steps, axis=1)[:, : -(-n // 3)]
    return np.ascontiguousarray(windows.reshape(-1, steps)[:n])


def _scored(phi: np.ndarray) -> np.ndarray:
    return (phi - phi.mean(0)) / np.where(phi.std(0) > 0, phi.std(0), 1.0)


class TestOnDevice:
    """What the device computes, against the CPU, to the last bit."""

    pytestmark = on_device

    @pytest.mark.parametrize("shape", [(1, 1), (3, 7), (5, 16), (33, 96), (1, 100_000), (4099, 67)])
    @pytest.mark.parametrize("scale", [1e-200, 1.0, 1e12, 1e148])
    def test_features(self, shape: tuple[int, int], scale: float) -> None:
        series = np.random.default_rng(0).normal(3.0, 2.0, shape) * scale
        series[0] = 0.1 * scale
        on_cpu, on_cuda = (kernels.features(series, device=d) for d in ("cpu", "cuda"))
        assert on_cuda.tobytes() == on_cpu.tobytes()

    def test_features_of_windows(self) -> None:
        windows = SlidingWindows.cut([np.random.default_rng(1).normal(size=5000)], 96, stride=3)
        for series in (windows, windows.take([5, 5, 0]), _walks(900, 12)[::2]):
            on_cpu, on_cuda = (kernels.features(series, device=d) for d in ("cpu", "cuda"))
            assert on_cuda.tobytes() == on_cpu.tobytes()

    @pytest.mark.parametrize("steps", [1, 12, 25])
    @pytest.mark.parametrize("max_run", [0, 1, 5, 30])
    @pytest.mark.parametrize("decimals", [0, 4])
    def test_run_rule(self, steps: int, max_run: int, decimals: int) -> None:
        series = _walks(700, steps)
        self._same(series, k=8, max_run=max_run, decimals=decimals)

    @pytest.mark.parametrize("k", [1, 8, 16, 100])
    @pytest.mark.parametrize("groups", [1, 4, 300])
    def test_window_rule(self, k: int, groups: int) -> None:
        channels = np.random.default_rng(2).normal(size=(4, 400)).cumsum(axis=1)
        windows = SlidingWindows.cut(list(channels), 24)
        group = np.random.default_rng(3).integers(0, groups, len(windows))
        self._same(windows, k=k, max_run=4, decimals=4, rule="window", group=group)

    @pytest.mark.parametrize("dims", [1, 2, 5, 1500])
    def test_dimensions_ties_and_duplicates(self, dims: int) -> None:
        rng = np.random.default_rng(dims)
        series = rng.integers(0, 3, (300, 4)).astype(float)
        z = rng.integers(0, 2, (300, dims)).astype(float)
        self._same(series, z=z, k=20, max_run=4, decimals=4)
        self._same(series, z=np.zeros((300, dims)), k=20, max_run=2, decimals=4)

    def test_many_windows(self) -> None:
        windows = SlidingWindows.cut([np.random.default_rng(4).normal(size=60_000).cumsum()], 96)
        self._same(windows, k=8, max_run=19, decimals=4)
        self._same(windows, k=8, max_run=19, decimals=4, rule="window")

    def _same(self, series: Any, *, z: np.ndarray | None = None, **options: Any) -> None:
        if z is None:
            z = _scored(kernels.features(series))
        on_cpu = kernels.neighbours(z, series, **options)
        on_cuda = kernels.neighbours(z, series, **options, device="cuda")
        np.testing.assert_array_equal(on_cuda, on_cpu)

    def test_bad_values(self) -> None:
        series = np.ones((40, 5))
        series[13, 2] = np.inf
        text = "series: expected finite values, got inf at row 13, step 2"
        with pytest.raises(ValueError, match=text):
            kernels.features(series, device="cuda")
        with pytest.raises(ValueError, match=text):
            kernels.neighbours(np.ones((40, 2)), series, **ASKED, device="cuda")

    def test_threads_share_the_device(self) -> None:
        series = _walks(3000, 24)
        expected, found = kernels.features(series), []

        def ask() -> None:
            found.extend(kernels.features(series, device="cuda") for _ in range(20))

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 80
        assert all(one.tobytes() == expected.tobytes() for one in found)

    def test_corpora_are_the_same(self) -> None:
        values = np.random.default_rng(5).normal(size=3000).cumsum().round(2)
        made = [
            corpus.build([Channel("a", values)], lengths=[12, 24], device=device)
            for device in ("cpu", "cuda")
        ]
        assert made[0].fingerprint == made[1].fingerprint


TRIED = """
import json, numpy as np, _core
try:
    answer = _core.cuda_features(np.arange(6.0).reshape(2, 3)).tolist()
except RuntimeError as error:
    answer = str(error)
print(json.dumps([_core.build_info()["cuda"], answer]))
"""


@pytest.mark.slow
@pytest.mark.skipif(
    os.environ.get("LINEUP_TEST_CUDA") != "1" or shutil.which("nvcc") is None,
    reason="compiles for minutes: needs LINEUP_TEST_CUDA=1 and nvcc",
)
@pytest.mark.timeout(1800)
def test_make_cuda_builds_a_module_that_imports_without_a_driver() -> None:
    subprocess.run(["make", "-s", "cuda"], cwd=ROOT, check=True)
    done = subprocess.run(
        [sys.executable, "-c", TRIED], cwd=ROOT / "build/cuda", capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    built, answer = json.loads(done.stdout)
    assert re.match(r"1[3-9]\.\d+ for sm_80, sm_90, sm_100; ", built)
    if "; no device: " in built:
        reason = built.split("no device: ")[1]
        assert answer == f"cuda: expected an NVIDIA GPU and its driver, got {reason}"
    else:
        assert answer == kernels.features(np.arange(6.0).reshape(2, 3)).tolist()
