"""Token-level importance weights of captions that were drawn from other weights than those that
learn: by an engine with arithmetic of its own, or some updates ago.

The weight of a token is min(pi_now / pi_drawn, cap), not differentiated. Truncation is one-sided
and by token: over a caption of 200 tokens, 0.012 nats a token already make a ratio of 11, so that
ratios of whole captions would mostly be cut.

Source: truncated importance sampling (Ionides 2008) with threshold 2.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from trainer.world import ALONE, World

if TYPE_CHECKING:
    from trainer.config import RlooConfig
    from trainer.rollouts.sampling import Sampler


@dataclass
class Importance:
    """Weights of the tokens of one step, and how far apart the two distributions were.

    cap: largest weight.
    """

    cap: float
    _gaps: list[Tensor] = field(default_factory=list)

    def weights(self, now: Tensor, drawn: Tensor) -> Tensor:
        """min(exp(now - drawn), cap), [N], without gradient; the gaps are kept for `metrics`.

        Args:
            now: [N] log-probabilities under the weights that learn.
            drawn: [N] log-probabilities of the same tokens when they were drawn.
        """
        gap = now.detach() - drawn.to(now)
        self._gaps.append(gap)
        return gap.exp().clamp_max(self.cap)

    def metrics(self, world: World = ALONE) -> dict[str, float]:
        """Mean |gap| in nats, mean and largest ratio before the cap, share of tokens capped.

        Over the tokens that all ranks learned from; NaN (null in the record) where there are none.
        """
        gap = torch.cat([torch.zeros(0), *(gap.cpu() for gap in self._gaps)]).double()
        ratio = gap.exp()
        n_tokens = world.sum(len(gap))
        sums = (gap.abs().sum(), ratio.sum(), (ratio > self.cap).sum())
        gap_mean, ratio_mean, capped = (
            world.sum(float(value)) / n_tokens if n_tokens else float("nan") for value in sums
        )
        largest = max(world.gather(float(ratio.max()) if len(ratio) else 0.0))
        return {
            "mismatch/logp_gap_mean": gap_mean,
            "mismatch/ratio_mean": ratio_mean,
            "mismatch/ratio_max": largest if n_tokens else float("nan"),
            "mismatch/capped_frac": capped,
        }


def of_step(config: RlooConfig, sampler: Sampler) -> Importance | None:
    """What the tokens of a step are weighed with; None where they come from what learns."""
    if sampler.off_policy or config.async_depth > 0:
        return Importance(config.importance_cap)
    return None
