"""The wheel that carries Cairo (``make wheel``): what is in it, and that it works alone.

Alone: from another folder, with numpy and nothing else, on a system without Cairo and X11. That
the checks can fail is shown on the extension of this checkout, which links the system's Cairo.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import numpy as np
import pytest

import lineup_fast
from lineup_fast import _core

ROOT = Path(__file__).parent.parent
CORE = Path(_core.__file__ or "")
pytestmark = pytest.mark.slow

# What Debian's libcairo brings along, by the names that the loader looks for.
ABSENT = ("libcairo.so.2", "libpixman-1.so.0", "libX11.so.6", "libxcb.so.1", "libXext.so.6")
ABSENT += ("libXrender.so.1", "libfontconfig.so.1", "libfreetype.so.6", "libpng16.so.16")
LOADED_AT_MOST = {"libstdc++.so.6", "libm.so.6", "libgcc_s.so.1", "libc.so.6"}
LOADED_AT_MOST |= {"ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}

DRAW = """
import json, sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
import numpy as np
from lineup_fast import charts, kernels

rng = np.random.default_rng(5)
series = [rng.normal(size=n).cumsum() * 10.0 ** rng.integers(-12, 12) for n in (1, 2, 7, 24, 96)]
series += [np.full(30, 2.5), np.tile([0.0, 1e9], 40), rng.normal(size=3000).cumsum()]
drawn = {}
for style in charts.STYLES.values():
    for engine in ("native", "cairo"):
        drawn[f"{style.name} {engine}"] = charts.render(series, replace(style, engine=engine))
png = charts.png(drawn["default native"][3])
drawn["patches"], _ = charts.patches(drawn["default native"])
drawn["features"] = kernels.features(rng.normal(size=(50, 31)))
np.savez(sys.argv[1], png=np.frombuffer(png, np.uint8), **drawn)
loaded = {Path(line.split()[-1]).name for line in open("/proc/self/maps") if ".so" in line}
packages = [name for name in ("torch", "cairocffi", "pyarrow") if find_spec(name)]
print(json.dumps({"info": kernels.build_info(), "file": kernels.__file__,
                  "loaded": sorted(loaded), "packages": packages}))
