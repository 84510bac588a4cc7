"""Measure the tiny captioner on held-out series: ``python -m trainer.tiny.measure_captioner``.

Reads the numbers out of template captions and compares them with the series; with a verifier,
also how often the series is identified from greedy and from sampled captions.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lineup_fast import charts
from lineup_fast import corpus as corpora
from trainer.policy import Captioner
from trainer.rollouts.sampling import uniforms
from trainer.tiny import captions
from trainer.tiny.captioner_model import CAPTION_PROMPT
from trainer.tiny.verifier_check import RECIPE, default_corpus

HERE = Path(__file__).parent
MAX_TOKENS = 48
_ORDER = ("high", "low", "start_run", "end_run", "run", "start", "end", "quarters", "selected")
_DIRECTIONS = ("up", "down", "flat")


def _patterns(kind: str) -> list[re.Pattern[str]]:
    found = []
    for text in sorted(captions.WORDING[kind], key=len, reverse=True):
        # The last number before "at step" is a single value behind a run, not part of it.
        pattern = re.escape(text.lower()).replace(r"\{r\}", r"(?P<r>\d+(?:, \d+(?!\d| at step))+)")
        found.append(re.compile(re.sub(r"\\{(\w)\\}", r"(?P<\1>\\d{1,3})(?!\\d)", pattern)))
    return found


_FACTS = {kind: _patterns(kind) for kind in _ORDER}
_VAGUE = {
    f"{opening} {shape}{ending}."
    for opening in captions.VAGUE_OPENINGS
    for shapes in captions.VAGUE_SHAPES.values()
    for shape in shapes
    for ending in captions.VAGUE_ENDINGS
} | set(captions.EMPTY_TALK)


@dataclass
class Reading:
    """What a caption tells: |told - true| per value and per step, and whether it is well formed."""

    value_errors: list[float] = field(default_factory=list)
    step_errors: list[float] = field(default_factory=list)
    well_formed: bool = False


def read(caption: str, values: NDArray[np.float64]) -> Reading:
    """Compare the facts of a template caption with the series f64[T] it describes.

    Well formed: nothing is left of the text but joiners once the known phrases are taken out.
    A value told for a step outside the series counts as 100 off.
    """
    found, facts = Reading(), captions.facts_of(values)
    left = caption.lower()
    for kind, patterns in _FACTS.items():
        for pattern in patterns:
            for match in pattern.finditer(left):
                _compare(kind, match.groupdict(), facts, values, found)
            left = pattern.sub("|", left)
    for kind in _DIRECTIONS:
        for text in captions.WORDING[kind]:
            left = left.replace(text, "|")
    phrases = re.fullmatch(r"\|(?:(?:\. |, |; )\|)*\.", left.strip())
    found.well_formed = phrases is not None or caption in _VAGUE
    return found


def _compare(
    kind: str,
    told: dict[str, str],
    facts: captions.Facts,
    values: NDArray[np.float64],
    found: Reading,
) -> None:
    if kind in ("high", "low"):
        # The told step is right wherever the series takes its extreme.
        extreme = float(getattr(facts, kind))
        steps = np.flatnonzero(values == extreme)
        found.value_errors.append(abs(int(told["v"]) - extreme))
        found.step_errors.append(float(np.abs(steps - int(told["t"])).min()))
        return
    if kind == "quarters":
        numbers, truth = [told[name] for name in "abcd"], list(facts.quarters)
    else:
        numbers = told["r"].split(", ") if "r" in told else [told["v"]]
        first = {"start": 0, "end": len(values) - len(numbers)}.get(kind.removesuffix("_run"))
        begin = int(told["t"]) if first is None else first
        truth = values[max(0, begin) : begin + len(numbers)].tolist()
        truth += [math.inf] * (len(numbers) - len(truth))
    pairs = zip(numbers, truth, strict=True)
    found.value_errors += [min(100.0, abs(int(number) - true)) for number, true in pairs]


def held_out(n: int, seed: int = 0) -> tuple[corpora.Corpus, list[str]]:
    """The corpus of the packaged data, and n ids of its test split: sources never trained on."""
    built = default_corpus()
    ids = sorted(built.ids("test"))
    return built, [ids[i] for i in np.random.default_rng(seed).permutation(len(ids))[:n]]


def describe(
    captioner: Captioner, rows: list[NDArray[np.float64]], *, sampled: int = 0, seed: int = 0
) -> list[list[str]]:
    """The greedy caption of every series, or ``sampled`` captions of each at temperature 1."""
    out: list[list[str]] = []
    for begin in range(0, len(rows), 50):
        part = rows[begin : begin + 50]
        prompts = captioner.prompts(charts.render(part, charts.TINY_STYLE, threads=1))
        names = [str(begin + i) for i in range(len(part))]
        numbers = uniforms(seed, 0, names, max(1, sampled), MAX_TOKENS)
        decoded = captioner.generate(
            prompts,
            group_size=max(1, sampled),
            max_new_tokens=MAX_TOKENS,
            uniforms=torch.from_numpy(numbers) if sampled else None,
        )
        texts = captioner.texts(decoded.token_ids)
        size = max(1, sampled)
        out += [texts[i : i + size] for i in range(0, len(texts), size)]
    return out


def summary(told: list[list[str]], rows: list[NDArray[np.float64]]) -> dict[str, Any]:
    """Errors and form of captions [n][G] of n series."""
    readings = [read(text, row) for group, row in zip(told, rows, strict=True) for text in group]
    texts = [text for group in told for text in group]
    values = [e for r in readings for e in r.value_errors]
    steps = [e for r in readings for e in r.step_errors]
    return {
        "captions": len(texts),
        "value_error": float(np.mean(values)) if values else None,
        "value_error_median": float(np.median(values)) if values else None,
        "step_error": float(np.mean(steps)) if steps else None,
        "values_per_caption": len(values) / len(texts),
        "well_formed": float(np.mean([r.well_formed for r in readings])),
        "distinct": len(set(texts)) / len(texts),
        "openings": len({" ".join(text.split()[:2]) for text in texts}),
    }


def identified(built: corpora.Corpus, ids: list[str], told: list[list[str]], verifier: Path
               ) -> dict[str, float]:  # fmt: skip
    """Accuracy of the captions [n][G], spread of the reward within a group, and the blind floor."""
    from lineup_fast.rewards import IdentificationReward
    from lineup_fast.verifiers.transformers import TransformersVerifier

    reward = IdentificationReward(built, TransformersVerifier(verifier), RECIPE)
    texts = [text for group in told for text in group]
    owners = [id_ for id_, group in zip(ids, told, strict=True) for _ in group]
    batch = reward.score(texts, owners)
    blind = reward.score([""] * len(ids), ids)
    spread = np.asarray(batch.reward).reshape(len(ids), -1).std(1)
    return {
        "accuracy": float(batch.accuracy.mean()),
        "reward_std_in_group": float(spread.mean()),
        "groups_without_spread": float((spread < 1e-6).mean()),
        "blind": float(blind.accuracy.mean()),
    }


def main(arguments: list[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m trainer.tiny.measure_captioner")
    parser.add_argument("--model", type=Path, default=HERE / "captioner")
    parser.add_argument("--verifier", type=Path, default=HERE / "verifier",
                        help="skipped where the folder is missing")  # fmt: skip
    parser.add_argument("--items", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    captioner = Captioner.load(options.model, caption_prompt=CAPTION_PROMPT)
    built, ids = held_out(options.items)
    rows = [built.series(id_) for id_ in ids]
    for name, group in (("greedy", 0), ("sampled", 8)):
        n = len(rows) if group == 0 else max(1, len(rows) // 4)
        told = describe(captioner, rows[:n], sampled=group)
        result = summary(told, rows[:n])
        if options.verifier.is_dir():
            result |= identified(built, ids[:n], told, options.verifier)
        print(name, json.dumps({k: round(v, 4) if isinstance(v, float) else v
                                for k, v in result.items()}), flush=True)  # fmt: skip
        for row, group_texts in list(zip(rows, told, strict=False))[:3]:
            print("   ", [int(v) for v in row])
            for text in group_texts[:6]:
                print("      ", text)


if __name__ == "__main__":
    main()
