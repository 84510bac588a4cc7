"""What the numbers of an audit say: thresholds, verdicts, and the table that shows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["safe", "leaks", "biased", "blind"]

# Thresholds. An interval decides where there is one: a finding needs its whole interval beyond.
LEAK = 0.10  # accuracy above chance without information about the series
GAIN = 0.05  # accuracy that a hack gains over what it is held against
SKILL = 0.10  # accuracy above chance that a true description must reach; drop a false one causes
SPREAD = 0.20  # between the best and the worst position, true descriptions
SHARE = 0.10  # of picks that a label gets beyond 1/K, true descriptions
MASS = 0.50  # mean probability that the labels together must get
FALSE_PROBE = "distractor's values"


@dataclass(frozen=True)
class Measured:
    """One kind of caption under one kind of question.

    accuracy: mean over the n items that could be asked, with its interval [low, high] (None: one
    source only); by_position, pick_shares [K]; label_mass (None where replies were generated).
    left_out: items without such a caption or question, why: the first reason.
    """

    name: str
    about: str
    distractors: str
    k: int
    n: int
    left_out: int
    why: str | None
    accuracy: float | None
    low: float | None
    high: float | None
    by_position: list[float | None]
    pick_shares: list[float]
    label_mass: float | None


@dataclass(frozen=True)
class Change:
    """What a probe changes against another caption of the same items: mean difference, interval."""

    name: str
    about: str
    against: str
    n: int
    accuracy: float | None
    change: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Finding:
    """One threshold: what was compared with it, and what follows. holds: within the threshold."""

    check: str
    verdict: Verdict
    value: float
    threshold: float
    text: str

    @property
    def holds(self) -> bool:
        """Whether the set-up stays within the threshold."""
        return self.verdict == "safe"


def judge(captions: Sequence[Measured], hacks: Sequence[Change]) -> list[Finding]:
    """Every threshold against what was measured; what could not be measured has no finding.

    captions: of ``probes.CAPTIONS``, hacks: of ``probes.HACKS``, under the set-up's own questions.
    """
    found = {measured.name: measured for measured in captions}
    findings = [
        _leak(found[name])
        for name in ("empty", "generic", "other series")
        if found[name].accuracy is not None
    ]
    true = found["truth"]
    if true.accuracy is not None:
        findings += [_skill(true), *_bias(true)]
    for hack in hacks:
        if hack.change is not None:
            findings.append(_falsehood(hack) if hack.name == FALSE_PROBE else _gain(hack))
    return findings


def _surely_above(value: float, low: float | None, limit: float) -> bool:
    return (value if low is None else low) > limit


def _leak(measured: Measured) -> Finding:
    value = (measured.accuracy or 0.0) - 1 / measured.k
    low = None if measured.low is None else measured.low - 1 / measured.k
    broken = _surely_above(value, low, LEAK)
    return Finding(
        f"caption: {measured.name}",
        "leaks" if broken else "safe",
        value,
        LEAK,
        "accuracy above chance of a caption that tells nothing about the series",
    )


def _skill(true: Measured) -> Finding:
    value = (true.accuracy or 0.0) - 1 / true.k
    return Finding(
        "caption: truth",
        "safe" if value >= SKILL else "blind",
        value,
        SKILL,
        "accuracy above chance of a true description; below, the verifier does not read it",
    )


def _bias(true: Measured) -> list[Finding]:
    by_position = [value for value in true.by_position if value is not None]
    spread = max(by_position) - min(by_position)
    share = max(true.pick_shares) - 1 / true.k
    findings = [
        Finding(
            "positions",
            "biased" if spread > SPREAD else "safe",
            spread,
            SPREAD,
            "accuracy between the target's best and worst position, true descriptions",
        ),
        Finding(
            "labels",
            "biased" if share > SHARE else "safe",
            share,
            SHARE,
            "share of the most picked label beyond 1/K, true descriptions",
        ),
    ]
    if true.label_mass is not None:
        findings.append(
            Finding(
                "label mass",
                "biased" if true.label_mass < MASS else "safe",
                true.label_mass,
                MASS,
                "mean probability that the labels get together; below, they are not what the "
                "verifier would say",
            )
        )
    return findings


def _gain(hack: Change) -> Finding:
    value = hack.change or 0.0
    return Finding(
        f"hack: {hack.name}",
        "leaks" if _surely_above(value, hack.low, GAIN) else "safe",
        value,
        GAIN,
        f"accuracy gained over {hack.against}",
    )


def _falsehood(hack: Change) -> Finding:
    """Values of a distractor have to cost accuracy: else the numbers are not compared."""
    drop = -(hack.change or 0.0)
    return Finding(
        f"hack: {hack.name}",
        "safe" if drop >= SKILL else "blind",
        drop,
        SKILL,
        "accuracy lost by values that fit another candidate; below, numbers are not compared",
    )
