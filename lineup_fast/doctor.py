"""What ``lineup-fast doctor`` prints: versions, kernels, optional packages, this machine."""

from __future__ import annotations

import os
import platform
import shutil
from importlib import metadata, util
from pathlib import Path

# Import name, distribution, and what it is for.
OPTIONAL = (
    ("pyarrow", "pyarrow", "Parquet files"),
    ("datasets", "datasets", "Hugging Face data sets"),
    ("torch", "torch", "verifier, trainer"),
    ("transformers", "transformers", "verifier, trainer"),
    ("tyro", "tyro", "trainer's flags"),
    ("cairocffi", "cairocffi", "reference charts"),
    ("uvicorn", "uvicorn", "reward server"),
    ("httpx", "httpx", "client of the reward server"),
    ("flash_attn", "flash-attn", "trainer on a GPU"),
    ("liger_kernel", "liger-kernel", "trainer on a GPU"),
    ("sglang", "sglang", "in-process engine"),
)


def _installed(module: str, distribution: str) -> str:
    """Version of a package that could be imported, without importing it; "" if there is none."""
    if util.find_spec(module) is None:
        return ""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "unknown version"


def _kernel_lines() -> list[str]:
    try:
        from lineup_fast import kernels

        info = kernels.build_info()
    except (ImportError, ValueError) as error:
        return [f"kernels       NOT USABLE: {error}"]
    return [f"{name:<13} {value}" for name, value in info.items() if value is not None]


def report() -> str:
    """The report as text; loads neither torch nor any other optional package."""
    free_gib = shutil.disk_usage(Path.cwd()).free / 2**30
    lines = [
        f"python        {platform.python_version()} on {platform.system()} {platform.machine()}",
        f"numpy         {_installed('numpy', 'numpy')}",
        *_kernel_lines(),
        f"cores         {len(os.sched_getaffinity(0))} of {os.cpu_count()}, "
        f"OMP_NUM_THREADS {os.environ.get('OMP_NUM_THREADS', 'unset')}",
        f"disk          {free_gib:.1f} GiB free here",
        "optional packages",
    ]
    for module, distribution, purpose in OPTIONAL:
        version = _installed(module, distribution) or "not installed"
        lines.append(f"  {distribution:<13} {version:<16} {purpose}")
    return "\n".join(lines)
