"""How long the prompts of a corpus can become, before any is asked."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from lineup_fast import kernels
from lineup_fast.candidates import auto_decimals

if TYPE_CHECKING:
    import numpy.typing as npt

    from lineup_fast.corpus import Corpus
    from lineup_fast.prompt_tokens import PromptBuilder

    Counts = npt.NDArray[np.int64]

SEAMS = 2  # tokens that join a row with its brackets, where the tokenizer reads prompts whole
# A token that a policy samples may be a broken piece of a character, which text shows as U+FFFD:
# three bytes, so up to three tokens of a byte-level verifier.
TOKENS_PER_NEW_TOKEN = 3.0


def fits(
    longest: int, max_new_tokens: int, limit: int | None, *, ratio: float = TOKENS_PER_NEW_TOKEN
) -> int:
    """Tokens of the longest prompt with a caption of `max_new_tokens`, `longest` without.

    limit: the verifier's context; ratio: its tokens per token of the caption's writer.
    Raises: ValueError when the prompt exceeds the limit.
    """
    longest += int(np.ceil(ratio * max_new_tokens))
    if limit is not None and longest > limit:
        raise ValueError(
            f"max_new_tokens: expected prompts of at most {limit} tokens, the verifier's context; "
            f"with {max_new_tokens} they can reach {longest}"
        )
    return longest


def longest_prompt(corpus: Corpus, builder: PromptBuilder, kind: str) -> int:
    """Tokens of the longest prompt of any candidate set, without its caption.

    A set is printed with the fewest decimals, from the recipe's up, at which all its candidates
    differ. For kind "nearest" they are those of an item's whole pool, which no draw from it
    exceeds; sets of other kinds may hold anything, so their bound is the most decimals there are.
    """
    return builder.fixed_tokens() + max(
        (_longest_candidates(corpus, builder, kind, length) for length in corpus.lengths), default=0
    )


def _longest_candidates(corpus: Corpus, builder: PromptBuilder, kind: str, length: int) -> int:
    """Tokens of all numbers of the longest set of one length."""
    items = [item for item in corpus.ids() if corpus.meta(item).length == length]
    if not items:
        return 0
    pools = [[item, *corpus.pool(item)] for item in items]
    names = list(dict.fromkeys(name for pool in pools for name in pool))
    row = {name: at for at, name in enumerate(names)}
    series = np.stack([corpus.series(name) for name in names])
    k, wanted = builder.recipe.k, builder.recipe.decimals
    if kind != "nearest":
        return k * int(_row_tokens(builder, series, kernels.MAX_DECIMALS)[0].max())
    members = np.full((len(pools), max(map(len, pools))), -1)
    for at, pool in enumerate(pools):
        members[at, : len(pool)] = [row[name] for name in pool]
    start = np.array(
        [wanted if isinstance(wanted, int) else auto_decimals(series[at[0]]) for at in members]
    )
    undecided = np.arange(len(pools))
    longest = 0
    for decimals in range(int(start.min()), kernels.MAX_DECIMALS + 1):
        begun = undecided[start[undecided] <= decimals]
        if not len(begun):
            continue
        tokens, prints = _row_tokens(builder, series, decimals)
        apart = _all_differ(prints, members[begun]) | (decimals == kernels.MAX_DECIMALS)
        done = members[begun[apart]]
        others = np.where(done[:, 1:] >= 0, tokens[done[:, 1:]], 0)
        most = np.sort(others, axis=1)[:, 1 - k :].sum(axis=1) + tokens[done[:, 0]]
        longest = max(longest, int(most.max(initial=0)))
        undecided = np.setdiff1d(undecided, begun[apart])
        if not len(undecided):
            break
    return longest


def _row_tokens(
    builder: PromptBuilder, series: npt.NDArray[np.float64], decimals: int
) -> tuple[Counts, Counts]:
    """Tokens of each printed row, and a number that two rows share if they print alike."""
    ids, offsets = builder.number_ids(series, decimals)
    tokens = np.diff(offsets) + (SEAMS if builder.reason else 0)
    seen: dict[bytes, int] = {}
    texts = (ids[a:b].tobytes() for a, b in itertools.pairwise(offsets))
    prints = np.array([seen.setdefault(text, len(seen)) for text in texts])
    return tokens, prints


def _all_differ(prints: Counts, members: Counts) -> npt.NDArray[np.bool_]:
    """Whether the members of each row, -1 for none, print differently."""
    absent = -1 - np.arange(members.shape[1])
    shown = np.sort(np.where(members >= 0, prints[members], absent), axis=1)
    differ: npt.NDArray[np.bool_] = (shown[:, 1:] != shown[:, :-1]).all(axis=1)
    return differ
