"""The captioner's inputs and its decoding, against transformers' own."""

from __future__ import annotations

import pytest
import torch

from tests.random_vlm import SPECIAL, byte_tokenizer, random_captioner, random_images, random_model
from trainer.policy import Captioner, Prompts
from trainer.rollouts.decoding import SharedPrefixCache, draw


def hf_greedy(captioner: Captioner, prompts: Prompts, n: int) -> list[list[int]]:
    """Greedy captions from the stock model through `generate`, cut after the end token."""
    out = random_model().generate(
        input_ids=prompts.input_ids,
        attention_mask=prompts.mask.long(),
        pixel_values=prompts.pixel_values,
        image_grid_thw=prompts.grid,
        mm_token_type_ids=(prompts.input_ids == captioner.model.config.image_token_id).int(),
        max_new_tokens=n,
        do_sample=False,
        suppress_tokens=captioner.banned.tolist(),
    )
    rows = []
    for row in out[:, prompts.input_ids.shape[1] :].tolist():
        ends = [i for i, token in enumerate(row) if token in captioner.eos_ids]
        rows.append(row[: ends[0] + 1] if ends else row)
    return rows


def test_greedy_equals_generate() -> None:
    captioner = random_captioner()
    prompts = captioner.prompts(random_images(3))
    decoded = captioner.generate(prompts, max_new_tokens=20)
    assert [ids.tolist() for ids in decoded.token_ids] == hf_greedy(captioner, prompts, 20)


def test_greedy_equals_generate_with_charts_of_different_sizes() -> None:
    captioner = random_captioner()
    parts = [captioner.prompts(random_images(1)), captioner.prompts(random_images(2, 56, 140))]
    prompts = captioner.join(parts)
    assert prompts.mask.sum(-1).tolist() == [36, 40, 40]
    assert not prompts.mask[0, :4].any()
    assert prompts.mask[:, -1].all()  # padded on the left
    decoded = captioner.generate(prompts, group_size=2, max_new_tokens=9)
    rows = [ids.tolist() for ids in decoded.token_ids]
    assert rows[0::2] == rows[1::2] == hf_greedy(captioner, prompts, 9)


def test_right_padding_is_refused() -> None:
    mask = torch.tensor([[True, True, False], [True, True, True]])
    with pytest.raises(ValueError, match="left padding"):
        SharedPrefixCache(mask, 2, 4)


def test_captions_of_a_group_share_one_prompt_encoding() -> None:
    captioner = random_captioner()
    prompts = captioner.prompts(random_images(2))
    captioner.generate(prompts, group_size=5, max_new_tokens=3, uniforms=torch.rand(10, 3).double())
    assert captioner.prompt_encodings == 2


def test_drawn_logps_equal_the_training_pass() -> None:
    captioner = random_captioner()
    prompts = captioner.prompts(random_images(2))
    uniforms = torch.rand(6, 70, generator=torch.Generator().manual_seed(0)).double()
    decoded = captioner.generate(prompts, group_size=3, max_new_tokens=70, uniforms=uniforms)
    groups = [decoded.token_ids[:3], decoded.token_ids[3:]]
    with torch.no_grad():
        logps, entropy = captioner.token_logps(prompts, groups)
    torch.testing.assert_close(torch.cat(decoded.token_logps), logps, rtol=1e-4, atol=1e-4)
    assert abs(decoded.entropy - float(entropy.mean())) < 1e-4


def test_vision_tokens_are_never_drawn() -> None:
    captioner = random_captioner()
    head = captioner.model.lm_head.weight
    with torch.no_grad():  # a model that wants nothing but vision tokens
        head[captioner.banned] *= 50
    prompts = captioner.prompts(random_images(1))
    uniforms = torch.rand(8, 40, generator=torch.Generator().manual_seed(0)).double()
    decoded = captioner.generate(prompts, group_size=8, max_new_tokens=40, uniforms=uniforms)
    drawn = torch.cat(decoded.token_ids)
    assert not torch.isin(drawn, captioner.banned).any()
    image_ids = byte_tokenizer().convert_tokens_to_ids(list(SPECIAL[3:]))
    assert set(image_ids) <= set(captioner.banned.tolist())


def test_draw_follows_the_probabilities() -> None:
    probs = torch.tensor([[0.0, 0.25, 0.0, 0.5, 0.25, 0.0]]).repeat(5, 1)
    uniforms = torch.tensor([0.0, 0.2499, 0.25, 0.75, 1 - 2.0**-32], dtype=torch.float64)
    assert draw(probs, uniforms).tolist() == [1, 1, 3, 4, 4]


def test_end_token_is_kept_and_ends_the_caption() -> None:
    captioner = random_captioner()
    end = min(captioner.eos_ids)
    with torch.no_grad():
        captioner.model.model.language_model.norm.weight.zero_()  # all tokens equally likely
    prompts = captioner.prompts(random_images(1))
    n_ids = captioner.banned[0].item()
    at_end = (end + 0.5) / n_ids
    uniforms = torch.full((2, 4), 0.1, dtype=torch.float64)
    uniforms[0, 2] = at_end
    decoded = captioner.generate(prompts, group_size=2, max_new_tokens=4, uniforms=uniforms)
    assert decoded.finished == [True, False]
    assert [len(ids) for ids in decoded.token_ids] == [3, 4]
    assert decoded.token_ids[0][-1] == end
    assert end not in decoded.token_ids[1]


def test_paper_charts_are_resized_to_whole_patches() -> None:
    prompts = random_captioner().prompts(random_images(1, 300, 600))
    assert prompts.grid.tolist() == [[1, 22, 42]]
    assert prompts.offsets.item() - prompts.input_ids.shape[1] == -210  # 231 image tokens


def test_other_model_families_are_refused() -> None:
    model = random_model()
    model.config.model_type = "llava"
    with pytest.raises(ValueError, match=r"Qwen2\.5-VL"):
        Captioner(model, byte_tokenizer(), caption_prompt="Describe.")


def test_narrow_matmuls_and_recomputed_activations_change_little() -> None:
    plain = random_captioner()
    model = random_model().train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    narrow = Captioner(
        model, byte_tokenizer(), caption_prompt="Describe.", compute_dtype=torch.bfloat16
    )
    prompts = plain.prompts(random_images(2))
    captions = [[torch.arange(40, 47), torch.arange(60, 63)], [torch.arange(90, 95)]]
    grads = []
    for captioner in (plain, narrow):
        logps, _ = captioner.token_logps(prompts, captions)
        assert logps.dtype == torch.float32
        logps.sum().backward()
        grads.append(torch.cat([p.grad.flatten() for p in captioner.model.parameters()]))
    similarity = torch.nn.functional.cosine_similarity(*grads, dim=0)
    assert 0.99 < float(similarity) < 1.0
    decoded = narrow.generate(
        prompts, group_size=2, max_new_tokens=5, uniforms=torch.rand(4, 5).double()
    )
    assert all(logps.dtype == torch.float32 for logps in decoded.token_logps)
