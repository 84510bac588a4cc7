"""SGLang's own description of its requests and replies, one file of its wheel.

``make test`` puts it beside the environment; it needs msgspec and nothing of SGLang.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

FILE = Path(sys.prefix) / "schema/sglang/api/v1/api_types.py"


@functools.cache
def schema() -> ModuleType:
    """The module; the test fails where the file is missing."""
    if not FILE.exists():
        pytest.fail(f"{FILE} is missing: make test fetches it (target $(DONE)/schema)")
    spec = importlib.util.spec_from_file_location("sglang_api_types", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its types name each other by module
    spec.loader.exec_module(module)
    return module
