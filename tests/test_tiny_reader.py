"""The tiny reader that evaluates: its second question, its own tokenizer and its own series."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from lineup_fast.prompts import Recipe
from trainer.evaluate.caption_questions import CaptionQuestions
from trainer.tiny import build_verifier, tokenizer, verifier_check
from trainer.tiny import turned_data as turned
from trainer.tiny import verifier_data as data

READER = build_verifier.READER
TOKENIZER = tokenizer.build(READER.vocab_size, seed=READER.seed, both_ways=True)
LAYOUT = turned.TurnedLayout(TOKENIZER, data.Layout(TOKENIZER, 4))
LESSON = data.Lesson(near=True, noise=0.0, rough=0.0, odd=0.0, readout=1.0)
SHIPPED = Path(verifier_check.__file__).parent / "reader"


def _batch(lesson: data.Lesson = LESSON) -> turned.TurnedBatch:
    pool = data.generated_pools(200, np.random.default_rng(1))[12]
    rng = np.random.default_rng(2)
    return turned.make_turned_batch(
        TOKENIZER, LAYOUT, pool, lesson, sets=3, lists_per_set=4, rng=rng
    )


def test_nothing_is_shared_with_the_verifier() -> None:
    first = build_verifier.Settings()
    assert READER.seed != first.seed
    assert not set(READER.splits) & set(first.splits)
    ids, others = TOKENIZER.get_vocab(), tokenizer.build().get_vocab()
    numbers = [str(value) for value in range(101)]
    assert sum(ids[number] == others[number] for number in numbers) < 20
    assert len(ids) != len(others)


def test_training_prompts_are_those_of_the_evaluation() -> None:
    questions = CaptionQuestions(TOKENIZER, Recipe(k=4, decimals=0))
    series = np.random.default_rng(0).integers(0, 101, 12)
    texts = ["Starts at 7; ends at 100.", "First 3, 4.", "61 at step 4.", "Rises to 9."]
    tree = questions.tree(series.astype(float), 0, questions.caption_ids(texts))
    listed, _ = turned._list(LAYOUT, [TOKENIZER.encode(text) for text in texts])
    mine = [*LAYOUT.prefix(series[None])[0][0], *listed]
    assert mine == tree.prompt(0, 0).tolist()
    assert all(LAYOUT.plain.answers[i] in questions.labels.ids[i] for i in range(4))


def test_lists_are_balanced_and_true_captions_tell_more_true_values() -> None:
    batch = _batch()
    assert np.bincount(batch.target, minlength=4).tolist() == [3, 3, 3, 3]
    assert not batch.blind.any()
    values = {token: value for value, token in enumerate(tokenizer.number_ids(TOKENIZER))}
    told: dict[bool, list[bool]] = {True: [], False: []}
    for row, place in np.argwhere(batch.steps >= 0):
        step, series = batch.steps[row, place], batch.series[row // 4]
        assert values[batch.prefix[row // 4, batch.value_at[step]]] == series[step]
        own = bool(batch.whose[row, place] == batch.target[row])
        told[own].append(values[batch.lists[row, place]] == series[step])
    # Of a value and its step only the first is compared: steps told after their value count too.
    assert np.mean(told[True]) > np.mean(told[False]) + 0.3
    assert len(told[True]) > 20


def test_captions_that_tell_nothing_have_no_right_answer() -> None:
    assert _batch(replace(LESSON, odd=1.0)).blind.all()


def test_every_second_step_of_the_later_run_turns_the_question() -> None:
    chosen = replace(READER, steps=6)
    turning = [build_verifier.turns(chosen, step) for step in range(6)]
    assert turning == [False, False, False, True, False, True]
    assert not any(build_verifier.turns(build_verifier.Settings(), step) for step in range(3000))


def test_shipped_reader_is_small_and_reads_by_its_own_tokenizer() -> None:
    assert (SHIPPED / "model.safetensors").stat().st_size < 7_000_000
    texts = ["Starts at 7; ends at 100.", "Peaks at 45 at step 23."]
    assert tokenizer.load(SHIPPED)(texts)["input_ids"] == TOKENIZER(texts)["input_ids"]


def test_shipped_reader_answers_both_questions_on_a_sample() -> None:
    torch.set_num_threads(1)
    try:
        figures = verifier_check.measure(
            SHIPPED, 60, split="train", kinds=("exact", "empty"), seed=1
        )
        both = verifier_check.measure_turned(SHIPPED, 60, split="train", seed=1)
    except ImportError as error:  # the packaged data are an extra
        pytest.skip(str(error))
    assert figures["exact"]["accuracy"] >= 0.9
    assert figures["empty"]["accuracy"] <= 0.33
    assert both["exact"]["accuracy"] >= 0.75
    assert both["vague"]["accuracy"] <= 0.33
