"""Captions of a step: drawn here or by an engine, weighed where others drew them, and scored."""

from __future__ import annotations

from trainer.rollouts.sampling import (
    Part,
    Rollout,
    Sampler,
    TransformersSampler,
    gather,
    greedy,
    of_all_ranks,
)

__all__ = [
    "Part",
    "Rollout",
    "Sampler",
    "TransformersSampler",
    "gather",
    "greedy",
    "of_all_ranks",
]
