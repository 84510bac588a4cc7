"""The identification reward for time-series captioners: fast, exact, embeddable.

Importing this package loads nothing: each public name brings its module when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lineup_fast.candidates import CandidateSet as CandidateSet
    from lineup_fast.charts import ChartStyle as ChartStyle
    from lineup_fast.client import RewardClient as RewardClient
    from lineup_fast.corpus import Corpus as Corpus
    from lineup_fast.neighbour_index import NeighbourIndex as NeighbourIndex
    from lineup_fast.prompts import Recipe as Recipe
    from lineup_fast.rewards import IdentificationReward as IdentificationReward
    from lineup_fast.rewards import RewardBatch as RewardBatch
    from lineup_fast.sliding import SlidingWindows as SlidingWindows
    from lineup_fast.verifiers.scripted import ScriptedVerifier as ScriptedVerifier
    from lineup_fast.verifiers.sglang import SGLangVerifier as SGLangVerifier
    from lineup_fast.verifiers.transformers import TransformersVerifier as TransformersVerifier
    from lineup_fast.verifiers.vllm import VLLMVerifier as VLLMVerifier

__version__ = "0.1.0"

_HOME = {
    "CandidateSet": "candidates",
    "ChartStyle": "charts",
    "Corpus": "corpus",
    "IdentificationReward": "rewards",
    "NeighbourIndex": "neighbour_index",
    "Recipe": "prompts",
    "RewardBatch": "rewards",
    "RewardClient": "client",
    "SGLangVerifier": "verifiers.sglang",
    "ScriptedVerifier": "verifiers.scripted",
    "SlidingWindows": "sliding",
    "TransformersVerifier": "verifiers.transformers",
    "VLLMVerifier": "verifiers.vllm",
}
__all__ = ["__version__", *sorted(_HOME)]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
