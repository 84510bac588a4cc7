"""Which numbers a caption names, what each one claims, and whether the claim is true of the series.

Everything here is rules over text, no model; they are meant to be readable and to err in the open.

* A number is a **time** when a time word stands in front of it ("step 7", "t = 7", "steps 3
  and 7") or when it is a whole number inside the series in "<value> at 7" or "at 7: <value>".
* A number is **other** (not checked) when it is a percentage, a count ("24 points", "3 peaks")
  or a difference ("by 12", "a drop of 12").
* Every other number is a **value**. What it claims is said by the last cue word between the
  previous value and itself, else by the first cue word behind it, within commas: start, end,
  highest, lowest, mean, mean of a quarter or half. A list behind "quarters" or "levels" claims the
  means of as many equal parts. Without a cue it claims the value at a step named with it; without
  a step, a cue earlier in the sentence counts; without that, only that the series takes the value.

A value is true when it lies within ``RELATIVE_TOLERANCE`` of the series' range of what it claims;
never less than half of the last digit it prints, nor, where the chart has a fixed y-range, than
``AXIS_TOLERANCE`` of that, because a chart cannot be read more finely. Steps count from 0, as the
chart's axis does, and may be off by ``STEP_SLACK``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

RELATIVE_TOLERANCE = 0.05
AXIS_TOLERANCE = 0.02
STEP_SLACK = 1

Axis = tuple[float, float] | None
Role = Literal["time", "value", "other"]
Kind = Literal["start", "end", "max", "min", "mean", "part", "step", "any"]

_NUMBER = re.compile(
    r"(?<![\w.])[-+\u2212]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?"
    r"(?:[eE][-+]?\d{1,2})?(?![\w]|\.\d)"
)
_ABOUT = r"(?:about|around|approximately|approx\.?|roughly|near|nearly|almost|some|~|≈)?\s*"
_TIME_WORD = (
    r"(?:time\s*-?\s*steps?|times?|steps?|t|x|ind(?:ex|ices)|positions?|points?|periods?|ticks?"
    r"|minutes?|hours?|days?|weeks?|months?|years?)"
)
_TIME_BEFORE = re.compile(
    rf"\b{_TIME_WORD}\s*(?:=|≈|~|:|#|no\.?|number)?\s*{_ABOUT}\(?$", re.IGNORECASE
)
_TIME_JOINER = re.compile(r"^\s*(?:and|or|to|through|until|-|–|,\s*and)\s*$", re.IGNORECASE)
_TIME_LIST = re.compile(
    r"\b(?:times|steps|indices|positions|points|periods|ticks"
    r"|minutes|hours|days|weeks|months|years)"
    r"[\s\d,]*,\s*$",
    re.IGNORECASE,
)
_AT = re.compile(rf"^\s*(?:at|@|on)\s*{_ABOUT}$", re.IGNORECASE)
_COLON = re.compile(r"^\s*:")
_AT_BEFORE = re.compile(r"\b(?:at|on)\s+$", re.IGNORECASE)
_AT_TIME = re.compile(rf"^\s*(?:at|@|on|by|around|near)\s+{_ABOUT}{_TIME_WORD}\b", re.IGNORECASE)
_AT_NUMBER = re.compile(r"^\s*(?:at|@)\s*\d", re.IGNORECASE)
_AFTER_COUNT = re.compile(r"\bafter\s*$", re.IGNORECASE)
_STEPS_BEHIND = re.compile(rf"^\s*{_TIME_WORD}\b", re.IGNORECASE)
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
    rf"|deviation|variance|difference)\s+of)\s+{_ABOUT}$",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"[;!?\n]|\.(?!\d)")
_PART = {"first": 0, "1st": 0, "second": 1, "2nd": 1, "third": 2, "3rd": 2, "fourth": 3, "4th": 3}
_NEXT_PART = re.compile(
    rf"^[,\s]*(?:and\s+)?(?:the\s+)?(second|third|fourth|last|final)\s+{_ABOUT}$", re.IGNORECASE
)
_LEVELS = re.compile(
    r"(?<!first )(?<!second )(?<!third )(?<!fourth )(?<!last )\b(?P<word>quarter|level)s?\b\D*$",
    re.IGNORECASE,
)
_LIST_GAP = re.compile(r"^\s*(?:,\s*|\s)(?P<then>then\s+)?(?:and\s+)?$", re.IGNORECASE)
_CUE = re.compile(
    r"""\b(?:
      (?P<part>(?:first|second|third|fourth|last|final|1st|2nd|3rd|4th)\s+(?:quarter|half))
    | (?P<start>(?:(?:start|begin|began|begun|open|initial)\w*|first\s+value)
        (?:\s+(?:very\s+|fairly\s+|relatively\s+)?(?:low|high))?)
    | (?P<end>(?:end(?:s|ed|ing)?|finish\w*|clos(?:e|es|ed|ing)|final\w*|last)
        (?:\s+(?:very\s+|fairly\s+|relatively\s+)?(?:low|high))?)
    | (?P<max>peak\w*|max\w*|highs?|highest|top(?:s|ped|ping)?|summit|crest\w*)
    | (?P<min>min(?:imum|ima|imal)?|lows?|lowest|trough\w*|dip\w*|bottom\w*|nadir)
    | (?P<mean>mean|averag\w*|avg)
    )\b""",
    re.IGNORECASE | re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class Number:
    """A number in a caption: where it stands, what it reads as, and its role."""

    start: int
    end: int
    text: str
    value: float
    role: Role


@dataclass(frozen=True, slots=True)
class Claim:
    """A named value, where it stands and what it is said to be; ``step``: the time beside it."""

    value: float
    text: str
    kind: Kind
    start: int
    part: tuple[int, int] | None = None  # (index, count): the mean of that quarter or half
    step: int | None = None


@dataclass(frozen=True, slots=True)
class TimeClaim:
    """A named time position: the ``kind`` of thing it dates, and the ``value``, if named."""

    step: int
    kind: Kind
    value: float | None
    start: int
    text: str


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
        own_time = _AT_TIME.match(behind) or _AT_NUMBER.match(behind)
        if whole and last.role == "time" and joined and not own_time:
            return "time"
        if inside and last.role == "value" and _AT.match(gap):
            return "time"
    if _COUNT_BEHIND.match(behind) or _DIFFERENCE_BEFORE.search(before):
        return "other"
    return "value"


def _sentences(caption: str) -> Iterator[tuple[int, int]]:
    start = 0
    for match in _SENTENCE_END.finditer(caption):
        yield start, match.start()
        start = match.end()
    yield start, len(caption)


def _part(text: str) -> tuple[int, int]:
    ordinal, noun = text.lower().split()
    count = 4 if noun == "quarter" else 2
    index = count - 1 if ordinal in ("last", "final") else _PART[ordinal]
    return min(index, count - 1), count


def _cue(match: re.Match[str]) -> tuple[Kind, tuple[int, int] | None]:
    kind = match.lastgroup
    assert kind is not None
    return kind, _part(match.group()) if kind == "part" else None  # type: ignore[return-value]


def claims(caption: str, n_steps: int) -> tuple[list[Claim], list[TimeClaim]]:
    """Return what a caption says in numbers: claims on values and claims on times, in order."""
    values: list[Claim] = []
    times: list[TimeClaim] = []
    named = numbers(caption, n_steps)
    first = 0
    for begin, end in _sentences(caption):
        last = first
        while last < len(named) and named[last].start < end:
            last += 1
        inside, first = named[first:last], last
        dated = _dated(caption, inside)
        parts = _parts(caption, begin, inside)
        owners: dict[int, Claim] = {}
        left = begin
        for i, number in enumerate(inside):
            if number.role == "value":
                stop = inside[i + 1].start if i + 1 < len(inside) else end
                part = parts.get(number.start)
                claim = _claim(caption, left, number, stop, dated.get(number.start), part)
                values.append(claim)
                if number.start in dated:
                    owners.setdefault(dated[number.start].start, claim)
                left = number.end
        times += _time_claims(caption, begin, inside, owners)
    return values, times


def _dated(caption: str, inside: list[Number]) -> dict[int, Number]:
    """Map each value's start to the time named with it: "<value> at <t>" or "<t> … <value>"."""
    dated: dict[int, Number] = {}
    used: set[int] = set()
    for i, number in enumerate(inside):
        if number.role != "value":
            continue
        follower = inside[i + 1] if i + 1 < len(inside) else None
        leader = inside[i - 1] if i else None
        if follower is not None and follower.role == "time":
            gap = caption[number.end : follower.start]
            if "," not in gap and len(gap.split()) <= 5:
                dated[number.start] = follower
                used.add(follower.start)
                continue
        span = i > 1 and inside[i - 2].role == "time"  # "between steps 3 and 7": no single step
        if leader is not None and leader.role == "time" and leader.start not in used and not span:
            dated[number.start] = leader
            used.add(leader.start)
    return dated


