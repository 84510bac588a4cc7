"""Calls a kernel natively and in its twin, and compares values, dtypes, shapes and error texts."""

from __future__ import annotations

import dataclasses
from typing import Any
from unittest import mock

import numpy as np

from lineup_fast import _core, kernels, reference


def _outcome(implementation: Any, name: str, args: Any, options: Any) -> Any:
    with mock.patch.object(kernels, "_impl", implementation):
        try:
            return getattr(kernels, name)(*args, **options)
        except (ValueError, TypeError) as error:
            return error


def _compare(native: Any, twin: Any, rtol: float) -> None:
    if isinstance(twin, np.ndarray):
        assert native.dtype == twin.dtype
        assert native.shape == twin.shape
        if rtol:
            scale = np.abs(twin).max(initial=0.0)
            np.testing.assert_allclose(native, twin, rtol=rtol, atol=rtol * scale)
        else:
            np.testing.assert_array_equal(native, twin)
    elif isinstance(twin, tuple):
        assert len(native) == len(twin)
        for one, other in zip(native, twin, strict=True):
            _compare(one, other, rtol)
    elif dataclasses.is_dataclass(twin):
        for field in dataclasses.fields(twin):
            _compare(getattr(native, field.name), getattr(twin, field.name), rtol)
    elif isinstance(twin, Exception):
        assert (type(native), str(native)) == (type(twin), str(twin))
    else:
        assert type(native) is type(twin)
        assert native == twin


def both(name: str, *args: Any, rtol: float = 0.0, **options: Any) -> Any:
    """The native result of ``kernels.name``, which equals the twin's; raises what both raise.

    ``rtol`` is relative to each value and to the largest value of an array.
    """
    native = _outcome(_core, name, args, options)
    twin = _outcome(reference, name, args, options)
    _compare(native, twin, rtol)
    if isinstance(native, Exception):
        raise native
    return native
