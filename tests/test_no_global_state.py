"""The core keeps nothing between calls: what its archive holds in writable memory, by name."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# Of sections that may be written to while the library is in use; .data.rel.ro only the loader does.
WRITABLE = re.compile(r"\.(bss|tbss|tdata|data)(?!\.rel\.ro)(\.\S+)?$")
ALLOWED = {
    "DW.ref.__gxx_personality_v0": "how exceptions are unwound",
    "lineup::best_isa()::best": "const: what the processor can, found out once for all threads",
    "lineup::chart_masks(lineup::ChartSizes const&)::kept": "written once, with what anyone would",
    ")::writer": "const: the characters of digit runs, for format_numbers",
    "lineup::(anonymous namespace)::kGlyphs": "constexpr: gcc puts it beside variables",
}


def _archive() -> Path:
    found = [
        path
        for path in (ROOT / "build").glob("*/liblineup_core.a")
        if "LINEUP_SANITIZE:BOOL=ON" not in (path.parent / "CMakeCache.txt").read_text()
    ]
    if not found:
        pytest.skip("needs the library of a build of this checkout in build/")
    return max(found, key=lambda path: path.stat().st_mtime)


def _symbols(archive: Path) -> dict[str, str]:
    """Section by name of everything that is data; ".bss" and such name the sections themselves."""
    table = subprocess.run(
        ["objdump", "--syms", "--demangle", archive], capture_output=True, text=True, check=True
    ).stdout
    # 0000000000000008 l     O .bss	0000000000000004 name
    lines = re.findall(r"^[0-9a-f]{16} .{7} (\S+)\t[0-9a-f]{16} +(.+)$", table, re.MULTILINE)
    return {name.removeprefix(".hidden "): section for section, name in lines}


def test_no_variable_outlives_a_call() -> None:
    symbols = _symbols(_archive())
    assert symbols["lineup::best_isa()::best"] == ".bss"
    assert any(name.startswith("lineup::render_charts(") for name in symbols)
    variables = {
        name: section
        for name, section in symbols.items()
        if WRITABLE.match(section)
        and name != section
        and not any(known in name for known in ALLOWED)
    }
    assert variables == {}
