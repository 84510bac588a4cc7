"""Identification in both directions: against brute force, with controls, nothing left out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lineup_fast.candidates import fixed
from lineup_fast.corpus import build
from lineup_fast.prompt_tokens import PromptBuilder
from lineup_fast.prompts import NO_CAPTION, Recipe
from lineup_fast.readers import Channel
from lineup_fast.rewards import IdentificationReward
from lineup_fast.verifiers.scripted import ScriptedVerifier
from lineup_fast.verifiers.transformers import TransformersVerifier
from tests.toy_models import model
from tests.toy_tokenizers import tokenizer
from trainer.evaluate.benchmark import Benchmark
from trainer.evaluate.caption_questions import CaptionQuestions, CaptionSet, rotation
from trainer.evaluate.command import evaluate
from trainer.evaluate.evaluate_config import EvaluateConfig
from trainer.evaluate.identification import identify_caption, identify_series
from trainer.evaluate.line_up import Examiner
from trainer.evaluate.metrics import named

pytestmark = pytest.mark.usefixtures("one_thread")

K = 3
BOTH = pytest.mark.parametrize("identify", [identify_series, identify_caption])


@pytest.fixture(scope="module")
def bench() -> Benchmark:
    values = np.random.default_rng(0).normal(size=132).cumsum()
    corpus = build([Channel("walk/x", values)], lengths=[12], k=4, split=(1, 0, 0), stride=12)
    ids = corpus.ids(k=1)
    assert len(ids) == 11
    return Benchmark("walk", corpus, not_asked={ids[4]: "too long"})


def _mean(values: np.ndarray) -> str:
    return f"mean {values.mean():.6f}"


@pytest.fixture(scope="module")
def captions(bench: Benchmark) -> dict[str, str]:
    return {id_: _mean(bench.series(id_)) for id_ in bench.ids}


def _distance(caption: str, values: np.ndarray) -> float:
    """How far a series is from what its caption says; nothing said is 5 away from everything."""
    return 5.0 if caption == NO_CAPTION else abs(float(caption.split()[1]) - float(values.mean()))


def by_mean(caption: str, candidates: Any, position: int) -> list[float]:
    """Reads "mean 1.5" and looks for it, in either direction."""
    listed = rotation(len(candidates.series), position)
    if isinstance(candidates, CaptionSet):
        return [-_distance(candidates.captions[row], candidates.series[0]) for row in listed]
    return [-_distance(caption, candidates.series[row]) for row in listed]


def always_b(caption: str, candidates: Any, position: int) -> list[float]:
    """Has its favourite letter."""
    return [float(label == 1) for label in range(len(candidates.series))]


@BOTH
def test_true_captions_are_identified_and_controls_are_not(
    identify: Any, bench: Benchmark, captions: dict[str, str]
) -> None:
    seen: list[tuple[str, int, int]] = []
    (table,) = identify(
        captions, bench, {"reader": ScriptedVerifier(by_mean)}, Recipe(k=K),
        progress=lambda *at: seen.append(at),
    )  # fmt: skip
    assert table.check(bench.ids).values == dict.fromkeys(bench.asked_ids, 1.0)
    assert table.missing == {bench.ids[4]: "too long"}
    assert table.controls["order"] == 1.0
    assert table.controls["empty"] == pytest.approx(1 / K)  # ties go to the first label
    assert table.controls["mismatch"] < 0.5
    told = table.meta
    assert (told["chance_corrected"], told["by_position"]) == (1.0, [1.0] * K)
    assert told["n_controls"] == dict.fromkeys(("empty", "mismatch", "order"), 10)
    about = told["verifiers"]["reader"]
    assert about["picked_when_empty"] == [1.0, 0.0, 0.0]
    assert about["questions"] == 10 * (3 * K + 1)
    assert seen[-1] == (f"{table.metric} by reader", 10, 10)


@BOTH
def test_several_verifiers_are_averaged_and_kept_apart(
    identify: Any, bench: Benchmark, captions: dict[str, str]
) -> None:
    verifiers = {"good": ScriptedVerifier(by_mean), "b": ScriptedVerifier(always_b)}
    both, good, other = identify(captions, bench, verifiers, Recipe(k=K))
    metric = identify.__name__
    assert [both.metric, good.metric, other.metric] == [metric, f"{metric}@good", f"{metric}@b"]
    assert set(good.values.values()) == {1.0}
    assert set(other.values.values()) == {1 / K}
    assert other.meta["by_position"] == [0.0, 1.0, 0.0]
    assert other.meta["chance_corrected"] == pytest.approx(0.0)
    for id_, value in both.values.items():
        assert value == pytest.approx((good.values[id_] + other.values[id_]) / 2)
    assert both.meta["by_position"] == [0.5, 1.0, 0.5]
    assert both.controls["order"] == pytest.approx(
        (good.controls["order"] + other.controls["order"]) / 2
    )
    assert 0.0 < other.controls["order"] < 1.0  # the target is at B in some orders only
    assert list(both.meta["verifiers"]) == ["good", "b"]
    assert list(good.meta["verifiers"]) == ["good"]


@BOTH
def test_empty_captions_stay_in(identify: Any, bench: Benchmark, captions: dict[str, str]) -> None:
    lost = bench.ids[0]
    partly = captions | {lost: " \n"}
    (table,) = identify(partly, bench, {"reader": ScriptedVerifier(by_mean)}, Recipe(k=K))
    assert table.values.keys() == set(bench.asked_ids)
    assert table.values[lost] < 1.0
    neighbours = [id_ for id_ in bench.asked_ids if lost in bench.neighbours(id_)[: K - 1]]
    assert neighbours
    assert {table.values[id_] for id_ in neighbours} == {1.0}


@BOTH
def test_a_failing_verifier_leaves_a_reason_not_a_zero(
    identify: Any, bench: Benchmark, captions: dict[str, str]
) -> None:
    broken = bench.asked_ids[2]

    def script(caption: str, candidates: Any, position: int) -> list[float]:
        if candidates.target == broken:
            raise RuntimeError("out of memory")
        return by_mean(caption, candidates, position)

    verifiers = {"good": ScriptedVerifier(by_mean), "weak": ScriptedVerifier(script)}
    both, good, weak = identify(captions, bench, verifiers, Recipe(k=K))
    assert both.missing[broken] == "weak: RuntimeError: out of memory"
    assert both.values.keys() == weak.values.keys() == good.values.keys() - {broken}

    class Dying(ScriptedVerifier):
        def score(self, trees: Any, labels: Any, *, groups: Any = None) -> Any:
            if any(group.candidates.target == broken for group in groups):
                raise MemoryError("no room")
            return super().score(trees, labels, groups=groups)

    (alone,) = identify(captions, bench, {"dying": Dying(by_mean)}, Recipe(k=K))
    assert alone.missing[broken] == "dying: MemoryError: no room"
    assert set(alone.values.values()) == {1.0}
    dead = ScriptedVerifier(script, max_prompt_tokens=50)
    with pytest.raises(ValueError, match=f"{identify.__name__}: expected answers, got none for"):
        identify(captions, bench, {"dead": dead}, Recipe(k=K))


@BOTH
def test_sets_that_cannot_be_made_are_missing_with_their_reason(
    identify: Any, captions: dict[str, str], bench: Benchmark
) -> None:
    wanted = max(len(bench.neighbours(id_)) for id_ in bench.asked_ids) + 2
    if wanted <= 12:
        with pytest.raises(ValueError, match=r"expected at least \d+ neighbours"):
            identify(captions, bench, {"r": ScriptedVerifier(by_mean)}, Recipe(k=wanted))


@BOTH
def test_replies_can_be_parsed(identify: Any, bench: Benchmark, captions: dict[str, str]) -> None:
    def talk(caption: str, candidates: Any, position: int) -> str:
        if candidates.target == bench.asked_ids[1]:
            return "I cannot tell."
        return f"The answer is {'ABC'[int(np.argmax(by_mean(caption, candidates, position)))]}."

    recipe = Recipe(k=K, scoring="generate")
    (table,) = identify(captions, bench, {"talker": ScriptedVerifier(talk)}, recipe)
    assert table.values[bench.asked_ids[1]] == 0.0
    assert {v for i, v in table.values.items() if i != bench.asked_ids[1]} == {1.0}
    assert table.meta["verifiers"]["talker"]["unparsed"] == 3 * K + 1
    assert "generate" in table.meta["recipe"]


@BOTH
def test_what_cannot_be_asked_is_refused(
    identify: Any, bench: Benchmark, captions: dict[str, str]
) -> None:
    reader = {"reader": ScriptedVerifier(by_mean)}
    with pytest.raises(ValueError, match="captions: expected one for every series of walk, got no"):
        identify({bench.ids[0]: "x"}, bench, reader)
    with pytest.raises(ValueError, match="verifiers: expected at least one"):
        identify(captions, bench, {})
    with pytest.raises(ValueError, match="recipe: expected one that asks all positions"):
        identify(captions, bench, reader, Recipe(positions=1))
    with pytest.raises(ValueError, match="verifiers: expected letters"):
        identify(captions, bench, {"a/b": reader["reader"]})


def _pick(verifier: Any, labels: Any, text: str) -> int:
    """The likeliest label after a whole prompt, read by the model at once."""
    ids = verifier.encoder.encode(text)[0]
    with torch.inference_mode():
        logits = verifier.model(input_ids=torch.from_numpy(ids.astype(np.int64))[None]).logits
    logprobs = logits[0, -1].float().log_softmax(-1)
    return int(np.argmax([float(logprobs[row[row >= 0]].logsumexp(0)) for row in labels.ids]))


def test_both_directions_are_what_whole_prompts_give(
    bench: Benchmark, captions: dict[str, str]
) -> None:
    """Every arm of every series again, as text, by the tokenizer and the model themselves."""
    tok = tokenizer("qwen2")
    verifier = TransformersVerifier(model("llama", len(tok), initializer_range=0.5), tok)
    recipe = Recipe(k=K, layout="candidates_first")
    examiner = Examiner(captions, bench, recipe, 7)
    (to_series,) = identify_series(captions, bench, {"llama": verifier}, recipe, seed=7)
    (to_caption,) = identify_caption(captions, bench, {"llama": verifier}, recipe, seed=7)
    builder = PromptBuilder(verifier.encoder, recipe)
    made = CaptionQuestions(verifier.encoder, recipe)
    found: dict[str, list[float]] = {}
    for id_ in bench.asked_ids:
        sets = fixed(bench.corpus, id_, k=K)
        own = [captions[i] for i in (id_, *sets.distractors)]
        other = examiner.stranger(sets)
        assert other is not None
        assert other not in (id_, *sets.distractors)
        rows, at = examiner.in_order(sets)

        def c2s(series: np.ndarray, caption: str, place: int, digits: int = sets.decimals) -> bool:
            text = builder.text(series, digits, caption, place)
            return _pick(verifier, builder.labels, text) == place

        def s2c(
            texts: list[str], place: int, series: Any = sets.series[0], digits: int = sets.decimals
        ) -> bool:
            text = made.text(series, digits, texts, place)
            return _pick(verifier, made.labels, text) == place

        for name, hits in {
            "c2s": [c2s(sets.series, own[0], p) for p in range(K)],
            "c2s empty": [c2s(sets.series, "", p) for p in range(K)],
            "c2s mismatch": [c2s(sets.series, captions[other], p) for p in range(K)],
            "c2s order": [c2s(sets.series[rows], own[0], at)],
            "s2c": [s2c(own, p) for p in range(K)],
            "s2c mismatch": [s2c([captions[other], *own[1:]], p) for p in range(K)],
            "s2c order": [s2c([own[row] for row in rows], at)],
        }.items():
            found.setdefault(name, []).append(float(np.mean(hits)))
    for name, table in (("c2s", to_series), ("s2c", to_caption)):
        assert [table.values[id_] for id_ in bench.asked_ids] == pytest.approx(found[name])
        for arm in ("mismatch", "order"):
            assert table.controls[arm] == pytest.approx(np.mean(found[f"{name} {arm}"]))
    assert to_series.controls["empty"] == pytest.approx(np.mean(found["c2s empty"]))
    assert to_caption.controls["empty"] == pytest.approx(1 / K)
    assert len({*found["c2s"], *found["s2c"]}) > 1


def test_c_to_s_is_the_reward_and_s_to_c_reads_each_series_once(
    bench: Benchmark, captions: dict[str, str]
) -> None:
    tok = tokenizer("qwen2")
    verifier = TransformersVerifier(model("qwen2", len(tok)), tok)
    recipe = Recipe(k=K)
    (to_series,) = identify_series(captions, bench, {"q": verifier}, recipe)
    reward = IdentificationReward(bench.corpus, verifier, recipe)
    batch = reward.score([captions[id_] for id_ in bench.asked_ids], bench.asked_ids)
    assert [to_series.values[i] for i in bench.asked_ids] == pytest.approx(batch.accuracy.tolist())
    (to_caption,) = identify_caption(captions, bench, {"q": verifier}, recipe)
    told = to_caption.meta["verifiers"]["q"]
    made = CaptionQuestions(verifier.encoder, recipe)
    prefix = naive = 0
    for id_ in bench.asked_ids:
        sets = fixed(bench.corpus, id_, k=K)
        text = made.text(sets.series[0], sets.decimals, ["x"] * K, 0)
        front = text[: text.index('A) """')]
        prefix += len(verifier.encoder.encode(front)[0])
        naive += 3 * K + 1  # questions about the series, each with the whole prefix
    assert told["questions"] == naive
    # All questions about a series read it once: nothing else could save so many tokens.
    saved = told["prompt_tokens"] - told["prefilled_tokens"]
    assert saved >= (naive / len(bench.asked_ids) - 1) * (prefix - 2 * len(bench.asked_ids))


