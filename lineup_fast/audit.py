"""What a reward set-up can be trusted with, measured before it is trained against.

Every measurement asks the fixed candidate sets at all positions, so a repetition gives the same
numbers. Accuracies are means over items; intervals resample whole sources.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lineup_fast import counters, probes
from lineup_fast.audit_findings import Change, Finding, Measured, judge
from lineup_fast.candidates import CandidateError
from lineup_fast.resampling import mean_interval
from lineup_fast.rewards import IdentificationReward
from lineup_fast.verifiers.base import BackendError

if TYPE_CHECKING:
    import numpy.typing as npt

    from lineup_fast.candidates import Kind
    from lineup_fast.corpus import Corpus
    from lineup_fast.probes import Material, Probe
    from lineup_fast.prompts import Recipe
    from lineup_fast.rewards import RewardBatch
    from lineup_fast.verifiers.base import Verifier

Progress = Callable[[str, int, int], None]

CHUNK = 16  # items asked in one call
# Where distractors can come from, and how many candidates they allow (None: the recipe's).
DISTRACTORS: tuple[tuple[Kind, int | None], ...] = (
    ("nearest", None),
    ("random", None),
    ("shuffle", None),
    ("reverse", 2),
    ("swap", None),
)
K_SWEEP = range(2, 13)


@dataclass(frozen=True)
class Audit:
    """Everything that was measured of one corpus, verifier and recipe."""

    recipe: str
    fingerprints: dict[str, str]
    distractors: str
    items: int
    sources: int
    captions: list[Measured]
    hacks: list[Change]
    questions: list[Measured]
    sweep: list[Measured]
    findings: list[Finding]

    @property
    def verdicts(self) -> list[str]:
        """What the findings say, without repetition; ["safe"] where every threshold holds."""
        broken = dict.fromkeys(f.verdict for f in self.findings if not f.holds)
        return list(broken) or ["safe"]

    def table(self) -> str:
        """The audit in words: what was measured, then what follows."""
        lines = [
            f"{self.items} items of {self.sources} sources, {self.distractors} distractors, "
            f"{self.recipe}",
            "",
            f"{'caption':20} {'accuracy':>8} {'95% interval':>15} {'items':>6}  by position",
            *(_measured_line(found.name, found) for found in self.captions),
            "",
            f"{'against it':20} {'change':>8} {'95% interval':>15} {'items':>6}  held against",
            *(
                f"{hack.name:20} {_number(hack.change, '+'):>8} {_interval(hack):>15} "
                f"{hack.n:6}  {hack.against}"
                for hack in self.hacks
            ),
            "",
            f"{'distractors':20} {'accuracy':>8} {'95% interval':>15} {'items':>6}  by position",
            *(
                _measured_line(f"{found.distractors} K={found.k} {found.name}", found)
                for found in (*self.questions, *self.sweep)
            ),
            "",
            *(
                f"{found.verdict:7} {found.check}: {found.value:.3f}, threshold "
                f"{found.threshold:.2f} ({found.text})"
                for found in self.findings
            ),
            f"verdict: {', '.join(self.verdicts)}",
        ]
        return "\n".join(lines)

    def write(self, path: str | os.PathLike[str]) -> None:
        """``audit.json``: every field, all or nothing."""
        target = Path(path)
        document = {"verdicts": self.verdicts, **asdict(self)}
        fresh = target.with_name(f"{target.name}.writing-{os.getpid()}")
        fresh.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        fresh.replace(target)


@dataclass(frozen=True)
class _Outcome:
    """Per item: accuracy float64 [n], NaN where it could not be asked, and why."""

    accuracy: npt.NDArray[np.float64]
    measured: Measured


def audit(
    corpus: Corpus,
    verifier: Verifier,
    recipe: Recipe,
    *,
    kind: Kind = "nearest",
    items: int = 200,
    split: str = "val",
    seed: int = 0,
    progress: Progress = lambda *_: None,
) -> Audit:
    """Measure a reward set-up.

    kind: the distractors that training will use. items: how many of the split, drawn by ``seed``.
    Raises: ValueError on an empty split; BackendError where the verifier answers nothing.
    """
    if items < 1:
        raise ValueError(f"items: expected at least 1, got {items}")
    ids = corpus.ids(split, k=recipe.k)
    if not ids:
        raise ValueError(f"split: expected items with {recipe.k - 1} neighbours, got none: {split}")
    chosen = [ids[at] for at in counters.order(len(ids), seed, "audit")[:items]]
    bench = _Bench(corpus, verifier, recipe, chosen, seed, progress)
    everything = (*probes.CAPTIONS, *probes.HACKS)
    outcomes = bench.ask(everything, kind, recipe.k)
    true = outcomes[probes.TRUTH.name].measured
    if not true.n:
        raise BackendError(f"verifier: expected answers, got none ({true.why})")
    captions = [outcomes[probe.name].measured for probe in probes.CAPTIONS]
    hacks = [bench.change(probe, outcomes) for probe in probes.HACKS]
    questions = bench.questions()
    sweep = bench.sweep(kind)
    progress("done", bench.total, bench.total)
    return Audit(
        recipe.name,
        bench.fingerprints,
        kind,
        len(chosen),
        len({corpus.meta(item).source for item in chosen}),
        captions,
        hacks,
        questions,
        sweep,
        judge(captions, hacks),
    )


class _Bench:
    """The items, and how they are asked."""

    def __init__(
        self,
        corpus: Corpus,
        verifier: Verifier,
        recipe: Recipe,
        items: Sequence[str],
        seed: int,
        progress: Progress,
    ) -> None:
        self.corpus, self.verifier, self.recipe = corpus, verifier, recipe
        self.items, self.seed, self.progress = list(items), seed, progress
        self.sources = [corpus.meta(item).source for item in items]
        self.fingerprints: dict[str, str] = {}
        self.done, self.total = 0, len(items) * (1 + len(DISTRACTORS) + len(K_SWEEP))

    def ask(self, kinds: Sequence[Probe], distractors: Kind, k: int) -> dict[str, _Outcome]:
        """Every kind of caption about every item, the captions of an item in one group."""
        recipe = replace(self.recipe, k=k, positions=None)
        reward = IdentificationReward(self.corpus, self.verifier, recipe, kind=distractors)
        self.fingerprints = self.fingerprints or dict(reward.fingerprints)
        batches: list[tuple[list[tuple[int, int]], RewardBatch]] = []
        reasons: dict[int, str] = {}
        for begin in range(0, len(self.items), CHUNK):
            self.progress(f"{distractors}, K={k}", self.done, self.total)
            rows, captions = self._written(kinds, reward, begin, reasons)
            if rows:
                ids = [self.items[item] for item, _ in rows]
                batches.append((rows, reward.score(captions, ids)))
            self.done += len(self.items[begin : begin + CHUNK])
        return {
            probe.name: self._outcome(probe, number, distractors, k, batches, reasons)
            for number, probe in enumerate(kinds)
        }

    def _written(
        self,
        kinds: Sequence[Probe],
        reward: IdentificationReward,
        begin: int,
        reasons: dict[int, str],
    ) -> tuple[list[tuple[int, int]], list[str]]:
        """(item, kind) and caption of a chunk of items; items without a question get a reason."""
        rows: list[tuple[int, int]] = []
        captions: list[str] = []
        for item in range(begin, min(begin + CHUNK, len(self.items))):
            try:
                material = self._material(self.items[item], reward)
            except CandidateError as error:
                reasons[item] = str(error)
                continue
            for number, probe in enumerate(kinds):
                caption = probe.write(material)
                if caption is not None:
                    rows.append((item, number))
                    captions.append(caption)
        return rows, captions

    def _material(self, item: str, reward: IdentificationReward) -> Material:
        candidates = reward.candidates(item)
        shown = {item, *candidates.distractors}
        others = [name for name in self.items if name not in shown] or self.corpus.peers(item)
        at = counters.order(len(others), self.seed, "other", item)[0]
        other = self.corpus.series(others[at])
        return probes.Material(candidates, other, self.corpus.caption(item))

    def _outcome(
        self,
        probe: Probe,
        number: int,
        distractors: str,
        k: int,
        batches: Sequence[tuple[list[tuple[int, int]], RewardBatch]],
        reasons: dict[int, str],
    ) -> _Outcome:
        accuracy = np.full(len(self.items), np.nan)
        picks: list[npt.NDArray[np.int32]] = []
        masses: list[npt.NDArray[np.float32]] = []
        why = next(iter(reasons.values()), None)
        for rows, batch in batches:
            for at, (item, kind) in enumerate(rows):
                if kind != number:
                    continue
                if not batch.valid[at]:
                    why = why or batch.reason[at]
                    continue
                accuracy[item] = batch.accuracy[at]
                picks.append(batch.picks[at])
                masses.append(batch.label_mass[at])
        asked = ~np.isnan(accuracy)
        stacked = np.array(picks).reshape(-1, k)
        mass = np.array(masses, dtype=np.float64)
        low, high = self.interval(accuracy)
        parsed = max(1, int((stacked >= 0).sum()))
        measured = Measured(
            probe.name,
            probe.about,
            distractors,
            k,
            int(asked.sum()),
            int((~asked).sum()),
            why if not asked.all() else None,
            float(accuracy[asked].mean()) if asked.any() else None,
            low,
            high,
            _means(stacked == np.arange(k)),
            [float((stacked == label).sum() / parsed) for label in range(k)],
            _plain(float(mass.mean())) if mass.size else None,
        )
        return _Outcome(accuracy, measured)

    def interval(self, values: npt.NDArray[np.float64]) -> tuple[float | None, float | None]:
        """Interval of the mean of what is not NaN, sources resampled."""
        kept = ~np.isnan(values)
        sources = [source for source, keep in zip(self.sources, kept, strict=True) if keep]
        low, high = mean_interval(values[kept], sources, seed=self.seed)
        return _plain(low), _plain(high)

    def change(self, probe: Probe, outcomes: dict[str, _Outcome]) -> Change:
        """The probe against what it is held against, over items that have both."""
        against = probe.against or "empty"
        own = outcomes[probe.name].accuracy
        paired = own - outcomes[against].accuracy
        kept = ~np.isnan(paired)
        low, high = self.interval(paired)
        return Change(
            probe.name,
            probe.about,
            against,
            int(kept.sum()),
            float(own[kept].mean()) if kept.any() else None,
            float(paired[kept].mean()) if kept.any() else None,
            low,
            high,
        )

    def questions(self) -> list[Measured]:
        """Without a caption and with a true one, by where the distractors come from."""
        found = []
        for kind, k in DISTRACTORS:
            outcomes = self.ask((probes.EMPTY, probes.TRUTH), kind, k or self.recipe.k)
            found += [outcome.measured for outcome in outcomes.values()]
        return found

    def sweep(self, kind: Kind) -> list[Measured]:
        """True descriptions among 2 to 12 candidates."""
        ks = [k for k in K_SWEEP if kind != "synthetic" or k <= 4]
        return [self.ask((probes.TRUTH,), kind, k)["truth"].measured for k in ks]


def _number(value: float | None, sign: str = "") -> str:
    return "-" if value is None else f"{value:{sign}.3f}"


def _interval(found: Measured | Change) -> str:
    return "-" if found.low is None else f"{found.low:.3f} .. {found.high:.3f}"


def _measured_line(name: str, found: Measured) -> str:
    positions = " ".join(_number(value) for value in found.by_position)
    why = f"  {found.left_out} left out: {found.why}" if found.why else ""
    return (
        f"{name:20} {_number(found.accuracy):>8} {_interval(found):>15} {found.n:6}  "
        f"{positions}{why}"
    )


def _means(hits: npt.NDArray[np.bool_]) -> list[float | None]:
    return [_plain(value) for value in hits.mean(axis=0)] if len(hits) else [None] * hits.shape[1]


def _plain(value: float) -> float | None:
    """JSON has no NaN."""
    return None if np.isnan(value) else float(value)