def _parts(caption: str, begin: int, inside: list[Number]) -> dict[int, tuple[int, int]]:
    """Map each value's start to (index, count) in lists of levels: "quarters near 1, 2, 3, 4"."""
    parts: dict[int, tuple[int, int]] = {}
    for i, number in enumerate(inside):
        if number.role != "value" or number.start in parts:
            continue
        left = inside[i - 1].end if i else begin
        ordinal = _NEXT_PART.match(caption[left : number.start])
        if ordinal and i and inside[i - 1].start in parts:
            count = parts[inside[i - 1].start][1]
            parts[number.start] = _part(f"{ordinal[1]} {'quarter' if count == 4 else 'half'}")
        elif cue := _first_part(caption[left : number.start]):
            parts[number.start] = cue
        elif levels := _LEVELS.search(caption[left : number.start]):
            listed = _listed(caption, inside[i:])
            if levels["word"].lower() == "quarter":
                listed = listed[:4] if len(listed) >= 4 else []
            if len(listed) > 1:
                parts |= {n.start: (k, len(listed)) for k, n in enumerate(listed)}
    return parts


def _first_part(text: str) -> tuple[int, int] | None:
    cues = [_cue(match) for match in _CUE.finditer(text)]
    if len(cues) > 1 and cues[-1][0] == "mean":
        cues.pop()  # "the first quarter averages 43"
    return cues[-1][1] if cues else None


