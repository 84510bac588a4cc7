"""The wheel: what is in it, and that it works from another folder, without the checkout."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

import lineup_fast

ROOT = Path(__file__).parent.parent
USE = """
import sys
sys.path[:0] = {folders!r}
import lineup_fast
from lineup_fast import kernels
assert lineup_fast.__file__.startswith({target!r}), lineup_fast.__file__
print(kernels.build_info()["implementation"], kernels.format_numbers([1.5], 2))
"""


@pytest.mark.slow
def test_wheel_works_from_another_folder(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "-q"]
    build = ["--no-build-isolation", "--no-deps", "-C", f"build-dir={tmp_path / 'build'}"]
    subprocess.run([*pip, "wheel", *build, "-w", str(tmp_path), str(ROOT)], check=True)
    (wheel,) = tmp_path.glob("lineup_fast-*.whl")
    assert lineup_fast.__version__ in wheel.name

    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"lineup_fast"}
    for name in ("py.typed", "_core.pyi", "default_data.toml", "verifiers/__init__.py"):
        assert f"lineup_fast/{name}" in names
    assert sum(name.startswith("lineup_fast/_core.") for name in names) == 2
    assert any(name.endswith("licenses/LICENSE") for name in names)

    target = tmp_path / "installed"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    # Without site: the editable installation of the checkout is out of reach.
    folders = [str(target), str(Path(np.__file__).parent.parent)]
    code = USE.format(folders=folders, target=str(target))
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["native", "1.50"]
