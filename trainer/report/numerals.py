"""The numbers of a caption and the role of each: a time, a value, or neither.

* A number is a **time** when a time word stands in front of it ("step 7", "t = 7", "steps 3
  and 7") or when it is a whole number inside the series in "<value> at 7" or "at 7: <value>".
* A number is **other** (not checked) when it is a percentage, a count ("24 points", "3 peaks")
  or a difference ("by 12", "a drop of 12").
* Every other number is a **value**.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

Role = Literal["time", "value", "other"]

_NUMBER = re.compile(
    r"(?<![\w.])[-+\u2212]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?"
    r"(?:[eE][-+]?\d{1,2})?(?![\w]|\.\d)"
)
ABOUT = r"(?:about|around|approximately|approx\.?|roughly|near|nearly|almost|some|~|≈)?\s*"
TIME_WORD = (
    r"(?:time\s*-?\s*steps?|times?|steps?|t|x|ind(?:ex|ices)|positions?|points?|periods?|ticks?"
    r"|minutes?|hours?|days?|weeks?|months?|years?)"
)
_TIME_BEFORE = re.compile(
    rf"\b{TIME_WORD}\s*(?:=|≈|~|:|#|no\.?|number)?\s*{ABOUT}\(?$", re.IGNORECASE
)
_TIME_JOINER = re.compile(r"^\s*(?:and|or|to|through|until|-|–|,\s*and)\s*$", re.IGNORECASE)
_TIME_LIST = re.compile(
    r"\b(?:times|steps|indices|positions|points|periods|ticks"
    r"|minutes|hours|days|weeks|months|years)"
    r"[\s\d,]*,\s*$",
    re.IGNORECASE,
)
_AT = re.compile(rf"^\s*(?:at|@|on)\s*{ABOUT}$", re.IGNORECASE)
_COLON = re.compile(r"^\s*:")
_AT_BEFORE = re.compile(r"\b(?:at|on)\s+$", re.IGNORECASE)
AT_TIME = re.compile(rf"^\s*(?:at|@|on|by|around|near)\s+{ABOUT}{TIME_WORD}\b", re.IGNORECASE)
_AT_NUMBER = re.compile(r"^\s*(?:at|@)\s*\d", re.IGNORECASE)
_AFTER_COUNT = re.compile(r"\bafter\s*$", re.IGNORECASE)
_STEPS_BEHIND = re.compile(rf"^\s*{TIME_WORD}\b", re.IGNORECASE)
_COUNT_BEHIND = re.compile(
    r"^\s*-?\s*(?:data\s+)?(?:points?|steps?|values?|observations?|samples?"
    r"|peaks?|troughs?|dips?|cycles?|times"
    r"|periods?|minutes?|hours?|days?|weeks?|months?|years?)\b",
    re.IGNORECASE,
)
_PERCENT_BEHIND = re.compile(r"^\s*(?:%|percent\b)", re.IGNORECASE)
_DIFFERENCE_BEFORE = re.compile(
    r"\b(?:by|(?:drop|rise|fall|increase|decrease|decline|gain|loss"
    r"|jump|change|swing|range|amplitude|spread"
    rf"|deviation|variance|difference)\s+of)\s+{ABOUT}$",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Number:
    """A number in a caption: where it stands, what it reads as, and its role."""

    start: int
    end: int
    text: str
    value: float
    role: Role


def numbers(caption: str, n_steps: int) -> list[Number]:
    """Return the numbers of a caption in order, with their roles, for a series of ``n_steps``."""
    found: list[Number] = []
    for match in _NUMBER.finditer(caption):
        text = match.group()
        value = float(text.replace(",", "").replace("\u2212", "-"))
        if np.isfinite(value):
            number = Number(match.start(), match.end(), text, value, "value")
            found.append(replace(number, role=_role(caption, number, found[-1:], n_steps)))
    return found


def _role(caption: str, number: Number, previous: list[Number], n_steps: int) -> Role:
    before = caption[max(0, number.start - 80) : number.start]
    behind = caption[number.end : number.end + 40]
    whole = number.text.isdigit()
    if _PERCENT_BEHIND.match(behind):
        return "other"
    if _TIME_BEFORE.search(before):
        return "time"
    if whole and _AFTER_COUNT.search(before) and _STEPS_BEHIND.match(behind):
        return "time"
    inside = whole and number.value <= n_steps
    if inside and _AT_BEFORE.search(before) and _COLON.match(behind):
        return "time"
    for last in previous:
        gap = caption[last.end : number.start]
        joined = _TIME_JOINER.match(gap) or _TIME_LIST.search(before)
        own_time = AT_TIME.match(behind) or _AT_NUMBER.match(behind)
        if whole and last.role == "time" and joined and not own_time:
            return "time"
        if inside and last.role == "value" and _AT.match(gap):
            return "time"
    if _COUNT_BEHIND.match(behind) or _DIFFERENCE_BEFORE.search(before):
        return "other"
    return "value"
