"""The transformers verifier against its oracle, one whole prompt at a time."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerFast

from lineup_fast.encoders import ByteEncoder
from lineup_fast.prompt_tokens import PromptBuilder
from lineup_fast.prompts import Recipe
from lineup_fast.verifiers.base import keep_positions, prompt_lengths
from lineup_fast.verifiers.transformers import TransformersVerifier
from tests.toy_models import model
from tests.toy_tokenizers import byte_level, tokenizer

LAYOUTS = ("caption_first", "candidates_first")
CAPTIONS = ["It rises.", "", "It falls from 9 to 1, then rests. " * 4, "x"]


def _trees(builder: PromptBuilder, n: int = 2, captions: list[str] = CAPTIONS) -> list[Any]:
    rng = np.random.default_rng(0)
    ids = builder.caption_ids(captions)
    return [builder.tree(rng.standard_normal((builder.recipe.k, 5)) * 9, 1, ids) for _ in range(n)]


def _gap(a: list[Any], b: list[Any]) -> float:
    """Largest difference of label log-probabilities; the picks have to be the same."""
    for x, y in zip(a, b, strict=True):
        assert np.array_equal(x.label_logprobs.argmax(2), y.label_logprobs.argmax(2))
        assert x.reason == y.reason == [None] * len(x.reason)
        np.testing.assert_allclose(x.label_mass, y.label_mass, atol=1e-3)
    return max(
        float(np.abs(x.label_logprobs - y.label_logprobs).max()) for x, y in zip(a, b, strict=True)
    )


@pytest.mark.parametrize("k", [2, 4, 8])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("kind", "family"), [("llama", "llama3"), ("qwen2", "qwen2"), ("gemma3", "gemma")]
)
def test_shared_prefixes_give_the_logits_of_whole_prompts(
    kind: str, family: str, layout: Any, k: int
) -> None:
    tok = tokenizer(family)
    net = model(kind, len(tok))
    shared, plain = TransformersVerifier(net, tok), TransformersVerifier(net, tok, shared=False)
    assert shared.shared
    builder = PromptBuilder(tok, Recipe(k=k, layout=layout))
    trees = _trees(builder, 2 if k < 8 else 1)
    answers = shared.score(trees, builder.labels)
    oracle = plain.score(trees, builder.labels)
    assert _gap(answers, oracle) <= 1e-3
    assert np.ptp(oracle[0].label_logprobs) > 0.05  # the questions do differ
    naive = sum(int(prompt_lengths(tree).sum()) for tree in trees)
    assert sum(answer.prefilled_tokens for answer in oracle) == naive
    assert sum(answer.prompt_tokens for answer in answers) == naive


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "mistral", "gemma3"])
def test_float64_shows_that_sharing_is_exact(kind: str) -> None:
    net = model(kind).double()
    builder = PromptBuilder(ByteEncoder(), Recipe(k=3, layout="candidates_first"))
    verifiers = [TransformersVerifier(net, ByteEncoder(), shared=x) for x in (True, False)]
    assert verifiers[0].shared
    answers = [verifier.score(_trees(builder), builder.labels) for verifier in verifiers]
    assert _gap(*answers) < 1e-6  # rounding of the float32 result


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_distinct_prefix_is_computed_once(layout: Any) -> None:
    net = model("llama")
    verifier = TransformersVerifier(net, ByteEncoder())
    builder = PromptBuilder(ByteEncoder(), Recipe(k=4, layout=layout))
    seen: list[int] = []
    net.get_input_embeddings().register_forward_hook(
        lambda module, args, out: seen.append(args[0].numel())
    )
    (tree,) = _trees(builder, 1)
    (answer,) = verifier.score([tree], builder.labels)
    assert answer.prefilled_tokens == len(tree.ids) == sum(seen)
    assert answer.prompt_tokens == prompt_lengths(tree).sum()
    # A second tree pays for what it does not share with the first, a repeated caption for nothing.
    seen.clear()
    first, second = _trees(builder, 2, ["It rises.", "It rises.", "It falls."])
    both = verifier.score([first, second], builder.labels)
    assert sum(answer.prefilled_tokens for answer in both) == sum(seen)
    assert sum(seen) < len(first.ids) + len(second.ids) - len(first.node(0))
    np.testing.assert_array_equal(both[0].label_logprobs[0], both[0].label_logprobs[1])


def test_chunks_and_batches_do_not_change_the_answers() -> None:
    net = model("qwen2")
    builder = PromptBuilder(ByteEncoder(), Recipe(k=4, layout="candidates_first"))
    trees = _trees(builder, 3)
    whole = TransformersVerifier(net, ByteEncoder()).score(trees, builder.labels)
    small = TransformersVerifier(net, ByteEncoder(), chunk_tokens=50, kv_bytes=1)
    assert _gap(small.score(trees, builder.labels), whole) < 1e-4
    alone = [small.score([tree], builder.labels)[0] for tree in trees]
    assert _gap(alone, whole) < 1e-4
    assert small.score([], builder.labels) == []


def test_only_the_asked_positions_are_computed() -> None:
    net = model("qwen2")
    verifier = TransformersVerifier(net, ByteEncoder())
    builder = PromptBuilder(ByteEncoder(), Recipe(k=4, layout="candidates_first"))
    (tree,) = _trees(builder, 1)
    (whole,) = verifier.score([tree], builder.labels)
    (one,) = verifier.score([keep_positions(tree, [2])], builder.labels)
    np.testing.assert_allclose(one.label_logprobs[:, 2], whole.label_logprobs[:, 2], atol=1e-4)
    assert np.isnan(one.label_logprobs[:, [0, 1, 3]]).all()
    assert one.reason == [None] * len(CAPTIONS)
    lengths = prompt_lengths(tree)[:, 2]
    captions = [len(ids) for ids in builder.caption_ids(CAPTIONS)]
    tail = len(builder._frame.tail)
    prefix = lengths[0] - captions[0] - tail
    assert one.prefilled_tokens == prefix + sum(captions) + tail * len(captions)


def test_variants_of_a_label_are_summed() -> None:
    tok = tokenizer("qwen2")
    verifier = TransformersVerifier(model("qwen2", len(tok)), tok)
    builder = PromptBuilder(tok)
    assert builder.labels.ids.shape == (4, 2)
    (tree,) = _trees(builder, 1)
    (summed,) = verifier.score([tree], builder.labels)
    parts = [
        verifier.score([tree], replace(builder.labels, ids=builder.labels.ids[:, [v]]))[0]
        for v in (0, 1)
    ]
    expected = np.logaddexp(parts[0].label_logprobs, parts[1].label_logprobs)
    np.testing.assert_allclose(summed.label_logprobs, expected, atol=1e-5)
    np.testing.assert_allclose(summed.label_mass, np.exp(expected).sum(2), atol=1e-6)
    padded = replace(builder.labels, ids=np.where([[True, False]], builder.labels.ids, -1))
    (first,) = verifier.score([tree], padded)
    np.testing.assert_array_equal(first.label_logprobs, parts[0].label_logprobs)


def test_a_biting_sliding_window_takes_the_plain_path(caplog: pytest.LogCaptureFixture) -> None:
    net = model("gemma3", sliding_window=300)
    verifier, builder = TransformersVerifier(net, ByteEncoder()), PromptBuilder(ByteEncoder())
    trees = _trees(builder, 1)
    with caplog.at_level(logging.WARNING):
        (answer,) = verifier.score(trees, builder.labels)
        verifier.score(trees, builder.labels)
    assert [record.message for record in caplog.records] == [
        f"Gemma3ForCausalLM: prompts of {prompt_lengths(trees[0]).max()} tokens exceed its "
        "sliding window of 300; they are asked one at a time"
    ]
    assert answer.prefilled_tokens == answer.prompt_tokens
    plain = TransformersVerifier(net, ByteEncoder(), shared=False).score(trees, builder.labels)
    assert _gap([answer], plain) == 0
    short = PromptBuilder(ByteEncoder(), Recipe(k=2, layout="candidates_first"))
    tree = short.tree(np.ones((2, 1)), 0, short.caption_ids(["x"]))
    wide = model("gemma3", sliding_window=int(prompt_lengths(tree).max()))
    both = [TransformersVerifier(wide, ByteEncoder(), shared=x) for x in (True, False)]
    assert _gap(*(verifier.score([tree], short.labels) for verifier in both)) <= 1e-3


@pytest.mark.parametrize(
    ("kind", "changes", "reason"),
    [
        ("gemma2", {}, "not on the list"),
        (
            "llama",
            {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
            "rotary angles",
        ),
    ],
)
def test_other_architectures_are_asked_one_at_a_time(
    kind: str, changes: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        verifier = TransformersVerifier(model(kind, **changes), ByteEncoder())
    assert not verifier.shared
    assert reason in caplog.text
    builder = PromptBuilder(ByteEncoder(), Recipe(k=2))
    (answer,) = verifier.score(_trees(builder, 1, ["x"]), builder.labels)
    assert np.isfinite(answer.label_logprobs).all()


def test_a_model_that_fails_the_check_is_asked_one_at_a_time(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TransformersVerifier, "_check_shared", lambda self: float("nan"))
    assert not TransformersVerifier(model("llama"), ByteEncoder()).shared
    assert "differ by nan" in caplog.text


def test_prompts_beyond_the_context_are_refused_not_cut() -> None:
    builder = PromptBuilder(ByteEncoder(), Recipe(k=2))
    (tree,) = _trees(builder, 1, ["x", "y" * 600, "z"])
    limit = int(prompt_lengths(tree)[[0, 2]].max())
    for shared in (True, False):
        verifier = TransformersVerifier(
            model("llama", max_position_embeddings=limit), ByteEncoder(), shared=shared
        )
        (answer,) = verifier.score([tree], builder.labels)
        assert answer.reason[0] is None
        assert answer.reason[2] is None
        assert f"the verifier reads {limit}" in str(answer.reason[1])
        assert np.isnan(answer.label_logprobs[1]).all()
        assert np.isfinite(answer.label_logprobs[[0, 2]]).all()
        (replies,) = verifier.generate([tree])
        assert replies.texts[1] == [None, None]


def test_ids_outside_the_vocabulary_are_refused() -> None:
    verifier = TransformersVerifier(model("llama", 128), ByteEncoder())
    builder = PromptBuilder(ByteEncoder(), Recipe(k=2))
    with pytest.raises(ValueError, match="ids: expected 0 to 127"):
        verifier.score(_trees(builder, 1, ["é"]), builder.labels)


def test_non_finite_logits_are_a_reason() -> None:
    net = model("llama")
    net.get_output_embeddings().weight.data[65] = float("nan")
    builder = PromptBuilder(ByteEncoder(), Recipe(k=2))
    verifier = TransformersVerifier(net, ByteEncoder(), shared=False)
    (answer,) = verifier.score(_trees(builder, 1, ["x", "y"]), builder.labels)
    assert answer.reason == ["non-finite logits"] * 2


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_replies_are_greedy(layout: Any, shared: bool) -> None:
    tok = tokenizer("qwen2")
    net = model("qwen2", len(tok))
    builder = PromptBuilder(tok, Recipe(k=2, layout=layout, scoring="generate"))
    (tree,) = _trees(builder, 1, ["It rises.", "It falls."])
    expected = {}
    for caption, position in np.ndindex(2, 2):
        ids = torch.from_numpy(tree.prompt(caption, position).astype(np.int64))[None]
        for _ in range(6):
            ids = torch.cat([ids, net(input_ids=ids).logits[0, -1:].argmax(1)[None]], dim=1)
        expected[caption, position] = ids[0, len(tree.prompt(caption, position)) :].tolist()
    # The third token of the first reply ends a reply, wherever it comes.
    end = expected[0, 0][2]
    net.generation_config.eos_token_id = end
    verifier = TransformersVerifier(net, tok, shared=shared, chunk_tokens=100)
    (replies,) = verifier.generate([keep_positions(tree, [0, 1])], max_new_tokens=6)
    for (caption, position), new in expected.items():
        until = new[: new.index(end) + 1] if end in new else new
        assert replies.texts[caption][position] == tok.decode(until, skip_special_tokens=True)
    assert len({tuple(new) for new in expected.values()}) > 1
    assert (replies.prefilled_tokens < replies.prompt_tokens) == shared


def test_fingerprints_tell_models_apart() -> None:
    nets = [model("llama"), model("llama"), model("llama", seed=1), model("qwen2")]
    prints = [TransformersVerifier(net, ByteEncoder()).fingerprint() for net in nets]
    assert prints[0] == prints[1]
    assert len(set(prints)) == 3


def test_loads_from_a_folder(tmp_path: Any) -> None:
    tok = tokenizer("qwen2")
    net = model("qwen2", len(tok))
    net.save_pretrained(tmp_path)
    tok.save_pretrained(tmp_path)
    builder = PromptBuilder(tok, Recipe(k=2))
    trees = _trees(builder, 1)
    loaded = TransformersVerifier(str(tmp_path))
    assert _gap(
        loaded.score(trees, PromptBuilder(loaded.encoder, Recipe(k=2)).labels),
        TransformersVerifier(net, tok).score(trees, builder.labels),
    ) < 1e-5  # fmt: skip
    assert loaded.max_prompt_tokens == 4096
    with pytest.raises(ValueError, match="verifier: expected a folder or hub id"):
        TransformersVerifier(str(tmp_path / "nothing"))
    with pytest.raises(ValueError, match="tokenizer: expected"):
        TransformersVerifier(net)


def test_half_precision_runs() -> None:
    net = model("llama").to(torch.bfloat16)
    verifier = TransformersVerifier(net, ByteEncoder())
    assert verifier.shared
    builder = PromptBuilder(ByteEncoder(), Recipe(k=2))
    trees = _trees(builder, 1)
    exact = TransformersVerifier(net.float(), ByteEncoder()).score(trees, builder.labels)
    half = TransformersVerifier(net.to(torch.bfloat16), ByteEncoder()).score(trees, builder.labels)
    assert np.abs(exact[0].label_logprobs - half[0].label_logprobs).max() < 1.0


def test_the_math_path_gives_the_same_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    net = model("qwen2")
    builder = PromptBuilder(ByteEncoder(), Recipe(k=3))
    trees = _trees(builder, 1)
    verifier = TransformersVerifier(net, ByteEncoder())
    fused = verifier.score(trees, builder.labels)
    monkeypatch.setattr("lineup_fast.verifiers.prefix_attention._CPU_DTYPES", ())
    assert _gap(verifier.score(trees, builder.labels), fused) < 1e-4


def test_a_folder_is_read_by_its_own_splitting_rules(tmp_path: Any) -> None:
    raw = byte_level(r"\d{1,3}|\n|[^\d\n]+", ["<|end|>"])  # not those of Qwen2
    tok = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<|end|>")
    model("qwen2", len(tok)).save_pretrained(tmp_path)
    tok.save_pretrained(tmp_path)
    text = "Here are 4 candidates.\nA) [12, 345]\n"
    expected = tok(text, add_special_tokens=False)["input_ids"]
    assert TransformersVerifier(str(tmp_path)).encoder.encode(text)[0].tolist() == expected
