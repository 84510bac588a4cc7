"""How many tokens a step makes the verifier read, under each layout, with and without sharing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from lineup_fast import counters
from lineup_fast.candidates import CandidateError, draw
from lineup_fast.prompt_tokens import PromptBuilder
from lineup_fast.prompts import Layout, clean_caption
from lineup_fast.verifiers.base import keep_positions, prompt_lengths
from lineup_fast.verifiers.prefix_plan import build_forest

if TYPE_CHECKING:
    import numpy.typing as npt

    from lineup_fast.corpus import Corpus
    from lineup_fast.kernels import PromptTree
    from lineup_fast.prompts import Recipe

# Stands for captions that nobody has written yet: about as many tokens a word as theirs.
FILLER = (
    "The series starts near 21.5, rises in three steps to its maximum of 48.7 about a third of "
    "the way through, falls sharply to 12 and then repeats a daily cycle with slowly growing swings"
)


@dataclass(frozen=True)
class PlanRow:
    """Tokens of one way to ask: a layout, asked naively or with every shared prefix once.

    positions: None, or 1 for the estimator that asks one position per group and step. tokens:
    prefilled per step; fewer: tokens of all questions asked naively in this layout / these.
    """

    layout: str
    shared: bool
    positions: int | None
    tokens: int
    fewer: float


@dataclass(frozen=True)
class TokenPlan:
    """What a step of the given shape costs.

    groups that were planned (items that cannot be asked about are left out), captions per group,
    mean tokens of a caption and of a candidate's numbers, longest prompt in tokens.
    """

    groups: int
    group_size: int
    k: int
    caption_tokens: float
    numbers_tokens: float
    longest_prompt: int
    left_out: int
    rows: list[PlanRow]

    def table(self, tokens_per_second: float | None = None) -> str:
        """The plan in words, with the seconds of each row at a prefill rate."""
        lines = [
            f"{self.groups} series x {self.group_size} captions x {self.k} positions a step; "
            f"a caption {self.caption_tokens:.0f} tokens, the numbers of a candidate "
            f"{self.numbers_tokens:.0f}, the longest prompt {self.longest_prompt}"
        ]
        if self.left_out:
            lines.append(f"{self.left_out} series could not be asked about and are left out")
        head = f"{'layout':18} {'asked':22} {'tokens a step':>14} {'fewer':>7}"
        lines.append(head + ("" if tokens_per_second is None else f" {'seconds':>9}"))
        for row in self.rows:
            asked = "each prefix once" if row.shared else "one prompt at a time"
            if row.positions is not None:
                asked = "once, positions=1"
            line = f"{row.layout:18} {asked:22} {row.tokens:14,} {row.fewer:6.2f}x"
            if tokens_per_second is not None:
                line += f" {row.tokens / tokens_per_second:9.1f}"
            lines.append(line)
        return "\n".join(lines)


def plan_step(
    corpus: Corpus,
    tokenizer: Any,
    recipe: Recipe,
    *,
    batch: int = 32,
    group: int = 8,
    caption_tokens: int = 180,
    captions: Sequence[str] | None = None,
    split: str = "train",
    seed: int = 0,
) -> TokenPlan:
    """The tokens of one step: ``batch`` series of the split, ``group`` captions each.

    corpus: where series and look-alikes come from, drawn as a training step would. tokenizer: the
    verifier's. captions: real ones, dealt out in turn; without any, fillers of ``caption_tokens``
    tokens. The counts are those of a verifier that has the whole step in one call; layout and
    positions of the recipe are tried out, its other words kept.
    Raises: ValueError where the split is smaller than the batch or nothing in it can be asked.
    """
    for name, value in (("batch", batch), ("group", group), ("caption_tokens", caption_tokens)):
        if value < 1:
            raise ValueError(f"{name}: expected at least 1, got {value}")
    ids = corpus.ids(split)
    if len(ids) < batch:
        raise ValueError(f"batch: expected at most the {len(ids)} series of {split}, got {batch}")
    items = [ids[at] for at in counters.order(len(ids), seed, "plan")[:batch]]
    rows: list[PlanRow] = []
    for layout in get_args(Layout):
        builder = PromptBuilder(tokenizer, replace(recipe, layout=layout, positions=None))
        texts = _caption_ids(builder, captions, caption_tokens)
        trees, numbers, left_out = _trees(corpus, builder, items, texts, group, seed)
        if not trees:
            raise ValueError(f"split: expected series that can be asked about in {split}, got none")
        naive = sum(int(prompt_lengths(tree).sum()) for tree in trees)
        once = sum(build_forest(trees).prefilled(len(trees)))
        single = [keep_positions(tree, [0]) for tree in trees]
        one = sum(build_forest(single).prefilled(len(single)))
        rows += [
            PlanRow(layout, False, None, naive, 1.0),
            PlanRow(layout, True, None, once, naive / once),
            PlanRow(layout, True, 1, one, naive / one),
        ]
    return TokenPlan(
        groups=len(trees),
        group_size=group,
        k=recipe.k,
        caption_tokens=float(np.mean([len(text) for text in texts])),
        numbers_tokens=float(np.mean(numbers)),
        longest_prompt=max(int(prompt_lengths(tree).max()) for tree in trees),
        left_out=left_out,
        rows=rows,
    )


def _caption_ids(
    builder: PromptBuilder, captions: Sequence[str] | None, length: int
) -> list[npt.NDArray[np.int32]]:
    if captions is not None:
        if not captions:
            raise ValueError("captions: expected at least one, got none")
        return builder.caption_ids([clean_caption(text) for text in captions])
    (words,) = builder.caption_ids([FILLER])
    # Beginnings differ, as those of sampled captions soon do.
    return [np.resize(np.roll(words, -shift), length) for shift in range(len(words))]


def _trees(
    corpus: Corpus,
    builder: PromptBuilder,
    items: Sequence[str],
    texts: Sequence[npt.NDArray[np.int32]],
    group: int,
    seed: int,
) -> tuple[list[PromptTree], list[float], int]:
    """Trees of the step, mean tokens of the numbers of a candidate in each, items left out."""
    recipe = builder.recipe
    trees: list[PromptTree] = []
    numbers: list[float] = []
    for place, item in enumerate(items):
        try:
            candidates = draw(
                corpus, item, k=recipe.k, seed=seed, index=0, decimals=recipe.decimals
            )
        except CandidateError:
            continue
        at = [(place * group + member) % len(texts) for member in range(group)]
        series, decimals = candidates.series, candidates.decimals
        trees.append(builder.tree(series, decimals, [texts[number] for number in at]))
        numbers.append(float(builder.number_ids(series, decimals)[1][-1]) / recipe.k)
    return trees, numbers, len(items) - len(trees)