def _listed(caption: str, numbers_left: list[Number]) -> list[Number]:
    """Return the run of values that are joined by commas, or all by "then"."""
    run = numbers_left[:1]
    then: bool | None = None
    for number in numbers_left[1:7]:
        gap = _LIST_GAP.match(caption[run[-1].end : number.start])
        dated = _AT_TIME.match(caption[number.end : number.end + 40])
        if number.role != "value" or not gap or dated or then not in (None, bool(gap["then"])):
            break
        then = bool(gap["then"])
        run.append(number)
    return run


def _claim(
    caption: str,
    left: int,
    number: Number,
    stop: int,
    time: Number | None,
    part: tuple[int, int] | None,
) -> Claim:
    step = None if time is None else int(time.value)
    if part is not None:
        return Claim(number.value, number.text, "part", number.start, part, step)
    clause = max(left, caption.rfind(",", left, number.start) + 1)
    comma = caption.find(",", number.end, stop)
    near = list(_CUE.finditer(caption, clause, number.start))
    ahead = None if near else _CUE.search(caption, number.end, comma if comma >= 0 else stop)
    if near or ahead:
        kind, _ = _cue(near[-1] if near else ahead)  # type: ignore[arg-type]
    elif step is not None:
        kind = "step"
    else:
        earlier = list(_CUE.finditer(caption, left, clause))
        kind = _cue(earlier[-1])[0] if earlier else "any"
    kind = kind if kind != "part" else "any"
    return Claim(number.value, number.text, kind, number.start, None, step)


def _time_claims(
    caption: str, begin: int, inside: list[Number], owners: dict[int, Claim]
) -> list[TimeClaim]:
    claimed: list[TimeClaim] = []
    left = begin
    for number in inside:
        if number.role == "time":
            step = int(number.value)
            owner = owners.get(number.start)
            if owner is not None:
                kind, value = owner.kind, owner.value
            else:
                kinds = [_cue(match)[0] for match in _CUE.finditer(caption, left, number.start)]
                kind, value = kinds[-1] if kinds else "any", None
            claimed.append(TimeClaim(step, kind, value, number.start, number.text))
        left = number.end
    return claimed


def tolerance(series: NDArray[np.float64], text: str, axis: Axis = None) -> float:
    """Return how far a value printed as ``text`` may lie from the truth, in the series' units."""
    digits = re.sub(r"[eE].*$", "", text)
    decimals = len(digits.partition(".")[2])
    exponent = re.search(r"[eE]([-+]?\d+)$", text)
    last_digit = 10.0 ** ((int(exponent.group(1)) if exponent else 0) - decimals)
    spread = float(series.max() - series.min())
    seen = AXIS_TOLERANCE * (axis[1] - axis[0]) if axis else 0.0
    return max(RELATIVE_TOLERANCE * spread, 0.5 * last_digit, seen) * (1 + 1e-9)


def _around(series: NDArray[np.float64], step: int) -> NDArray[np.float64]:
    return series[max(0, step - STEP_SLACK) : max(0, step + STEP_SLACK + 1)]


def value_is_true(claim: Claim, series: NDArray[np.float64], axis: Axis = None) -> bool:
    """Return whether a claimed value is true of ``series`` [T]; ``axis``: the fixed y-range."""
    if claim.kind == "start":
        truth = series[:1]
    elif claim.kind == "end":
        truth = series[-1:]
    elif claim.kind == "max":
        truth = np.array([series.max()])
    elif claim.kind == "min":
        truth = np.array([series.min()])
    elif claim.kind == "mean":
        truth = np.array([series.mean()])
    elif claim.kind == "part" and claim.part is not None:
        index, count = claim.part
        pieces = np.array_split(series, count)
        truth = np.array([pieces[index].mean()]) if pieces[index].size else series[:0]
    elif claim.kind == "step" and claim.step is not None:
        truth = _around(series, claim.step) if claim.step < len(series) + STEP_SLACK else series[:0]
    else:
        truth = series
    return bool(np.any(np.abs(truth - claim.value) <= tolerance(series, claim.text, axis)))


def time_is_true(claim: TimeClaim, series: NDArray[np.float64], axis: Axis = None) -> bool | None:
    """Return whether what a time dates is there in ``series`` [T]; None: nothing to check."""
    near = _around(series, claim.step)
    slack = tolerance(series, "0.0000000001", axis)
    if claim.kind in ("max", "min"):
        extreme = series.max() if claim.kind == "max" else series.min()
        return bool(near.size and np.any(np.abs(near - extreme) <= slack))
    if claim.value is not None and claim.kind in ("step", "start", "end"):
        return bool(near.size and np.any(np.abs(near - claim.value) <= slack))
    return None
