"""Captioners of any kind behind one call: series in, captions out.

Ours (the Qwen2.5-VL family) reads charts through `trainer.policy`; other vision-language models
through their own processor; language models read the digits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

from lineup_fast import charts, kernels
from lineup_fast.candidates import auto_decimals
from trainer import lora
from trainer.policy import Captioner

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from trainer.caption_config import CaptionConfig

    Series = NDArray[np.float64]


@dataclass(frozen=True)
class Written:
    """A caption; finished: whether it ended by itself."""

    text: str
    finished: bool


Writer = Callable[[Sequence["Series"]], list[Written]]
TextWriter = Callable[[Sequence[str]], list[Written]]


class TextModel(Protocol):
    """The settings of a model that writes text."""

    @property
    def checkpoint(self) -> str: ...

    @property
    def max_new_tokens(self) -> int | None: ...

    @property
    def device(self) -> str: ...

    @property
    def compute_dtype(self) -> str: ...


def load_writer(config: CaptionConfig) -> Writer:
    """What captions with the checkpoint of the (resolved) settings.

    Raises:
        ValueError: no such model, or one that neither reads charts nor writes text.
    """
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    )

    base = lora.base_of(config.checkpoint) or config.checkpoint
    kind = _load(AutoConfig, base).model_type
    if kind == "qwen2_5_vl":
        return _ours(config)
    if kind in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES:
        return _chart_reader(config)
    if kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        return _digit_reader(config)
    raise ValueError(
        f"checkpoint: expected a vision-language or language model, got {kind} "
        f"in {config.checkpoint}"
    )


def digits_prompt(instruction: str, series: Series) -> str:
    """The instruction with the values in time order, for a model that sees no chart."""
    numbers = kernels.format_numbers(series, auto_decimals(series))
    about = instruction.replace("This line chart shows one", "Here is one").replace(
        "see the chart", "see the values"
    )
    return f"{about}\n\n{len(series)} values in time order:\n{numbers}"


def _ours(config: CaptionConfig) -> Writer:
    captioner = Captioner.load(
        config.checkpoint,
        caption_prompt=config.caption_prompt or "",
        device=config.device,
        compute_dtype=getattr(torch, config.compute_dtype),
    )
    style = charts.STYLES[config.chart_style or "default"]

    def write(series: Sequence[Series]) -> list[Written]:
        prompts = captioner.prompts(charts.render(series, style, threads=config.threads))
        decoded = captioner.generate(prompts, max_new_tokens=config.max_new_tokens or 1)
        texts = captioner.texts(decoded.token_ids)
        return [Written(*pair) for pair in zip(texts, decoded.finished, strict=True)]

    return write


def _chart_reader(config: CaptionConfig) -> Writer:
    from PIL import Image
    from transformers import AutoModelForImageTextToText, AutoProcessor

    processor = _load(AutoProcessor, config.checkpoint)
    processor.tokenizer.padding_side = "left"
    model = _model(AutoModelForImageTextToText, config)
    style = charts.STYLES[config.chart_style or "default"]
    content = [{"type": "image"}, {"type": "text", "text": config.caption_prompt}]
    prompt = processor.apply_chat_template(
        [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False
    )

    def write(series: Sequence[Series]) -> list[Written]:
        images = [Image.fromarray(chart) for chart in charts.render(series, style)]
        inputs = processor(
            text=[prompt] * len(images), images=[[i] for i in images], padding=True,
            return_tensors="pt",
        )  # fmt: skip
        return _greedy(model, processor.tokenizer, inputs, config)

    return write


def _digit_reader(config: CaptionConfig) -> Writer:
    write = load_text_writer(config)

    def caption(series: Sequence[Series]) -> list[Written]:
        return write([digits_prompt(config.caption_prompt or "", x) for x in series])

    return caption


def load_text_writer(config: TextModel) -> TextWriter:
    """What answers instructions with the language model of the settings, greedily.

    Raises:
        ValueError: no such model.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = _load(AutoTokenizer, config.checkpoint, padding_side="left")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    model = _model(AutoModelForCausalLM, config)

    def write(texts: Sequence[str]) -> list[Written]:
        special = True
        if tokenizer.chat_template:  # it writes the special tokens itself
            special = False
            texts = [
                tokenizer.apply_chat_template(
                    [{"role": "user", "content": text}], add_generation_prompt=True, tokenize=False
                )
                for text in texts
            ]
        inputs = tokenizer(
            list(texts), padding=True, return_tensors="pt", add_special_tokens=special
        )
        return _greedy(model, tokenizer, inputs, config)

    return write


@torch.no_grad()
def _greedy(model: Any, tokenizer: Any, inputs: Any, config: TextModel) -> list[Written]:
    inputs = inputs.to(model.device)
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    length = inputs["input_ids"].shape[1]
    if limit is not None and length + (config.max_new_tokens or 1) > limit:
        raise ValueError(
            f"max_new_tokens: expected prompt and caption within {limit} tokens, the model's "
            f"context, got {length} + {config.max_new_tokens}"
        )
    out = model.generate(
        **inputs, max_new_tokens=config.max_new_tokens, do_sample=False, num_beams=1,
        temperature=None, top_p=None, top_k=None, pad_token_id=tokenizer.pad_token_id,
    )[:, length:]  # fmt: skip
    ends = model.generation_config.eos_token_id
    ends = torch.tensor(ends if isinstance(ends, list) else [ends], device=out.device)
    finished = torch.isin(out, ends).any(1).tolist()
    texts = tokenizer.batch_decode(out, skip_special_tokens=True)
    return [Written(text.strip(), done) for text, done in zip(texts, finished, strict=True)]


def _model(kind: Any, config: TextModel) -> Any:
    dtype = getattr(torch, config.compute_dtype)
    model = _load(kind, config.checkpoint, dtype=dtype).eval().to(config.device)
    if model.generation_config.eos_token_id is None:
        raise ValueError(f"checkpoint: expected an end token, got none in {config.checkpoint}")
    return model


def _load(kind: Any, path: str, **options: Any) -> Any:
    try:
        return kind.from_pretrained(path, **options)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"checkpoint: expected a folder or hub id of a captioner, got {path!r} ({error})"
        ) from error