"""


@pytest.fixture(scope="module")
def wheel() -> Path:
    absent = pytest.fail if os.environ.get("CI") else pytest.skip
    wheels = list((ROOT / "dist").glob(f"lineup_fast-{lineup_fast.__version__}-*.whl"))
    if not wheels:
        absent("needs the wheel in dist/, which make wheel builds")
    (found,) = wheels
    folders = ((ROOT / "csrc", "**/*.?pp"), (ROOT / "lineup_fast", "**/*.py"))
    sources = [path for folder, pattern in folders for path in folder.glob(pattern)]
    if found.stat().st_mtime < max(path.stat().st_mtime for path in sources):
        absent("the wheel in dist/ is older than the sources: make wheel")
    return found


@pytest.fixture(scope="module")
def alone(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that has the wheel and numpy, and nothing else."""
    folder = tmp_path_factory.mktemp("alone")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin/python"
    install = ["--python", str(python), "install", "-q", "--no-deps", "--no-index", str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", *install], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for path in Path(np.__file__).parents[1].glob("numpy*"):
        (site / path.name).symlink_to(path)
    return python


@pytest.fixture(scope="module")
def bare_system(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables under which the loader finds no library of ABSENT: an empty file comes first."""
    folder = tmp_path_factory.mktemp("bare")
    for name in ABSENT:
        (folder / name).touch()
    keep = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    return {**keep, "LD_LIBRARY_PATH": str(folder)}


def _draw(
    python: Path | str, out: Path, variables: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    command = [str(python), "-c", DRAW, str(out)]
    return subprocess.run(command, capture_output=True, text=True, cwd=out.parent, env=variables)


def _needed(library: Path) -> set[str]:
    shown = subprocess.run(["readelf", "-dW", library], capture_output=True, text=True, check=True)
    return set(re.findall(r"\(NEEDED\).*\[(.+)\]", shown.stdout))


def _symbols(library: Path, which: str) -> list[str]:
    command = ["nm", "-D", which, str(library)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [line.split()[-1] for line in shown.splitlines()]


def _drawing(symbols: list[str]) -> list[str]:
    return [name for name in symbols if re.match(r"_?(cairo|pixman)", name)]


def test_contents(wheel: Path) -> None:
    assert wheel.stat().st_size <= 6e6
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        info = f"lineup_fast-{lineup_fast.__version__}.dist-info"
        metadata = Parser().parsestr(archive.read(f"{info}/METADATA").decode())
        carried = archive.read(f"{info}/licenses/CARRIED").decode()
    assert {name.split("/")[0] for name in names} == {"lineup_fast", info}
    for name in ("py.typed", "_core.pyi", "default_data.toml", "verifiers/__init__.py"):
        assert f"lineup_fast/{name}" in names
    assert sum(name.startswith("lineup_fast/_core.") for name in names) == 2

    licenses = {"LICENSE", "CARRIED", "cairo-COPYING", "cairo-MPL-1.1", "pixman-COPYING"}
    assert {f"{info}/licenses/{name}" for name in licenses} <= set(names)
    assert set(metadata.get_all("License-File", [])) == licenses
    assert metadata["License-Expression"] == "Apache-2.0 AND MPL-1.1 AND MIT"
    assert "apt-get source cairo=1.16.0" in carried


def test_extension_needs_no_cairo_and_shows_none(alone: Path) -> None:
    (core,) = alone.parents[1].glob("lib/python*/site-packages/lineup_fast/_core.*.so")
    assert _needed(core) <= LOADED_AT_MOST
    assert _drawing(_symbols(core, "--defined-only")) == []
    assert _drawing(_symbols(core, "--undefined-only")) == []
    # The same three questions about an extension that links the system's Cairo.
    assert not _needed(CORE) <= LOADED_AT_MOST
    assert "cairo_create" in _drawing(_symbols(CORE, "--undefined-only"))


def test_tag_is_no_older_than_the_symbols(wheel: Path, alone: Path) -> None:
    (core,) = alone.parents[1].glob("lib/python*/site-packages/lineup_fast/_core.*.so")
    tag = re.search(r"manylinux_2_(\d+)_", wheel.name)
    assert tag is not None
    asked = [re.search(r"@GLIBC_2\.(\d+)", s) for s in _symbols(core, "--undefined-only")]
    assert max(int(found[1]) for found in asked if found) == int(tag[1])


def test_draws_the_same_where_there_is_no_cairo(
    alone: Path, bare_system: dict[str, str], tmp_path: Path
) -> None:
    done = _draw(alone, tmp_path / "alone.npz", bare_system)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert Path(told["file"]).is_relative_to(alone.parents[1])
    assert told["packages"] == []
    assert told["info"]["implementation"] == "native"
    drawing = re.compile("lib(cairo|pixman|X|xcb|fontconfig|freetype)")
    assert not list(filter(drawing.match, told["loaded"]))

    here = _draw(sys.executable, tmp_path / "here.npz")
    assert here.returncode == 0, here.stderr
    system = json.loads(here.stdout)
    assert list(filter(drawing.match, system["loaded"]))
    if system["info"]["cairo"] != told["info"]["cairo"]:
        pytest.skip(f"the system's Cairo is {system['info']['cairo']}: it may draw other pixels")
    with np.load(tmp_path / "alone.npz") as mine, np.load(tmp_path / "here.npz") as others:
        assert set(mine) == set(others)
        assert len(mine) == 9
        for name in mine:
            np.testing.assert_array_equal(mine[name], others[name], err_msg=name)


def test_an_extension_that_links_cairo_does_not_load_there(
    bare_system: dict[str, str], tmp_path: Path
) -> None:
    done = _draw(sys.executable, tmp_path / "here.npz", bare_system)
    assert done.returncode != 0
    assert re.search(rf"ImportError: .*({'|'.join(map(re.escape, ABSENT))})", done.stderr)
