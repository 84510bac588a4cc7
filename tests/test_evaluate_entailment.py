"""Entailment by random models: pairing, batching, limits, floor and ceiling."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lineup_fast.corpus import build
from lineup_fast.readers import Channel
from tests.toy_nli import classifier, tokenizer
from trainer.evaluate.benchmark import Benchmark
from trainer.evaluate.entailment import NO_REFERENCE, entailment
from trainer.evaluate.nli import NliModel, entailment_label, read_limit

pytestmark = pytest.mark.usefixtures("one_thread")

TEXTS = [
    "",
    "It rises from 2 to 9.",
    "It falls, dips at step 7 and recovers.",
    "Flat.",
    "Two peaks, the second one taller.",
    "naïve ↑ 🎉",
]
PAIRS = [(a, b) for a in TEXTS for b in TEXTS]


def _nli(kind: str = "DebertaV2", **words: Any) -> NliModel:
    return NliModel.of(classifier(kind), tokenizer(types=kind == "Bert"), "toy", **words)


@pytest.fixture(scope="module")
def nli() -> NliModel:
    return _nli()


def _benchmark(references: dict[int, tuple[str, ...]]) -> Benchmark:
    values = np.random.default_rng(0).normal(size=80)
    corpus = build([Channel("walk/x", values)], lengths=[10], k=2, split=(1, 0, 0), stride=10)
    ids = corpus.ids(k=1)
    return Benchmark("walk", corpus, {ids[i]: texts for i, texts in references.items()})


def _alone(nli: NliModel, pair: tuple[str, str]) -> float:
    """One pair by itself, with nothing of ours but the label."""
    # A list of one: called with two strings, the tokenizer takes an empty second one for none.
    inputs = nli.tokenizer([pair[0]], [pair[1]], return_tensors="pt")
    with torch.inference_mode():
        logits = nli.model(**inputs).logits[0]
    return float(torch.exp(logits)[0] / torch.exp(logits).sum())


@pytest.mark.parametrize("kind", ["DebertaV2", "Bert", "Roberta"])
@pytest.mark.parametrize("batch_tokens", [1, 300])
def test_batches_give_what_one_pair_at_a_time_gives(kind: str, batch_tokens: int) -> None:
    nli = _nli(kind, batch_tokens=batch_tokens)
    alone = np.array([_alone(nli, pair) for pair in PAIRS])
    assert np.ptp(alone) > 0.05
    assert sorted(nli.lengths([("", ""), ("a", "")])) == [3, 4]
    found = nli.probabilities(PAIRS)
    assert np.abs(found - alone).max() < 1e-12
    assert ((found >= 0.5) == (alone >= 0.5)).all()


@settings(max_examples=10, deadline=None)
@given(st.lists(st.text(max_size=40), min_size=1, max_size=4))
def test_what_else_is_in_the_batch_does_not_matter(nli: NliModel, others: list[str]) -> None:
    pair = (TEXTS[1], TEXTS[2])
    found = nli.probabilities([pair, *((text, text) for text in others)])
    assert found[0] == pytest.approx(nli.probabilities([pair])[0], abs=1e-12)


def test_equal_pairs_are_read_once_and_batches_are_of_like_length(nli: NliModel) -> None:
    seen: list[list[int]] = []

    def shape(_: Any, __: Any, inputs: dict[str, Any]) -> None:
        seen.append(inputs["attention_mask"].sum(dim=1).tolist())

    hook = nli.model.register_forward_pre_hook(shape, with_kwargs=True)
    bounded = NliModel.of(nli.model, nli.tokenizer, "toy", batch_tokens=200)
    steps: list[tuple[int, int]] = []
    found = bounded.probabilities(PAIRS * 3, lambda *at: steps.append(at))
    hook.remove()
    assert found[: len(PAIRS)].tolist() == found[-len(PAIRS) :].tolist()
    rows = [n for batch in seen for n in batch]
    assert rows == sorted(rows, reverse=True)
    assert sorted(rows) == sorted(bounded.lengths(PAIRS))
    assert all(len(batch) == 1 or len(batch) * batch[0] <= 200 for batch in seen)
    assert steps[0] == (0, len(PAIRS))
    assert steps[-1] == (len(PAIRS), len(PAIRS))


def test_the_label_is_read_from_the_model() -> None:
    assert entailment_label({0: "contradiction", 1: "neutral", 2: "ENTAILMENT"}) == 2
    assert entailment_label({"0": "not_entailment", "1": "entailment"}) == 1
    for unclear in ({0: "LABEL_0", 1: "LABEL_1"}, {0: "entailment"}, {0: "entail", 1: "entailment"},
                    {0: "not_entailment", 1: "neutral"}):  # fmt: skip
        with pytest.raises(ValueError, match="id2label: expected two labels or more"):
            entailment_label(unclear)
    turned = classifier(labels={0: "neutral", 1: "contradiction", 2: "entailment"})
    one, other = NliModel.of(turned, tokenizer(), "toy"), _nli()
    a, b = one.probabilities(PAIRS), other.probabilities(PAIRS)
    assert (a + b < 1).all()  # two of the three outputs of the same random model
    assert np.abs(a - b).max() > 0.01


def test_limits_come_from_the_model_and_its_tokenizer(nli: NliModel) -> None:
    assert nli.max_tokens == 600
    assert _nli("Roberta").max_tokens == 600  # of 601 positions one is in front of the padding
    longest = ("x" * 597, "")
    assert _nli("Roberta").probabilities([longest]).shape == (1,)
    short = tokenizer()
    short.model_max_length = 50
    assert read_limit(nli.model.config, short) == 50
    with pytest.raises(ValueError, match="max_tokens: expected at most 600 for toy, got 601"):
        _nli(max_tokens=601)


def test_long_pairs_are_refused_never_cut(nli: NliModel) -> None:
    with pytest.raises(ValueError, match="pairs: expected at most 600 tokens, what toy reads, got"):
        nli.probabilities([("short", "x"), ("x" * 300, "y" * 298)])
    assert len(nli.probabilities([("x" * 299, "y" * 298)])) == 1


def test_a_text_cannot_spell_a_special_token(nli: NliModel) -> None:
    (row,) = nli.encode([("up [SEP] down [CLS]", "[PAD]")])
    assert sum(token in (0, 1, 2) for token in row["input_ids"]) == 3
    assert nli.encode([("\ud800a\0", "b")])[0] == nli.encode([("a", "b")])[0]


def test_references_are_averaged_per_series_with_floor_and_ceiling(nli: NliModel) -> None:
    bench = _benchmark({0: (TEXTS[1], TEXTS[2], TEXTS[4]), 2: (TEXTS[3],)})
    first, other = bench.ids[0], bench.ids[2]
    captions = {id_: TEXTS[i % len(TEXTS)] for i, id_ in enumerate(bench.ids, 1)}
    q = {pair: _alone(nli, pair) for pair in PAIRS}
    tau = float(np.median([*q.values()]))
    tables = {t.metric: t.check(bench.ids) for t in entailment(captions, bench, nli, tau=tau)}

    def share(pairs: list[tuple[str, str]]) -> float:
        return float(np.mean([q[pair] >= tau for pair in pairs]))

    own = {id_: [(captions[id_], r) for r in bench.references[id_]] for id_ in (first, other)}
    forward = {id_: share(pairs) for id_, pairs in own.items()}
    table = tables["entailment"]
    assert table.values == pytest.approx(forward)
    assert table.mean == pytest.approx(np.mean([*forward.values()]))
    assert table.missing == dict.fromkeys(set(bench.ids) - {first, other}, NO_REFERENCE)
    assert table.controls["floor"] == pytest.approx(
        np.mean([share([("", r) for _, r in pairs]) for pairs in own.values()])
    )
    assert table.controls["ceiling"] == pytest.approx(
        np.mean([share([(r, r) for _, r in pairs]) for pairs in own.values()])
    )
    assert table.meta["mean_over_pairs"] == pytest.approx(share(own[first] + own[other]))
    assert (table.meta["n_pairs"], table.meta["tau"]) == (4, tau)
    reverse = {id_: share([(r, c) for c, r in pairs]) for id_, pairs in own.items()}
    assert tables["entailment_reverse"].values == pytest.approx(reverse)
    both = {
        id_: float(np.mean([q[c, r] >= tau and q[r, c] >= tau for c, r in pairs]))
        for id_, pairs in own.items()
    }
    assert tables["entailment_both"].values == pytest.approx(both)
    mean_q = {id_: float(np.mean([q[pair] for pair in pairs])) for id_, pairs in own.items()}
    assert tables["entailment_q"].values == pytest.approx(mean_q)


def test_empty_captions_are_the_floor_and_references_the_ceiling(nli: NliModel) -> None:
    bench = _benchmark({0: (TEXTS[1],), 1: (TEXTS[2],), 3: (TEXTS[4],)})
    empty = entailment(dict.fromkeys(bench.ids, ""), bench, nli)
    perfect = entailment({id_: texts[0] for id_, texts in bench.references.items()}, bench, nli)
    for low, high in zip(empty, perfect, strict=True):
        assert low.mean == low.controls["floor"] == high.controls["floor"]
        assert high.mean == high.controls["ceiling"] == low.controls["ceiling"]


def test_what_is_too_long_is_refused_or_left_out_with_its_reason() -> None:
    nli = _nli(max_tokens=40)
    bench = _benchmark({0: ("Up.",), 1: ("It falls.", TEXTS[2]), 3: (TEXTS[3],)})
    captions = dict.fromkeys(bench.ids, "Up.")
    with pytest.raises(
        ValueError, match=f"captions: expected pairs of at most 40 .*{bench.ids[1]}"
    ):
        entailment(captions, bench, nli)
    table = entailment(captions, bench, nli, too_long="leave out")[0].check(bench.ids)
    assert table.values.keys() == {bench.ids[0], bench.ids[3]}
    assert "tokens, toy reads 40" in table.missing[bench.ids[1]]


def test_what_cannot_be_scored_is_refused(nli: NliModel) -> None:
    bench = _benchmark({0: (TEXTS[1],)})
    with pytest.raises(ValueError, match="captions: expected one for every series of walk, got no"):
        entailment({}, bench, nli)
    with pytest.raises(ValueError, match="tau: expected between 0 and 1"):
        entailment({}, bench, nli, tau=1.0)
    with pytest.raises(ValueError, match="walk: expected series with references"):
        entailment(dict.fromkeys(bench.ids, "x"), _benchmark({}), nli)


def test_a_model_comes_from_a_folder(tmp_path: Path, nli: NliModel) -> None:
    nli.model.save_pretrained(tmp_path)
    nli.tokenizer.save_pretrained(tmp_path)
    loaded = NliModel.load(tmp_path, dtype="float64", max_tokens=300)
    assert loaded.probabilities(PAIRS[:3]).tolist() == nli.probabilities(PAIRS[:3]).tolist()
    assert (loaded.fingerprint(), loaded.max_tokens) == (nli.fingerprint(), 300)
    assert NliModel.of(classifier(seed=1), tokenizer(), "toy").fingerprint() != nli.fingerprint()
    with pytest.raises(ValueError, match="nli model: expected a folder or hub id"):
        NliModel.load(tmp_path / "nothing")
