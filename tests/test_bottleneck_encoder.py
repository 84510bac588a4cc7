"""The encoder of the bottleneck: pooling, lengths, LoRA that comes and goes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.small_encoder import encoder_of  # noqa: E402
from trainer.evaluate.bottleneck.config import Decoder, Lora  # noqa: E402
from trainer.evaluate.bottleneck.decoder import fit  # noqa: E402
from trainer.evaluate.bottleneck.encoder import Encoder, buckets, linear_layers  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Layers this small lose more to a second thread than they gain."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return encoder_of()


# --- encoder ---------------------------------------------------------------------------------


def test_a_vector_is_the_mean_over_the_tokens_of_its_text_alone(encoder: Encoder) -> None:
    text = "start 57 peak 3"
    ids = torch.tensor(encoder.token_ids([text]))
    assert ids.shape[1] > 5  # neither cut nor padded as the tokenizer's file says
    with torch.no_grad():
        expected = encoder.model(input_ids=ids).last_hidden_state[0].mean(dim=0)
    torch.testing.assert_close(encoder.encode([text])[0], expected)


@torch.no_grad()
def test_vectors_do_not_depend_on_the_batch(encoder: Encoder) -> None:
    rng = np.random.default_rng(1)
    texts = ["".join(rng.choice(list("abc 123"), size=n)) for n in rng.integers(0, 50, size=30)]
    texts += ["", texts[0]]
    together = encoder_of().encode(texts)
    alone = torch.cat([encoder.pooled(encoder.token_ids([text])) for text in texts])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)
    assert torch.equal(together[-1], together[0])
    assert (together[0] - together[1]).abs().max() > 1e-3  # texts do differ


def test_each_text_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, seen = encoder_of(), list[int]()
    pooled = encoder.pooled

    def counted(ids: Any) -> Any:
        seen.append(len(ids))
        return pooled(ids)

    monkeypatch.setattr(encoder, "pooled", counted)
    encoder.encode(["a", "b", "a", "cc"])
    encoder.encode(["cc", "b", "d"])
    assert sum(seen) == 4


def test_long_captions_are_refused_with_the_numbers(encoder: Encoder) -> None:
    with pytest.raises(ValueError, match=r"at most 64 tokens for made, got 1 of 2 .* with 102"):
        encoder.encode(["short", "a" * 100])
    assert encoder.token_ids(["a" * 62]) == [[1, *[15 + 4] * 62, 2]]


def test_a_text_without_tokens_is_the_zero_vector(encoder: Encoder) -> None:
    vectors = encoder.pooled([[], [1, 20, 2]])
    assert (vectors[0] == 0).all()
    torch.testing.assert_close(vectors[1:], encoder.pooled([[1, 20, 2]]))


def test_no_such_encoder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="encoder: expected a folder or hub id"):
        Encoder.load(str(tmp_path / "none"))


def test_buckets_hold_every_row_by_length() -> None:
    lengths = [5, 1, 9, 3, 7, 3]
    parts = buckets([0, 2, 3, 4, 5], lengths, 2)
    assert parts == [[3, 5], [0, 4], [2]]


# --- LoRA ------------------------------------------------------------------------------------


def test_lora_starts_at_the_encoder_changes_it_and_leaves_it_as_it_was(encoder: Encoder) -> None:
    pytest.importorskip("peft")
    ids = encoder.token_ids(["start 5", "end"])
    before = encoder.pooled(ids)
    state = {name: value.clone() for name, value in encoder.model.state_dict().items()}
    for _ in range(2):  # a second adapter must not meet what is left of the first
        with encoder.adapted(Lora(r=2)) as learned:
            torch.testing.assert_close(encoder.pooled(ids), before)  # B starts at 0
            n_layers = 2 * 6
            assert len(learned) == 2 * n_layers
            assert not any(
                p.requires_grad for n, p in encoder.model.named_parameters() if "lora" not in n
            )
            with torch.no_grad():
                for parameter in learned:
                    parameter.add_(0.3)
            assert (encoder.pooled(ids) - before).abs().max() > 1e-2
            with pytest.raises(ValueError, match="adapted"):
                encoder.encode(["a"])
    torch.testing.assert_close(encoder.pooled(ids), before, rtol=0, atol=0)
    after = encoder.model.state_dict()
    assert after.keys() == state.keys()
    assert all(torch.equal(after[name], value) for name, value in state.items())


def test_only_the_dropout_of_lora_is_on(encoder: Encoder) -> None:
    pytest.importorskip("peft")
    with encoder.adapted(Lora()):
        encoder.learn(True)
        on = {n for n, m in encoder.model.named_modules() if isinstance(m, torch.nn.Dropout)
              and m.training}  # fmt: skip
        assert on
        assert all("lora_dropout" in name for name in on)
        encoder.learn(False)
        assert not any(module.training for module in encoder.model.modules())


def test_the_layers_of_the_reference_or_all_but_the_pooler(encoder: Encoder) -> None:
    names = linear_layers(encoder.model)
    assert len(names) == 12
    assert not any("pooler" in name for name in names)
    gemma_like = torch.nn.ModuleDict(
        {"q_proj": torch.nn.Linear(2, 2), "down_proj": torch.nn.Linear(2, 2),
         "embed": torch.nn.Linear(2, 2)}
    )  # fmt: skip
    assert linear_layers(gemma_like) == ["q_proj", "down_proj"]
    with pytest.raises(ValueError, match="linear layers"):
        linear_layers(torch.nn.Sequential())


def test_a_pass_of_fewer_texts_learns_the_same() -> None:
    pytest.importorskip("peft")
    encoder = encoder_of(max_length=128)
    rng = np.random.default_rng(3)
    texts = ["".join(rng.choice(list("abc 123"), size=n)) for n in rng.integers(1, 60, size=36)]
    targets, split = rng.normal(size=(36, 3)), np.repeat(np.arange(3, dtype=np.int8), 12)
    one = Decoder(hidden=4, dropout=0, epochs=2, seeds=(7,), lora=Lora(r=2, dropout=0), lr=1e-2)
    arguments = (texts, targets, split)
    whole, parts = (
        fit(*arguments, encoder, replace(one, micro_batch=n))[0].predicted for n in (32, 3)
    )
    np.testing.assert_allclose(whole, parts, atol=1e-4)
    frozen = fit(*arguments, encoder, replace(one, lora=None))[0].predicted
    assert np.abs(whole - frozen).max() > 1e-3
