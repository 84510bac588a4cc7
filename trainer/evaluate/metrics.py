"""The metrics of ``python -m trainer evaluate``, by the word that chooses them.

Each is (captions by id, benchmark, settings of the captions, settings of the evaluation) → tables,
and raises UnmeasuredError where it does not apply. Models are loaded when first needed and kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from lineup_fast.cli_options import progress
from trainer.evaluate.table import Table, UnmeasuredError

if TYPE_CHECKING:
    from lineup_fast.prompts import Recipe
    from lineup_fast.verifiers.base import Verifier
    from trainer.evaluate.benchmark import Benchmark
    from trainer.evaluate.evaluate_config import EvaluateConfig
    from trainer.evaluate.nli import NliModel

Captions = Mapping[str, str]
Metric = Callable[[Captions, "Benchmark", Mapping[str, Any], "EvaluateConfig"], list[Table]]


def _entailment(
    texts: Captions, benchmark: Benchmark, _: Mapping[str, Any], config: EvaluateConfig
) -> list[Table]:
    from trainer.evaluate.entailment import entailment

    if not benchmark.references:
        raise UnmeasuredError("the benchmark has no references")
    model = _nli(config.nli, config.device, config.dtype)
    return entailment(
        texts, benchmark, model, tau=config.tau, too_long=config.too_long, progress=progress
    )


@lru_cache(maxsize=1)
def _nli(name: str, device: str, dtype: str) -> NliModel:
    from trainer.evaluate.nli import NliModel

    return NliModel.load(name, device=device, dtype=dtype)


def _identify_series(
    texts: Captions, benchmark: Benchmark, _: Mapping[str, Any], config: EvaluateConfig
) -> list[Table]:
    from trainer.evaluate.identification import identify_series

    return identify_series(texts, benchmark, _verifiers(config), _recipe(config), progress=progress)


def _identify_caption(
    texts: Captions, benchmark: Benchmark, _: Mapping[str, Any], config: EvaluateConfig
) -> list[Table]:
    from trainer.evaluate.identification import identify_caption

    return identify_caption(
        texts, benchmark, _verifiers(config), _recipe(config), progress=progress
    )


def _recipe(config: EvaluateConfig) -> Recipe:
    from lineup_fast.prompts import Recipe

    return Recipe(
        k=config.k,
        layout=config.layout,
        decimals="auto" if config.decimals is None else config.decimals,
    )


def _verifiers(config: EvaluateConfig) -> dict[str, Verifier]:
    """The readers by name."""
    if not config.verifiers:
        raise UnmeasuredError("no verifier is named (--verifiers)")
    return {
        name: _verifier(model, config.device, config.dtype)
        for name, model in named(config.verifiers).items()
    }


def named(words: Sequence[str]) -> dict[str, str]:
    """Models by name, of words [NAME=]MODEL; without a name the last part of the model's.

    Raises:
        ValueError: two of one name.
    """
    found: dict[str, str] = {}
    for word in words:
        name, equals, model = word.partition("=")
        if not equals or "/" in name:
            model = word
            name = re.sub(r"[^\w.+-]", "-", word.rstrip("/").rpartition("/")[2])
        if name in found:
            raise ValueError(f"verifiers: expected NAME=MODEL of different names, got {name} twice")
        found[name] = model
    return found


@lru_cache(maxsize=8)
def _verifier(model: str, device: str, dtype: str) -> Verifier:
    if model.startswith(("http://", "https://")):
        from lineup_fast.verifiers.sglang import SGLangVerifier

        return SGLangVerifier(model)
    from lineup_fast.verifiers.transformers import TransformersVerifier

    return TransformersVerifier(model, device=device, dtype=dtype)


def _bottleneck(
    texts: Captions, benchmark: Benchmark, _: Mapping[str, Any], config: EvaluateConfig
) -> list[Table]:
    from trainer.evaluate.bottleneck.command import tables

    return tables(texts, benchmark, config.bottleneck, config.device)


def _claims(
    texts: Captions, benchmark: Benchmark, settings: Mapping[str, Any], _: EvaluateConfig
) -> list[Table]:
    from lineup_fast.charts import STYLES
    from trainer.evaluate.claim_check import claim_check

    style = STYLES.get(str(settings.get("chart_style")))
    return [claim_check(texts, benchmark, style.y_limits if style else None)]


def _characters(texts: Captions, *_: object) -> list[Table]:
    values = {id_: float(len(text)) for id_, text in texts.items()}
    return [Table("characters", values, meta={"better": "neither"})]


METRICS: dict[str, Metric] = {
    "entailment": _entailment,
    "identify_series": _identify_series,
    "identify_caption": _identify_caption,
    "bottleneck": _bottleneck,
    "claims": _claims,
    "characters": _characters,
}
