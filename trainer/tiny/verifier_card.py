"""The model cards of the tiny verifier and of the tiny reader."""

from __future__ import annotations

from typing import Any

from lineup_fast.prompts import PROMPT_VERSION
from trainer.tiny.verifier_check import misses

_CARD = """---
license: apache-2.0
library_name: transformers
pipeline_tag: text-generation
---

# Tiny verifier

A `Qwen2ForCausalLM` of {parameters:,} parameters (width {width}, {layers} layers) that reads four
candidate series and a description, and answers with the letter of the described one. It stands in
for a large language model so that the whole training loop runs on a CPU; it knows nothing else.

- **Input**: the `candidates_first` question of `lineup_fast.prompts` (version {version}), no chat
  template, 4 candidates (other numbers of them were never seen), each 12 or 24 whole numbers from 0
  to 100, written with `decimals = 0` and the separator `", "`; a description of up to 48 tokens of
  its tokenizer. Any text can be read, byte by byte; only the wording of
  `trainer/tiny/captions.py`, and what is close to it, is understood.
- **Made by** `python -m trainer.tiny.build_verifier`: {steps:,} steps of 64 captions (128 where the
  series are short), {trained}.
- **On** generated series and the windows of the packaged real series that are in split "train";
  captions are templates filled from the series, with noise, gaps and strangers among them.
- **How**: candidate blocks stand once per group, eight captions behind them. Beside the answer
  letter, training reads inside: the step and the letter of every value, the facts at the end of
  every block, a vote at every number of the caption, and the attention of one head, which is shown
  the value that the number speaks of. Those heads are not part of this model.
- **Stored** in bfloat16; the figures below are of the stored weights, computed in float32.

## Measured

{items:,} items of data sets that were held out whole ("test"), each asked at all four positions
beside its three nearest look-alikes. Chance is 0.25.

| description | accuracy | target at A | B | C | D |
|---|---|---|---|---|---|
{rows}

{verdict}

## Limits

Values outside 0..100, decimals, other lengths and other wording are out of scope. The direction in
words is not used: a caption without numbers is answered at chance. A caption that tells nothing
tends to draw the same letter whatever the order of the candidates; over all positions that is
chance, at one position it is not.
"""


_READER = """---
license: apache-2.0
library_name: transformers
pipeline_tag: text-generation
---

# Tiny reader

A second `Qwen2ForCausalLM` of {parameters:,} parameters (width {width}, {layers} layers), to
evaluate what the tiny verifier has rewarded: another seed, another tokenizer ({vocabulary} tokens)
and other series. It answers both questions of `lineup_fast.prompts` (version {version}): which of
four series a description speaks of (`candidates_first`), and which of four descriptions speaks of
a series.

- **Input**: as the tiny verifier's: 12 or 24 whole numbers from 0 to 100, `decimals = 0`, separator
  `", "`, no chat template, the wording of `trainer/tiny/captions.py`.
- **Made by** `python -m trainer.tiny.build_verifier --reader`: {steps:,} steps, {trained}; from
  30 % of them on every second step asks the second question.
- **On** generated series and those windows of the packaged real series that neither the tiny
  verifier nor a captioner trained on the default corpus has learnt from (splits "val" and "test").
- **How**: as the tiny verifier. In the second question a head is shown the value of the series at
  the step that a number names, and every number says whether it agrees.
- **Stored** in bfloat16; the figures below are of the stored weights, computed in float32.

## Measured

{items:,} items of split "train", which it has not seen, each asked at all four positions beside its
three nearest look-alikes (or their descriptions of the same kind). Chance is 0.25.

| description | which series | which description |
|---|---|---|
{rows}
"""

DESCRIPTIONS = {
    "exact": "true template caption, every kind of fact",
    "noise_2": "the same, values with noise σ = 2 (2 % of the range)",
    "noise_5": "the same, values with noise σ = 5, steps with σ = 1",
    "partial": "a random part of the facts, exact",
    "vague": "no number, the true direction",
    "stranger": "caption of a series outside the set",
    "empty": "empty",
}


def _cells(figures: dict[str, Any]) -> str:
    places = " | ".join(f"{place:.3f}" for place in figures["by_position"])
    return f"{figures['accuracy']:.3f} | {places}"


def model_card(figures: dict[str, Any], facts: dict[str, Any]) -> str:
    """Return the model card; ``facts``: parameters, width, layers, steps and trained (in words)."""
    rows = [
        f"| {words} | {_cells(figures[name])} |"
        for name, words in DESCRIPTIONS.items()
        if name in figures
    ]
    missed = misses(figures)
    verdict = "\n".join(f"- missed: {miss}" for miss in missed) or (
        "All bars of the tiny preset are met: exact ≥ 0.80, noise of 2 % ≥ 0.65, empty ≤ 0.33, "
        "outside ≤ 0.35;\nwith exact and noisy captions every position is within 0.05 of the mean."
    )
    return _CARD.format(
        version=PROMPT_VERSION,
        items=figures["items"],
        rows="\n".join(rows),
        verdict=verdict,
        **facts,
    )


def reader_card(
    figures: dict[str, Any], turned_figures: dict[str, Any], facts: dict[str, Any]
) -> str:
    """Return the reader's card; ``facts``: as of `model_card`, and its vocabulary."""
    rows = []
    for name, words in DESCRIPTIONS.items():
        turned = turned_figures.get(name)
        cell = "" if turned is None else f"{turned['accuracy']:.3f}"
        rows.append(f"| {words} | {figures[name]['accuracy']:.3f} | {cell} |")
    return _READER.format(
        version=PROMPT_VERSION, items=figures["items"], rows="\n".join(rows), **facts
    )