def test_the_command_measures_both_directions(
    tmp_path: Path, bench: Benchmark, captions: dict[str, str]
) -> None:
    tok = tokenizer("qwen2")
    for seed in (0, 1):
        model("llama", len(tok), seed=seed).save_pretrained(tmp_path / f"reader{seed}")
        tok.save_pretrained(tmp_path / f"reader{seed}")
    bench.save(tmp_path / "walk")
    rows = [{"id": id_, "caption": text} for id_, text in captions.items()]
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "c.json").write_text(json.dumps({"corpus_fingerprint": bench.corpus.fingerprint}))
    metrics = ("identify_series", "identify_caption")
    config = EvaluateConfig(
        (f"mean={tmp_path}/c.jsonl",), (str(tmp_path / "walk"),), metrics, k=K,
        verifiers=(f"one={tmp_path}/reader0,{tmp_path}/reader1",), out=tmp_path / "out",
    )  # fmt: skip
    results = evaluate(config)
    told = [metric for _, _, metric in results.tables]
    assert told == [f"{m}{reader}" for m in metrics for reader in ("", "@one", "@reader1")]
    verifier = TransformersVerifier(str(tmp_path / "reader0"))
    (direct,) = identify_caption(captions, bench, {"one": verifier}, Recipe(k=K))
    assert results.tables["mean", "walk", "identify_caption@one"].values == direct.values
    silent = evaluate(replace(config, verifiers=(), out=tmp_path / "other"))
    assert [row["why"] for row in silent.unmeasured] == ["no verifier is named (--verifiers)"] * 2
    with pytest.raises(ValueError, match="verifiers: expected NAME=MODEL of different names"):
        named(["a/reader", "b/reader/"])
