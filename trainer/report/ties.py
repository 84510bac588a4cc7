"""What a number of a sentence is tied to: a time, a place in a run of consecutive values, a part.

Values joined by commas or "and" alone are a **list**, and so are times ("steps 3, 5 and 9"). A
value with words of its own behind it ("92 is the peak", "41 at step 5") leaves the list.

* A list is a **run** of consecutive values, in the order told,
  - at step t, t+1, … when one step stands in front of it ("from step 5: 37, 41, 52") or
    "from step t" behind it; a span of as many steps ("steps 5 to 7") says the same;
  - at steps 0, 1, … when the last cue in front of it is a start word ("starts 80, 83, 86");
  - ending at the last step when that cue is an end word ("last values 4, 3, 3").
  A start or end word right behind the list counts too ("4, 3, 3 at the end").
* A list next to a list of as many steps is told pairwise ("92, 12 at steps 4 and 8").
* A single value is told at the step named with it: "<value> at <t>" or "<t> … <value>".
* A list behind "quarters" or "levels" tells the means of as many equal parts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from trainer.report.numerals import ABOUT, AT_TIME, TIME_WORD, Number

Kind = Literal["start", "end", "max", "min", "mean", "part", "step", "run", "any"]

_PART = {"first": 0, "1st": 0, "second": 1, "2nd": 1, "third": 2, "3rd": 2, "fourth": 3, "4th": 3}
_NEXT_PART = re.compile(
    rf"^[,\s]*(?:and\s+)?(?:the\s+)?(second|third|fourth|last|final)\s+{ABOUT}$", re.IGNORECASE
)
_LEVELS = re.compile(
    r"(?<!first )(?<!second )(?<!third )(?<!fourth )(?<!last )\b(?P<word>quarter|level)s?\b\D*$",
    re.IGNORECASE,
)
_LIST_GAP = re.compile(r"^\s*(?:,\s*|\s)(?P<then>then\s+)?(?:and\s+)?$", re.IGNORECASE)
_RUN_GAP = re.compile(r"^(?:\s*,\s*|\s+)(?:and\s+)?$", re.IGNORECASE)
_TIME_GAP = re.compile(
    rf"^(?:\s*,\s*(?:and\s+)?|\s*(?:\b(?:and|or|to|through|until)\b|-|–)\s*(?:{TIME_WORD}\s*)?)$",
    re.IGNORECASE,
)
_FROM = re.compile(
    r"^\s*\(?(?:from|since|after|(?:starting|beginning)\s+(?:from|at|with|on))\b", re.IGNORECASE
)
_OWN = re.compile(r"^\s*(?:is|was|are|being|marks?|as\s+(?:the|its|an?))\b", re.IGNORECASE)
_LEAD = re.compile(r"\s*\(?(?:(?:at|in|by|near|toward|towards|the|its)\s+)*", re.IGNORECASE)
CUE = re.compile(
    r"""\b(?:
      (?P<part>(?:first|second|third|fourth|last|final|1st|2nd|3rd|4th)\s+(?:quarter|half))
    | (?P<start>(?:(?:start|begin|began|begun|open|initial)\w*|first\s+(?:\w+\s+)?values?)
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
class Run:
    """Consecutive values from step ``first`` on; ``exact``: no step was read off, none is off."""

    first: int
    values: tuple[float, ...]
    texts: tuple[str, ...]
    exact: bool


@dataclass(slots=True)
class Ties:
    """For values, by where they start: the time named with them; their run and place in it."""

    times: dict[int, Number] = field(default_factory=dict)
    runs: dict[int, tuple[Run, int]] = field(default_factory=dict)

    def pair(self, values: list[Number], times: list[Number]) -> None:
        """Tie each value to the time of the same index."""
        self.times |= {v.start: t for v, t in zip(values, times, strict=True)}

    def run(self, values: list[Number], first: int, time: Number | None = None) -> None:
        """Tie the values to the steps from ``first`` on, as told by ``time`` or, None, a word."""
        told = tuple(v.value for v in values), tuple(v.text for v in values)
        run = Run(first, *told, exact=time is None)
        self.runs |= {v.start: (run, i) for i, v in enumerate(values)}
        if time is not None:
            self.times[values[0].start] = time


def cue_kind(match: re.Match[str]) -> Kind:
    """Return what a match of `CUE` speaks of."""
    assert match.lastgroup is not None
    return match.lastgroup  # type: ignore[return-value]


def _part(text: str) -> tuple[int, int]:
    ordinal, noun = text.lower().split()
    count = 4 if noun == "quarter" else 2
    index = count - 1 if ordinal in ("last", "final") else _PART[ordinal]
    return min(index, count - 1), count


def _edges(text: str) -> list[Kind]:
    """Return the start and end words of a text, in order."""
    kinds = [cue_kind(match) for match in CUE.finditer(text)]
    return [kind for kind in kinds if kind in ("start", "end")]


def _own_words(caption: str, number: Number) -> bool:
    """Return whether the words right behind a number speak of it alone."""
    behind = caption[number.end : number.end + 80]
    lead = _LEAD.match(behind)
    cue = CUE.match(behind, lead.end() if lead else 0)
    return bool(_OWN.match(behind)) or (cue is not None and cue.lastgroup in ("max", "min"))


def _own_time(caption: str, value: Number, times: list[Number]) -> bool:
    """Return whether the times behind a value are one that dates it, and no list before it."""
    gap = caption[value.end : times[0].start]
    return len(times) == 1 and _names(gap) and not _FROM.match(gap)


def _names(gap: str) -> bool:
    """Return whether a gap between a value and a time keeps them together: "… at step"."""
    words = gap.lower().split()
    return "," not in gap and len(words) <= 5 and "and" not in words


def _blocks(
    caption: str, inside: list[Number], parts: dict[int, tuple[int, int]]
) -> list[list[Number]]:
    """Return the numbers cut into lists of values and lists of times."""
    blocks: list[list[Number]] = []
    for number in reversed(inside):  # from behind: whether a value has a time of its own is known
        block = blocks[-1] if blocks else []
        gap = caption[number.end : block[-1].start] if block else ""
        same = bool(block) and number.role == block[-1].role and number.role != "other"
        if number.role == "value" and same:
            after = blocks[-2] if len(blocks) > 1 and blocks[-2][-1].role == "time" else []
            alone = len(block) == 1 and (
                _own_words(caption, block[0])
                or (bool(after) and _own_time(caption, block[0], after[::-1]))
            )
            told = number.start in parts or block[-1].start in parts
            same = bool(_RUN_GAP.match(gap)) and not alone and not told
        elif same:
            same = bool(_TIME_GAP.match(gap))
        if same:
            block.append(number)
        else:
            blocks.append([number])
    return [block[::-1] for block in reversed(blocks)]


def ties(
    caption: str, begin: int, inside: list[Number], parts: dict[int, tuple[int, int]], n_steps: int
) -> Ties:
    """Return what the values of the sentence from ``begin`` on are tied to, ``parts`` aside."""
    found = Ties()
    blocks = _blocks(caption, inside, parts)
    used, left = -1, begin  # the last list of times that is named, the end of the last value
    for k, block in enumerate(blocks):
        if block[0].role != "value":
            continue
        leader = blocks[k - 1] if k and blocks[k - 1][0].role == "time" else []
        text = caption[leader[-1].end if leader else left : block[0].start]
        clause = text[text.rfind(",") + 1 :]
        edges, nearest = _edges(text), list(CUE.finditer(clause))
        follower = blocks[k + 1] if k + 1 < len(blocks) and blocks[k + 1][0].role == "time" else []
        gap = caption[block[-1].end : follower[0].start] if follower else ","
        edge = cue_kind(nearest[-1]) if nearest else None
        behind, left = edge_behind(caption, block[-1])
        if "between" in clause.lower() and not follower:
            continue  # "starts between 30 and 40"
        if len(block) > 1 and edge in ("start", "end"):
            if behind not in (None, edge) and left > block[-1].end:
                block.pop()  # "starts at 34, 78 at the end"
            _run_of_edge(found, block, edge, n_steps)
        elif follower and _names(gap) and _tie(found, block, follower, bool(_FROM.match(gap))):
            used = k + 1
        elif leader and used != k - 1 and not edges and _tie(found, block, leader, True):
            used = k - 1
        elif len(block) > 1:
            edge = behind or (edges[-1] if edges else None)
            if edge:
                _run_of_edge(found, block, edge, n_steps)
    return found


def _run_of_edge(found: Ties, block: list[Number], edge: Kind, n_steps: int) -> None:
    found.run(block, 0 if edge == "start" else n_steps - len(block))


def edge_behind(caption: str, number: Number) -> tuple[Kind | None, int]:
    """Return the start or end word right behind a number ("78 at the end"), and where it ends."""
    behind = caption[number.end : number.end + 80]
    lead = _LEAD.match(behind)
    cue = CUE.match(behind, lead.end() if lead else 0)
    if lead is None or cue is None or cue.lastgroup not in ("start", "end"):
        return None, number.end
    # Without "at the" the word may open the next clause: "34, 40 ends 78".
    return cue_kind(cue), number.end + cue.end() if "the" in lead.group().lower() else number.end


def _tie(found: Ties, block: list[Number], times: list[Number], consecutive: bool) -> bool:
    """Tie a list of values to the times beside it; return whether the times say how."""
    first, last = int(times[0].value), int(times[-1].value)
    if len(times) == len(block):
        found.pair(block, times)
    elif (len(times) == 1 and consecutive) or (
        len(times) == 2 and last - first + 1 == len(block) > 1
    ):
        found.run(block, first, times[0])
    else:
        return False
    return True


def part_ties(caption: str, begin: int, inside: list[Number]) -> dict[int, tuple[int, int]]:
    """Map each value's start to (index, count) in lists of levels: "quarters near 1, 2, 3, 4"."""
    parts: dict[int, tuple[int, int]] = {}
    for i, number in enumerate(inside):
        if number.role != "value" or number.start in parts:
            continue
        left = inside[i - 1].end if i else begin
        text = caption[left : number.start]
        ordinal = _NEXT_PART.match(text)
        if ordinal and i and inside[i - 1].start in parts:
            count = parts[inside[i - 1].start][1]
            parts[number.start] = _part(f"{ordinal[1]} {'quarter' if count == 4 else 'half'}")
        elif cue := _first_part(text):
            parts[number.start] = cue
        # "it stays level, ends 58, 69, 84": an end word behind the level word takes the list.
        elif (levels := _LEVELS.search(text)) and not _edges(levels.group()):
            listed = _listed(caption, inside[i : i + 7])
            if levels["word"].lower() == "quarter":
                listed = listed[:4] if len(listed) >= 4 else []
            if len(listed) > 1:
                parts |= {n.start: (k, len(listed)) for k, n in enumerate(listed)}
    return parts


def _first_part(text: str) -> tuple[int, int] | None:
    cues = list(CUE.finditer(text))
    if len(cues) > 1 and cues[-1].lastgroup == "mean":
        cues.pop()  # "the first quarter averages 43"
    return _part(cues[-1].group()) if cues and cues[-1].lastgroup == "part" else None


def _listed(caption: str, numbers_left: list[Number]) -> list[Number]:
    """Return the run of values that are joined by commas, or all by "then"."""
    run = numbers_left[:1]
    then: bool | None = None
    for number in numbers_left[1:]:
        gap = _LIST_GAP.match(caption[run[-1].end : number.start])
        dated = AT_TIME.match(caption[number.end : number.end + 40])
        if number.role != "value" or not gap or dated or then not in (None, bool(gap["then"])):
            break
        then = bool(gap["then"])
        run.append(number)
    return run
