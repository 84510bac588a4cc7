"""Sampling of G captions behind one encoding of chart and prompt, against Hugging Face's generate.

pytest bench/bench_rollout.py        CPU time, one thread, float32, greedy tokens compared first

Both draw from the whole distribution but the banned tokens and make equally many tokens: no end
token counts. Generate (5.24) encodes a chart once, too, but its prompt once for every caption, and
every caption reads a copy of its keys and values of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.record import row
from lineup_fast import charts

torch = pytest.importorskip("torch")

ROOT = Path(__file__).parent.parent
TINY = ROOT / "trainer" / "tiny" / "captioner"
N_CHARTS, GROUP, LENGTH = 4, 8, 48
pytestmark = [pytest.mark.timeout(1200), pytest.mark.slow]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def captioner() -> Any:
    from trainer.policy import Captioner

    made = Captioner.load(TINY, caption_prompt="Describe the chart.")
    made.eos_ids = frozenset({-1})
    return made


@pytest.fixture
def plain() -> Any:
    """The same weights with Hugging Face's own attention."""
    from transformers import Qwen2_5_VLForConditionalGeneration

    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(TINY, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    return model


def prompts_of(captioner: Any, style: str) -> Any:
    rng = np.random.default_rng(0)
    walks = [np.clip(50 + np.cumsum(rng.integers(-9, 10, 24)), 0, 100.0) for _ in range(N_CHARTS)]
    return captioner.prompts(charts.render(walks, charts.STYLES[style]))


def generated(model: Any, captioner: Any, prompts: Any, **options: Any) -> Any:
    """New tokens [n, LENGTH] of Hugging Face's generate."""
    image = (prompts.input_ids == model.config.image_token_id).int()
    with torch.no_grad():
        found = model.generate(
            input_ids=prompts.input_ids,
            attention_mask=prompts.mask.long(),
            pixel_values=prompts.pixel_values,
            image_grid_thw=prompts.grid,
            mm_token_type_ids=image,
            max_new_tokens=LENGTH,
            suppress_tokens=captioner.banned.tolist(),
            pad_token_id=captioner.pad_id,
            **options,
        )
    return found[:, prompts.input_ids.shape[1] :]


@pytest.mark.parametrize("style", ["tiny", "default"])
def test_captions_of_a_chart(race: Any, captioner: Any, plain: Any, style: str) -> None:
    """G sampled captions of a few charts."""
    prompts = prompts_of(captioner, style)
    greedy = captioner.generate(prompts, max_new_tokens=LENGTH).token_ids
    assert torch.equal(torch.stack(greedy), generated(plain, captioner, prompts, do_sample=False))

    encoded: list[int] = []  # prompts that went through the plain model's decoder

    def counted(module: Any, words: Any, options: dict[str, Any]) -> None:
        n_prompts, length = options["inputs_embeds"].shape[:2]
        encoded.append(n_prompts if length > 1 else 0)

    hook = plain.model.language_model.register_forward_pre_hook(counted, with_kwargs=True)
    uniforms = torch.rand(N_CHARTS * GROUP, LENGTH, dtype=torch.float64)

    def ours() -> Any:
        return captioner.generate(
            prompts, group_size=GROUP, max_new_tokens=LENGTH, uniforms=uniforms
        )

    def theirs() -> Any:
        return generated(
            plain, captioner, prompts,
            do_sample=True, temperature=1.0, top_k=0, top_p=1.0, num_return_sequences=GROUP,
        )  # fmt: skip

    before = captioner.prompt_encodings
    assert sum(map(len, ours().token_ids)) == N_CHARTS * GROUP * LENGTH
    assert captioner.prompt_encodings - before == N_CHARTS  # once for all captions of a chart
    assert theirs().numel() == N_CHARTS * GROUP * LENGTH
    assert sum(encoded) == N_CHARTS * GROUP
    hook.remove()

    got = race(ours, theirs, rounds=3)
    length = prompts.input_ids.shape[1]
    row("rollout, tiny captioner", f"{N_CHARTS} charts, G={GROUP}, {length} + {LENGTH} tokens",
        "HF generate", got, 1.0, None, "greedy tokens; prompts encoded 8x less")  # fmt: skip
