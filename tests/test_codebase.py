"""The habits of the code base: sizes, directions of import, versions, and what imports cost."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import lineup_fast
from lineup_fast import _core

ROOT = Path(__file__).parent.parent
MAX_FILE, MAX_FUNCTION, MAX_LINE = 400, 60, 100
# Longer functions, each for the reason given.
LONG_FUNCTIONS = {"trainer/rloo.py", "trainer/sft.py"}  # loops are readable top to bottom


def _files(*patterns: str) -> list[Path]:
    folders = ("lineup_fast", "trainer", "csrc", "tests", "bench")
    found = [path for folder in folders for p in patterns for path in (ROOT / folder).rglob(p)]
    return sorted(path for path in found if "__pycache__" not in path.parts)


PYTHON, CPP = _files("*.py", "*.pyi"), _files("*.cpp", "*.hpp", "*.cu", "*.cuh")


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _python_functions(path: Path) -> list[tuple[str, int]]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [
        (f"{_name(path)}:{node.lineno} {node.name}", (node.end_lineno or 0) - node.lineno + 1)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def _cpp_functions(path: Path) -> list[tuple[str, int]]:
    """Blocks that end with a brace in the first column; clang-format keeps them there."""
    found, opened = [], 0
    lines = path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, 1):
        if line.endswith("{") and not line.startswith((" ", "namespace", "struct", "class")):
            opened = number
        elif line.startswith("}") and opened:
            found.append((f"{_name(path)}:{opened}", number - opened + 1))
            opened = 0
    return found


def _run(code: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments, "-c", code], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_files_are_short() -> None:
    lengths = {_name(p): len(p.read_text(encoding="utf-8").splitlines()) for p in PYTHON + CPP}
    assert len(lengths) > 20
    assert {name: n for name, n in lengths.items() if n > MAX_FILE} == {}


def test_functions_are_short() -> None:
    found = [pair for path in PYTHON for pair in _python_functions(path)]
    found += [pair for path in CPP for pair in _cpp_functions(path)]
    assert len(found) > 100
    long = {name: n for name, n in found if n > MAX_FUNCTION}
    assert {name: n for name, n in long.items() if name.split(":")[0] not in LONG_FUNCTIONS} == {}


def test_lines_are_short() -> None:
    others = [ROOT / "Makefile", ROOT / "pyproject.toml", *_files("*.toml")]
    long = [
        f"{_name(path)}:{number}"
        for path in PYTHON + CPP + others
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > MAX_LINE
    ]
    assert long == []


def test_no_grab_bags() -> None:
    assert {p.stem for p in PYTHON + CPP} & {"utils", "util", "common", "helpers", "misc"} == set()


def _imports(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add((node.module or "").split(".")[0])
    return names


TORCH_MODULES = ("transformers", "prefix_attention", "prefix_engine")  # of verifiers/


def test_imports_point_one_way() -> None:
    for path in PYTHON:
        if not _name(path).startswith("lineup_fast/"):
            continue
        imports = _imports(path)
        assert "trainer" not in imports, _name(path)
        if path.parent.name != "verifiers" or path.stem not in TORCH_MODULES:
            assert not imports & {"torch", "safetensors", "peft"}, _name(path)
        if _name(path) != "lineup_fast/kernels.py":
            assert "_core" not in path.read_text(encoding="utf-8").split(), _name(path)


def test_core_knows_no_python() -> None:
    for path in CPP:
        if path.stem in {"bind", "bind_neighbours", "bind_prompts"}:
            continue
        assert not re.search(r"pybind11|Python\.h|torch", path.read_text(encoding="utf-8")), path


def test_cmake_lists_every_source_and_core_test() -> None:
    text = (ROOT / "CMakeLists.txt").read_text(encoding="utf-8")
    found = [p for suffix in ("cpp", "cu") for p in (ROOT / "csrc").rglob(f"*.{suffix}")]
    sources = {p.relative_to(ROOT / "csrc").as_posix() for p in found}
    assert set(re.findall(r"csrc/([\w/]+\.(?:cpp|cu))\b", text)) == sources
    listed = re.search(r"foreach\(room ([\w ]+)\)", text)
    assert listed is not None
    tests = {p.stem.removeprefix("test_") for p in (ROOT / "tests/core").glob("test_*.cpp")}
    assert set(listed[1].split()) == tests


def test_everything_is_built_for_any_processor_of_its_kind() -> None:
    for name in ("CMakeLists.txt", "Makefile", "pyproject.toml", ".ci/cairo-static.sh"):
        assert not re.search(r"-m(arch|cpu|tune|avx)", (ROOT / name).read_text("utf-8")), name


def test_one_version() -> None:
    version = lineup_fast.__version__
    assert _core.build_info()["version"] == version
    cmake = (ROOT / "CMakeLists.txt").read_text(encoding="utf-8")
    assert f"VERSION {version} LANGUAGES" in cmake
    assert f"## {version} " in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


# What an installation without extras lacks.
ABSENT = (
    *("torch", "transformers", "pyarrow", "datasets", "cairocffi", "matplotlib", "rich", "tqdm"),
    *("uvicorn", "httpx", "sglang"),
)
BLOCK = f"import sys; sys.modules.update(dict.fromkeys({ABSENT}))\n"


def test_importing_the_package_imports_nothing_else() -> None:
    code = "import sys; old = set(sys.modules); import lineup_fast; print(*set(sys.modules) - old)"
    loaded = set(_run(code).split())  # the finder of an editable install brings some of the library
    assert {name for name in loaded if name.split(".")[0] not in sys.stdlib_module_names} == {
        "lineup_fast"
    }


@pytest.mark.parametrize(
    "module",
    sorted(
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in PYTHON
        if _name(path).startswith("lineup_fast/")
        and path.suffix == ".py"
        and path.stem not in {"__init__", *TORCH_MODULES}
        and not path.stem.startswith("reference_")
    ),
)
def test_every_module_imports_with_numpy_alone(module: str) -> None:
    assert _run(f"{BLOCK}import {module}; print('fine')").strip() == "fine"


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom lineup_fast import cli\n"
        "for command in ([], *([c] for c in sys.argv[1:])):\n"
        "    try:\n        cli.main([*command, '--help'])\n"
        "    except SystemExit as stop:\n        assert stop.code == 0\n"
        "heavy = {'torch', 'transformers', 'pyarrow', 'numpy', 'httpx', 'lineup_fast._core'}\n"
        "print('HEAVY:', *(heavy & set(sys.modules)))"
    )
    parser = _run("from lineup_fast import cli\ncli.build_parser().print_help()")
    commands = re.findall(r"^    (\w+)  ", parser, re.MULTILINE)
    assert "doctor" in commands
    done = subprocess.run(
        [sys.executable, "-c", code, *commands], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].split() == ["HEAVY:"]
    for command in commands:
        assert f"lineup-fast {command}" in done.stdout


def test_doctor_runs_without_optional_packages() -> None:
    out = _run(f"{BLOCK}from lineup_fast import cli\ncli.main(['doctor'])")
    assert re.search(rf"^version +{re.escape(lineup_fast.__version__)}$", out, re.MULTILINE)
    assert re.search(r"^implementation +native$", out, re.MULTILINE)


def test_public_names_come_on_first_use() -> None:
    for name in lineup_fast.__all__:
        assert getattr(lineup_fast, name) is not None, name
    assert set(lineup_fast.__all__) <= set(dir(lineup_fast))
    with pytest.raises(AttributeError, match="module 'lineup_fast' has no attribute 'Corpse'"):
        _ = lineup_fast.Corpse
