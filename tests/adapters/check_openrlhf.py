"""OpenRLHF's single-turn executor on the adapter's file and on the server's own contract."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import ROOT, direct
from openrlhf.datasets.prompts_dataset import preprocess_data
from openrlhf.utils.agent import SingleTurnAgentExecutor
from openrlhf.utils.vlm_utils import load_images
from transformers import AutoTokenizer

import lineup_fast.adapters

FILE = Path(lineup_fast.adapters.__file__).parent / "openrlhf.py"


class Engine:
    """Answers every prompt with one caption."""

    def __init__(self, ids: list[int]) -> None:
        self.ids = ids

    async def generate(self, *_: Any, **__: Any) -> Any:
        output = SimpleNamespace(token_ids=self.ids, finish_reason="stop", logprobs=None, text="")
        return SimpleNamespace(outputs=[output])


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(ROOT / "trainer/tiny/captioner")


@pytest.fixture(scope="module")
def row(rows: Path) -> dict[str, Any]:
    with (rows / "openrlhf" / "train.jsonl").open(encoding="utf-8") as lines:
        found: dict[str, Any] = json.loads(next(lines))
    return found


def _run(endpoint: str, tokenizer: Any, row: dict[str, Any], caption: str) -> dict[str, Any]:
    prompt, label = preprocess_data(
        row, input_key="input", label_key="label", apply_chat_template=tokenizer.apply_chat_template
    )
    # What the processor makes of the image: the query is longer than the prompt text.
    expanded = prompt.replace("<|image_pad|>", "<|image_pad|>" * 40)
    assert expanded != prompt
    ids = tokenizer(caption, add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id]

    def tokenize(text: str, **_: Any) -> Any:
        assert text == prompt
        return tokenizer(expanded, add_special_tokens=False, return_tensors="pt")

    host = SimpleNamespace(decode=tokenizer.decode)
    executor = SingleTurnAgentExecutor([endpoint])
    params = SimpleNamespace(max_tokens=48, logprobs=None)

    class Tokenizer:
        decode = staticmethod(host.decode)

        def __call__(self, text: str, **words: Any) -> Any:
            return tokenize(text, **words)

    found: dict[str, Any] = asyncio.run(
        executor.execute(prompt, label, params, 512, Tokenizer(), Engine(ids))
    )
    return found


def test_row_holds_an_image_that_it_opens(row: dict[str, Any]) -> None:
    (image,) = load_images(row["images"])
    assert image.size[0] > 100


def test_python_function(
    server: str,
    tokenizer: Any,
    row: dict[str, Any],
    truths: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LINEUP_URL", server)
    uid = json.loads(row["label"])["uid"]
    found = _run(str(FILE), tokenizer, row, truths[uid])
    allowed = {float(direct(server, [truths[uid]], [uid], index).reward[0]) for index in range(3)}
    assert found["reward"] in allowed
    assert found["scores"] == found["reward"] / 2
    assert found["extra_logs"] == {"lineup_acc": found["scores"], "lineup_failed": 0.0}


def test_server_contract(
    server: str, tokenizer: Any, row: dict[str, Any], truths: dict[str, str]
) -> None:
    uid = json.loads(row["label"])["uid"]
    found = _run(f"{server}/get_reward", tokenizer, row, truths[uid])
    allowed = {float(direct(server, [truths[uid]], [uid], index).reward[0]) for index in range(4)}
    assert found["reward"] in allowed
    assert found["extra_logs"]["lineup_failed"] == 0


def test_a_failure_is_marked_and_not_zero(
    tokenizer: Any, row: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from lineup_fast.adapters import openrlhf
    from lineup_fast.client import RewardClient

    monkeypatch.setenv("LINEUP_URL", "http://127.0.0.1:9")
    gone = RewardClient("http://127.0.0.1:9", deadline_s=1.0)
    monkeypatch.setattr(openrlhf, "_client", lambda _: gone)
    query = "<|im_start|>assistant\nrises<|im_end|>"
    found = openrlhf.reward_func([query], [""], [row["label"]])
    assert found["rewards"] == openrlhf.GUESS
    assert found["extra_logs"] == {"lineup_acc": -1.0, "lineup_failed": 1.0}
