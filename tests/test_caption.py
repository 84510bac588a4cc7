"""Captions of a corpus by captioners of three kinds, into a file that can be gone on with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    CLIPImageProcessorPil,
    CLIPVisionConfig,
    LlamaConfig,
    LlamaForCausalLM,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
)

from tests.random_vlm import byte_tokenizer, random_model
from tests.scripted_run import FewSeries
from trainer.caption import write_captions
from trainer.caption_config import CaptionConfig, resolved
from trainer.lora import LoraSettings
from trainer.policy import Captioner
from trainer.writers import Written, digits_prompt, load_writer


@pytest.fixture(scope="module")
def captioner_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("captioner")
    random_model().save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def settings(model: Path, out: Path, **changes: Any) -> CaptionConfig:
    values = {
        "checkpoint": str(model), "data": Path("unused"), "out": out, "chart_style": "tiny",
        "caption_prompt": "Describe.", "max_new_tokens": 6, "at_once": 3,
        "compute_dtype": "float32",
    }  # fmt: skip
    return CaptionConfig(**(values | changes))


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_our_captioner_writes_one_row_per_item(captioner_folder: Path, tmp_path: Path) -> None:
    config = settings(captioner_folder, tmp_path / "c.jsonl")
    corpus = FewSeries()
    n, cut = write_captions(config, corpus, load_writer)
    rows = read(config.out)
    assert n == len(rows) == 8
    assert {row["id"] for row in rows} == set(corpus.ids("test"))
    assert cut == sum(not row["finished"] for row in rows)
    one_by_one = replace(config, out=tmp_path / "d.jsonl", at_once=1)
    write_captions(one_by_one, corpus, load_writer)
    assert read(one_by_one.out) == rows


def test_adapters_write_captions_on_their_base(captioner_folder: Path, tmp_path: Path) -> None:
    adapted = Captioner.load(
        captioner_folder, caption_prompt="Describe.", adapters=LoraSettings(2, 4.0, ("q_proj",))
    )
    adapted.save(tmp_path)
    config = settings(tmp_path, tmp_path / "c.jsonl")
    write_captions(config, FewSeries(), load_writer)
    plain = settings(captioner_folder, tmp_path / "d.jsonl")
    write_captions(plain, FewSeries(), load_writer)
    assert read(config.out) == read(plain.out)  # fresh adapters change nothing
    for name, parameter in adapted.model.named_parameters():
        if ".lora_B" in name:
            parameter.data.normal_()
    adapted.save(tmp_path)
    learned = replace(config, out=tmp_path / "e.jsonl")
    write_captions(learned, FewSeries(), load_writer)
    assert read(learned.out) != read(plain.out)


def test_a_file_is_gone_on_with_and_settings_do_not_mix(tmp_path: Path) -> None:
    asked: list[int] = []

    def load(config: CaptionConfig) -> Any:
        def write(series: Sequence[np.ndarray]) -> list[Written]:
            asked.append(len(series))
            if len(asked) == 2:
                raise RuntimeError("killed")
            return [Written(f"mean {x.mean():.2f}", True) for x in series]

        return write

    config = settings(tmp_path, tmp_path / "c.jsonl")
    with pytest.raises(RuntimeError, match="killed"):
        write_captions(config, FewSeries(), load)
    with config.out.open("a") as file:
        file.write('{"id": "half a li')
    assert write_captions(config, FewSeries(), load)[0] == 5
    rows = read(config.out)
    assert len({row["id"] for row in rows}) == len(rows) == 8
    for row in rows:
        assert row["caption"] == f"mean {FewSeries().series(row['id']).mean():.2f}"
    before = list(asked)
    assert write_captions(config, FewSeries(), load) == (0, 0)
    assert asked == before
    with pytest.raises(ValueError, match=r"out: expected .*other max_new_tokens"):
        write_captions(replace(config, max_new_tokens=7), FewSeries(), load)


def test_settings_come_from_the_run_of_the_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "checkpoints" / "step-000003"
    folder.mkdir(parents=True)
    trained = {"caption_prompt": "Tell.", "chart_style": "tiny", "max_new_tokens": 48}
    (tmp_path / "run" / "config.json").write_text(json.dumps({"config": trained}))
    left_open = CaptionConfig(str(folder), Path("corpus"))
    assert resolved(left_open) == replace(left_open, **trained)
    chosen = replace(left_open, caption_prompt="Else.")
    assert resolved(chosen).caption_prompt == "Else."
    elsewhere = resolved(CaptionConfig("some/model", Path("corpus")))
    assert (elsewhere.chart_style, elsewhere.max_new_tokens) == ("default", 1024)
    (tmp_path / "run" / "config.json").write_text("{")
    with pytest.raises(ValueError, match="checkpoint: expected settings"):
        resolved(left_open)


def random_llama(folder: Path, positions: int) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = (
        "{% for message in messages %}<|im_start|>{{ message['content'] }}<|im_end|>"
        "{% endfor %}<|im_start|>"
    )
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=positions,
        eos_token_id=tokenizer.eos_token_id, bos_token_id=None,
        pad_token_id=tokenizer.pad_token_id,
    ))  # fmt: skip
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, 0.0, 0.3)
    model.save_pretrained(folder)


def test_language_model_reads_the_digits(tmp_path: Path) -> None:
    random_llama(tmp_path / "llm", 600)
    config = settings(tmp_path / "llm", tmp_path / "c.jsonl")
    corpus = FewSeries()
    write_captions(config, corpus, load_writer)
    rows = read(config.out)
    assert len({row["caption"] for row in rows}) > 1  # it saw different values
    alone = load_writer(config)([corpus.series(rows[0]["id"])])[0]
    assert alone.text == rows[0]["caption"]  # padding changes nothing
    random_llama(tmp_path / "short", 60)
    with pytest.raises(ValueError, match=r"max_new_tokens: expected .* within 60 tokens"):
        load_writer(settings(tmp_path / "short", tmp_path / "d.jsonl"))([corpus.series("0002")])


def random_llava(folder: Path) -> None:
    """Two text and two vision layers of another family, with its own processor."""
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens(
        {"additional_special_tokens": ["<image>"]}, replace_extra_special_tokens=False
    )
    tokenizer.chat_template = (
        "{% for message in messages %}{% for part in message['content'] %}"
        "{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}"
        "{% endfor %}{% endfor %}"
    )
    LlavaProcessor(
        image_processor=CLIPImageProcessorPil(
            size={"shortest_edge": 56}, crop_size={"height": 56, "width": 56}
        ),
        tokenizer=tokenizer, patch_size=14, vision_feature_select_strategy="default",
        chat_template=tokenizer.chat_template, image_token="<image>",
        num_additional_image_tokens=1,
    ).save_pretrained(folder)  # fmt: skip
    small = {"num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlavaConfig(
        vision_config=CLIPVisionConfig(
            hidden_size=16, intermediate_size=24, image_size=56, patch_size=14,
            projection_dim=16, **small,
        ),
        text_config=LlamaConfig(
            vocab_size=len(tokenizer), hidden_size=32, intermediate_size=48,
            num_key_value_heads=2, max_position_embeddings=512,
            eos_token_id=tokenizer.eos_token_id, bos_token_id=None,
            pad_token_id=tokenizer.pad_token_id, **small,
        ),
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
    )  # fmt: skip
    torch.manual_seed(0)
    model = LlavaForConditionalGeneration(config)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, 0.0, 0.3)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(folder)


def test_another_family_reads_the_chart(tmp_path: Path) -> None:
    random_llava(tmp_path / "vlm")
    config = settings(tmp_path / "vlm", tmp_path / "c.jsonl")
    corpus = FewSeries()
    write_captions(config, corpus, load_writer)
    rows = read(config.out)
    assert len(rows) == 8
    assert len({row["caption"] for row in rows}) > 1  # it saw different charts
    alone = load_writer(config)([corpus.series(rows[3]["id"])])[0]
    assert alone.text == rows[3]["caption"]


def test_digits_prompt_holds_every_value() -> None:
    prompt = digits_prompt("Describe.", np.array([1.5, 20.0, -3.25]))
    assert prompt == "Describe.\n\n3 values in time order:\n1.50, 20.00, -3.25"


def test_other_models_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "vit"}')
    with pytest.raises(ValueError, match="checkpoint: expected a vision-language or language"):
        load_writer(settings(tmp_path, tmp_path / "c.jsonl"))
    with pytest.raises(ValueError, match="checkpoint: expected a folder or hub id"):
        load_writer(settings(tmp_path / "nothing", tmp_path / "c.jsonl"))
