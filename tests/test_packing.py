"""Packed groups against separate forward passes, and the pieces of the packing."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.random_vlm import random_captioner, random_images, random_model
from trainer.attention import group_layout
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


def test_segments_packed_and_padded_hold_the_same_rows() -> None:
    layout = group_layout(3, [[1, 1], [3, 1, 2], [2]])
    captions = layout.captions
    assert captions is not None
    assert captions.own.real.tolist() == captions.together.real.tolist() == [6, 7, 8, 12]
    assert captions.own.spans.bounds.tolist() == [0, 2, 3, 4]
    assert captions.together.spans.bounds.tolist() == [0, 3, 4]
    assert captions.prefixes.real.tolist() == [3, 4, 5, 9, 10, 11]  # of groups with rows behind
    assert layout.prefix.spans.bounds.tolist() == [0, 3, 6, 9]
    assert group_layout(3, [[1], [1]]).captions is None
    whole = group_layout(3, [[2], [2]])
    assert whole.captions is not None
    assert whole.captions.prefixes is whole.prefix
    flat = torch.arange(13.0)[:, None, None].expand(13, 2, 4)
    for block in (layout.prefix, captions.own, captions.together, captions.prefixes):
        assert block.spans.longest == block.rows.shape[1]
        rows = block.collect(block.gather(flat))
        assert rows[:, 1, 3].tolist() == block.real.tolist()
        spread = block.spread(rows, -1.0)
        assert block.collect(spread).equal(rows)
        assert int((spread == -1).sum()) == (block.rows.numel() - len(block.real)) * 8
