"""The first of several implementations that is here and right; why each earlier one is not."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class UnfitError(Exception):
    """An implementation cannot be used here; the text says why."""


@dataclass(frozen=True)
class Candidate(Generic[T]):
    """One implementation.

    load: imports what it needs and returns it; raises :class:`UnfitError` where it cannot be used.
    """

    name: str
    load: Callable[[], T]


@dataclass(frozen=True)
class Choice(Generic[T]):
    """What runs, and for each candidate before it the reason why it does not."""

    name: str
    op: T
    passed_over: dict[str, str]


def first_right(
    candidates: Sequence[Candidate[T]], check: Callable[[T], None], last: Candidate[T]
) -> Choice[T]:
    """The first candidate that loads and passes `check`, else `last`, which is not checked.

    Args:
        check: compares an implementation with the formula; raises where they differ.
    """
    passed_over: dict[str, str] = {}
    for candidate in candidates:
        try:
            op = candidate.load()
            check(op)
        except UnfitError as reason:
            passed_over[candidate.name] = str(reason)
        except Exception as error:  # code of others, which may raise anything at all
            passed_over[candidate.name] = f"failed its check: {_in_one_line(error)}"
        else:
            return Choice(candidate.name, op, passed_over)
    return Choice(last.name, last.load(), passed_over)


def module(name: str) -> Any:
    """An optional module; raises :class:`UnfitError` where it is missing or does not import."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        root = name.partition(".")[0]
        if error.name in (name, root):
            raise UnfitError(f"{name} is not installed") from error
        raise UnfitError(f"{name} does not import: {_in_one_line(error)}") from error
    except Exception as error:  # a library that is missing, a driver of another version, …
        raise UnfitError(f"{name} does not import: {_in_one_line(error)}") from error


def _in_one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__
