"""Training groups of the tiny verifier: candidate blocks once, several captions behind them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lineup_fast import prompts
from lineup_fast.corpus import Corpus
from trainer.tiny import captions, series
from trainer.tiny.tokenizer import number_ids

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
POOL = 8
FACTS = 10


class Layout:
    """The fixed token ids of the candidates-first question with ``k`` candidates.

    The ids are those of ``lineup_fast.prompts``: head, K blocks, middle, caption, tail.
    """

    def __init__(self, tokenizer: Any, k: int) -> None:
        def ids(text: str) -> Ints:
            return np.array(tokenizer.encode(text, add_special_tokens=False), dtype=np.int64)

        recipe = prompts.Recipe(k=k, layout="candidates_first", decimals=0)
        text = prompts.without_template(prompts.user_text(recipe, "\x01", "\x02"))
        head, rest = text.split("\x01")
        middle, tail = rest.split("\x02")
        self.k = k
        self.head, self.middle, self.tail = ids(head), ids(middle), ids(tail)
        letters = prompts.LABELS[:k]
        self.opening = np.concatenate([ids(f"{letter}) [") for letter in letters])
        self.answers = np.concatenate([ids(f" {letter}") for letter in letters])
        if len(self.opening) != k or len(self.answers) != k:
            raise ValueError("tokenizer: expected one token for each opening and answer letter")
        self.numbers = np.array(number_ids(tokenizer), dtype=np.int64)
        self.separator, self.closing = ids(", ")[0], ids("]")[0]
        self.newline = ids("\n")[0]

    def prefix(self, sets: Ints) -> tuple[Ints, Ints, Ints]:
        """Ids i64[B,P] of everything before the caption, for sets i64[B,K,T] of values 0..100.

        Also the places i64[K,T] of the values and i64[K] of the newlines that end the blocks.
        """
        count, k, length = sets.shape
        size = 2 * length + 2
        blocks = np.empty((count, k, size), dtype=np.int64)
        blocks[:, :, 0] = self.opening
        blocks[:, :, 1 : 2 * length : 2] = self.numbers[sets]
        blocks[:, :, 2 : 2 * length : 2] = self.separator
        blocks[:, :, 2 * length] = self.closing
        blocks[:, :, 2 * length + 1] = self.newline
        head = np.broadcast_to(self.head, (count, len(self.head)))
        middle = np.broadcast_to(self.middle, (count, len(self.middle)))
        starts = len(self.head) + size * np.arange(k)
        values = starts[:, None] + 1 + 2 * np.arange(length)[None, :]
        ids = np.concatenate([head, blocks.reshape(count, k * size), middle], axis=1)
        return ids, values, starts + 2 * length + 1


@dataclass(frozen=True)
class Pool:
    """Series f64[N,T] of one length and the rows i32[N,8] of their look-alikes (-1: fewer)."""

    series: NDArray[np.float64]
    near: NDArray[np.int32]


def generated_pools(count: int, rng: np.random.Generator) -> dict[int, Pool]:
    """Return ``count`` generated series per length with their look-alikes."""
    pools = {}
    for length in series.LENGTHS:
        values = series.generate(count, length, rng)
        pools[length] = Pool(values, series.look_alikes(values, POOL))
    return pools


def corpus_pools(corpus: Corpus, splits: Sequence[str]) -> dict[int, Pool]:
    """Return the windows of these splits per length, with the neighbour pools of the corpus."""
    pools = {}
    asked = [item for split in splits for item in corpus.ids(split)]
    for length in series.LENGTHS:
        items = [item for item in asked if corpus.meta(item).length == length]
        rows = {item: row for row, item in enumerate(items)}
        near = np.full((len(items), POOL), -1, dtype=np.int32)
        for row, item in enumerate(items):
            known = [rows[other] for other in corpus.pool(item) if other in rows][:POOL]
            near[row, : len(known)] = known
        pools[length] = Pool(np.stack([corpus.series(item) for item in items]), near)
    return pools


@dataclass(frozen=True)
class Lesson:
    """What one training step asks: look-alikes or random candidates, noise of the captions.

    noise: largest σ of told values in units; rough: share of captions with noise as of a captioner
    that has just begun to learn (values up to 8, steps up to 2 off); odd: share of captions that
    tell nothing of the set; readout: share of the others that only tell values at steps.
    """

    near: bool
    noise: float
    rough: float
    odd: float
    readout: float


@dataclass(frozen=True)
class Batch:
    """One step: B sets of K series, M captions each, n = B·M.

    prefix i64[B,P]; caption i64[n,C] ended by the question's tail, padded; last i64[n] place of
    the last token; target i64[n] position of the described candidate; blind bool[n]: the caption
    tells nothing, so every letter is equally right; steps i64[n,C] the step that a told number
    speaks of, -1 for a number without one, -2 for other tokens;
    value_at i64[K,T] and end_at i64[K] places in the prefix; sets i64[B,K,T].
    """

    prefix: Ints
    caption: Ints
    last: Ints
    target: Ints
    blind: Bools
    steps: Ints
    value_at: Ints
    end_at: Ints
    sets: Ints


def facts(sets: Ints) -> NDArray[np.float64]:
    """Return f64[B,K,10] in -1..1: start, end, high, low, their steps, the quarters' levels."""
    length = sets.shape[-1]
    quarters = sets.reshape(*sets.shape[:-1], 4, length // 4).mean(-1)
    steps = [100 * sets.argmax(-1) / length, 100 * sets.argmin(-1) / length]
    single = np.stack([sets[..., 0], sets[..., -1], sets.max(-1), sets.min(-1), *steps], -1)
    return np.asarray(np.concatenate([single, quarters], -1) / 50.0 - 1.0)


def draw_sets(pool: Pool, count: int, k: int, lesson: Lesson, rng: np.random.Generator) -> Ints:
    """Return i64[count,K,T]: a random series with look-alikes (or random ones), in random order."""
    sets: list[NDArray[Any]] = []
    while len(sets) < count:
        anchor = int(rng.integers(len(pool.series)))
        near = pool.near[anchor]
        near = near[near >= 0]
        if lesson.near and len(near) >= k - 1:
            # Half the sets are as validation asks them, half as training redraws them.
            ahead = k - 1 if rng.random() < 0.5 else len(near)
            others = near[:ahead][rng.permutation(ahead)[: k - 1]]
        elif lesson.near:
            continue
        else:
            others = rng.integers(len(pool.series), size=k - 1)
        members = np.concatenate([[anchor], others]).astype(np.int64)
        sets.append(pool.series[members[rng.permutation(k)]])
    return np.stack(sets).astype(np.int64)


def tell(
    values: NDArray[np.float64], pool: Pool, lesson: Lesson, rng: np.random.Generator
) -> tuple[captions.Told, bool]:
    """Return a caption and whether it tells nothing of the set."""
    if rng.random() < lesson.odd:
        kind = rng.random()
        if kind < 0.35:
            return captions.Told(prompts.NO_CAPTION, ()), True
        if kind < 0.6:
            return captions.Told(captions.empty_talk(rng), ()), True
        stranger = pool.series[int(rng.integers(len(pool.series)))]
        return captions.full_told(stranger, rng), True
    noise = step_noise = 0.0
    level = rng.random()
    if level < lesson.rough:
        noise, step_noise = rng.uniform(1.0, 8.0), rng.uniform(0.0, 2.0)
    elif level < 0.5 + lesson.rough / 2:
        noise = rng.uniform(0.0, lesson.noise)
    form = rng.random()
    if form < lesson.readout:
        count = int(rng.integers(2, 9))
        return captions.readout_told(
            values, rng, count=count, noise=noise, step_noise=step_noise
        ), False
    form = rng.random()
    if form < 0.55:
        told = captions.full_told(
            values, rng, noise=noise, step_noise=step_noise, run=int(rng.choice((1, 2, 3, 3)))
        )
    elif form < 0.95:
        told = captions.partial_told(values, rng, noise=noise, step_noise=step_noise)
    else:
        told = captions.Told(captions.vague(values, rng), ())
    return told, False


def make_batch(
    tokenizer: Any,
    layout: Layout,
    pool: Pool,
    lesson: Lesson,
    *,
    sets: int,
    captions_per_set: int,
    rng: np.random.Generator,
) -> Batch:
    """Return one batch: targets spread evenly over the K positions of every set."""
    k = layout.k
    drawn = draw_sets(pool, sets, k, lesson, rng)
    rounds = -(-captions_per_set // k)
    target = np.concatenate(
        [
            np.concatenate([rng.permutation(k) for _ in range(rounds)])[:captions_per_set]
            for _ in range(sets)
        ]
    )
    told = [
        tell(drawn[n // captions_per_set, t].astype(np.float64), pool, lesson, rng)
        for n, t in enumerate(target)
    ]
    encoded = tokenizer([part.text for part, _ in told], add_special_tokens=False)["input_ids"]
    for n, ids in enumerate(encoded):
        if rng.random() < 0.08 and len(ids) > 8 and not told[n][1]:
            # A captioner that runs out of tokens stops in the middle of a sentence.
            encoded[n] = ids[: int(rng.integers(6, len(ids)))]
    # Few distinct widths, so that tables and memory are reused.
    width = -(-(max(map(len, encoded)) + len(layout.tail)) // 8) * 8
    caption = np.full((len(target), width), tokenizer.pad_token_id, dtype=np.int64)
    steps = np.full(caption.shape, -2, dtype=np.int64)
    last = np.empty(len(target), dtype=np.int64)
    for n, ids in enumerate(encoded):
        row = np.concatenate([ids, layout.tail]).astype(np.int64)
        caption[n, : len(row)] = row
        places = np.flatnonzero(np.isin(ids, layout.numbers))
        steps[n, places] = told[n][0].steps[: len(places)]
        last[n] = len(row) - 1
    prefix, value_at, end_at = layout.prefix(drawn)
    blind = np.array([nothing for _, nothing in told])
    return Batch(prefix, caption, last, target, blind, steps, value_at, end_at, drawn)
