"""Packed groups against separate forward passes, and the pieces of the packing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.random_vlm import random_captioner, random_images, random_model
from trainer.logprobs import chosen_logprobs
from trainer.packing import (
    attention,
    attention_backward,
    group_layout,
    plain_attention,
    plain_attention_backward,
)
from trainer.policy import Prompts

CAPTIONS = [[5, 1, 9, 3], [2, 7, 7, 1]]  # completion lengths of two groups


def some_captions(seed: int = 0) -> list[list[Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [[torch.randint(0, 256, (n,), generator=generator) for n in g] for g in CAPTIONS]


def separate_logps(model: object, prompts: Prompts, captions: list[list[Tensor]]) -> list[Tensor]:
    """One plain forward of the stock model per caption: its own positions, its own attention."""
    out = []
    image_id = model.config.image_token_id  # type: ignore[attr-defined]
    for row, group in enumerate(captions):
        one = prompts.select([row])
        for caption in group:
            ids = torch.cat([one.input_ids[0], caption])[None]
            logits = model(  # type: ignore[operator]
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                pixel_values=one.pixel_values,
                image_grid_thw=one.grid,
                mm_token_type_ids=(ids == image_id).int(),
            ).logits[0, one.input_ids.shape[1] - 1 : -1]
            logits = logits.double()
            logits[:, 259:] = -torch.inf  # vision tokens and rows without a token
            out.append(logits.log_softmax(-1).gather(1, caption[:, None])[:, 0])
    return out


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (2, 1)])
def test_packed_values_and_gradients_equal_separate_ones(heads: int, kv_heads: int) -> None:
    captioner = random_captioner(double=True, heads=heads, kv_heads=kv_heads)
    stock = random_model(heads=heads, kv_heads=kv_heads).double()
    captions = some_captions()
    weights = torch.randn(
        sum(map(sum, CAPTIONS)), generator=torch.Generator().manual_seed(1)
    ).double()

    prompts = captioner.prompts(random_images(2))
    packed, _ = captioner.token_logps(prompts, captions)
    separate = torch.cat(separate_logps(stock, prompts, captions))
    torch.testing.assert_close(packed, separate, rtol=1e-6, atol=1e-6)

    (packed * weights).sum().backward()
    (separate * weights).sum().backward()
    grads = dict(stock.named_parameters())
    assert any("visual" in name for name in grads)
    for name, parameter in captioner.model.named_parameters():
        expected = grads[name].grad
        assert expected.abs().max() > 0, name
        difference = (parameter.grad - expected).norm() / expected.norm()
        assert difference < 1e-6, (name, float(difference))


def test_one_token_captions_only() -> None:
    captioner, stock = random_captioner(), random_model()
    prompts = captioner.prompts(random_images(1))
    captions = [[torch.tensor([7]), torch.tensor([9])]]
    packed, _ = captioner.token_logps(prompts, captions)
    torch.testing.assert_close(
        packed, torch.cat(separate_logps(stock, prompts, captions)).float(), rtol=1e-5, atol=1e-5
    )
    packed.sum().backward()


def test_siblings_do_not_see_each_other() -> None:
    captioner = random_captioner()
    prompts = captioner.prompts(random_images(2))
    captions = some_captions()
    before, _ = captioner.token_logps(prompts, captions)
    captions[0][2] = captions[0][2].flip(0)
    after, _ = captioner.token_logps(prompts, captions)
    changed = torch.ones_like(before, dtype=torch.bool)
    changed[6:15] = False  # tokens of the third caption
    torch.testing.assert_close(before[changed], after[changed], rtol=0, atol=1e-6)
    assert (before[~changed] - after[~changed]).abs().max() > 1e-3


def test_positions_start_anew_for_every_caption() -> None:
    layout = group_layout(3, [[3, 2], [1]])
    assert layout.n_rows == 3 + 2 + 1 + 3
    assert layout.positions.tolist() == [0, 1, 2, 0, 1, 0, 0, 1, 2]
    assert layout.scored_from.tolist() == [2, 3, 4, 2, 5, 8]
    assert layout.group_of_row.tolist() == [0] * 6 + [1] * 3
    assert layout.in_caption.tolist() == [False] * 3 + [True] * 3 + [False] * 3


@pytest.mark.parametrize("lengths", [[], [[]], [[2, 0]]])
def test_layout_refuses_empty_captions(lengths: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="caption_lengths"):
        group_layout(2, lengths)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    ("forward", "backward"),
    [(attention, attention_backward), (plain_attention, plain_attention_backward)],
)
def test_attention_pieces_equal_autograd(
    causal: bool, forward: Callable[..., Any], backward: Callable[..., Any]
) -> None:
    torch.manual_seed(0)
    q, k, v, grad = (torch.randn(2, 3, 5, 8, dtype=torch.float64) for _ in range(4))
    for x in (q, k, v):
        x.requires_grad_()
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    wanted = torch.autograd.grad(expected, (q, k, v), grad)
    q, k, v = q.detach(), k.detach(), v.detach()
    out, lse = forward(q, k, v, causal=causal, scale=8**-0.5)
    torch.testing.assert_close(out, expected.detach())
    got = backward(grad, q, k, v, out, lse, causal=causal, scale=8**-0.5)
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("chunk", [1, 3, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_chunked_logprobs_equal_full_logits(chunk: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    hidden = torch.randn(7, 6, dtype=dtype, requires_grad=True)
    weight = torch.randn(11, 6, dtype=dtype, requires_grad=True)
    targets = torch.tensor([0, 1, 2, 3, 10, 9, 8])
    banned = torch.tensor([4, 7])
    coefficients = torch.randn(7, dtype=dtype)

    logits = hidden @ weight.T
    logits = logits.index_fill(1, banned, -torch.inf)
    full = logits.log_softmax(-1)
    expected = full.gather(1, targets[:, None])[:, 0]
    entropy = -torch.xlogy(full.exp(), full.exp()).sum(-1)
    wanted = torch.autograd.grad((expected * coefficients).sum(), (hidden, weight))

    got, got_entropy = chosen_logprobs(hidden, weight, targets, banned=banned, chunk=chunk)
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(got_entropy, entropy)
    assert not got_entropy.requires_grad
    for a, b in zip(
        torch.autograd.grad((got * coefficients).sum(), (hidden, weight)), wanted, strict=True
    ):
        torch.testing.assert_close(a, b)


def test_chunked_logprobs_hold_one_chunk_of_logits() -> None:
    widest = 0
    original = torch.Tensor.__matmul__

    def watch(a: Tensor, b: Tensor) -> Tensor:
        nonlocal widest
        out = original(a, b)
        widest = max(widest, out.numel())
        return out

    hidden = torch.randn(64, 4, requires_grad=True)
    weight = torch.randn(500, 4, requires_grad=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "__matmul__", watch)
        logp, _ = chosen_logprobs(hidden, weight, torch.zeros(64, dtype=torch.long), chunk=8)
        logp.sum().backward()
    assert widest == 8 * 500
