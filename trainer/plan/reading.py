"""What the verifier reads in a step, each shared prefix once: by formula, or from a corpus."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from trainer.config import RlooConfig

JOINED = 128  # lineup_fast.verifiers.prefix_attention
# In front of everything; at the end of a question; around the numbers of a candidate.
FRAME_TOKENS, CUE_TOKENS, LABEL_TOKENS = 60, 25, 6


@dataclass(frozen=True)
class ReadTokens:
    """What the verifier reads in a step.

    tokens: distinct; context: mean tokens before each; questions: asked; kept: tokens whose keys
    and values stay for others to attend to; copied: those of short prefixes, kept again in front.
    """

    tokens: float
    context: float
    questions: int
    kept: float
    copied: float
    source: str


@dataclass(frozen=True)
class _Node:
    """`times` nodes of `own` tokens behind a path of nodes; inner: others continue them."""

    own: float
    path: tuple[float, ...]
    times: int
    inner: bool

    @property
    def front(self) -> float:
        """Tokens of a prefix too short to be attended to by itself, kept again in front."""
        size: float = JOINED + 1
        for n in self.path:
            size = n + (0 if size > JOINED else size)
        return size if size <= JOINED else 0.0


def read_tokens(config: RlooConfig, caption_tokens: float, numbers_tokens: float) -> ReadTokens:
    """By formula (DESIGN, section 5); numbers_tokens: of one candidate."""
    nodes = list(_nodes(config, caption_tokens, numbers_tokens))
    tokens = sum(n.own * n.times for n in nodes)
    before = sum(n.own * n.times * (sum(n.path) + n.own / 2) for n in nodes)
    kept = sum(n.own * n.times for n in nodes if n.inner)
    copied = sum(n.front * n.times for n in nodes if n.inner)
    asked = 1 if config.positions == 1 else config.k
    source = f"by formula, {numbers_tokens:.0f} tokens a candidate's numbers"
    questions = config.charts * config.group_size * asked
    return ReadTokens(tokens, before / tokens, questions, kept, copied, source)


def read_corpus(config: RlooConfig, caption_tokens: float) -> ReadTokens:
    """From a corpus with the verifier's tokenizer, as `lineup-fast plan` counts."""
    from lineup_fast import hub
    from lineup_fast.corpus import Corpus
    from lineup_fast.token_plan import plan_step

    counted = plan_step(
        Corpus.load(config.corpus), hub.load_tokenizer(config.verifier), config.recipe(),
        batch=config.charts, group=config.group_size, caption_tokens=round(caption_tokens),
        seed=config.seed,
    )  # fmt: skip
    row = next(
        row for row in counted.rows
        if row.shared and row.layout == config.layout and row.positions == config.positions
    )  # fmt: skip
    rough = read_tokens(config, caption_tokens, counted.numbers_tokens)
    return counted_as(rough, row.tokens, f"lineup-fast plan over {config.corpus}")


def counted_as(rough: ReadTokens, tokens: float, source: str) -> ReadTokens:
    """The formula's figures for as many tokens as were counted, all in proportion."""
    more = tokens / rough.tokens
    return dataclasses.replace(
        rough, tokens=float(tokens), context=more * rough.context, kept=more * rough.kept,
        source=source,
    )  # fmt: skip


def _nodes(config: RlooConfig, c: float, s: float) -> Iterator[_Node]:
    """The forest of a step: the frame, the candidates' orders and the captions."""
    groups, g, k, a = config.charts, config.group_size, config.k, CUE_TOKENS
    s += LABEL_TOKENS
    frame: tuple[float, ...] = (FRAME_TOKENS,)
    first = config.layout == "candidates_first"
    yield _Node(FRAME_TOKENS, (), 1, True)
    if config.positions == 1:
        if first:
            yield _Node(k * s, frame, groups, True)
            yield _Node(c + a, (*frame, k * s), groups * g, False)
        else:
            yield _Node(c + k * s + a, frame, groups * g, False)
        return
    times, path, tail = groups, frame, 0.0
    if not first:
        times, path, tail = groups * g, (*frame, c), float(a)
        yield _Node(c, frame, times, True)
    # distractors in fixed order, the target among them at each place in turn
    for place in range(k - 1):
        before = path + (s,) * place
        yield _Node((k - place) * s + tail, before, times, first)
        last = place == k - 2  # the last distractor has the target behind it and nothing else
        yield _Node(2 * s + tail if last else s, before, times, first or not last)
    if first:
        yield _Node(c + a, (*path, k * s), times * g * k, False)
