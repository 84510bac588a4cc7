"""What goes to a vLLM server and what comes back, by replies that vLLM 0.32.0 itself has given.

The server itself runs under make test-vllm.
"""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any

import numpy as np
import pytest

from lineup_fast.verifiers.prefix_plan import Forest
from lineup_fast.verifiers.sglang_wire import (
    PromptWriter,
    RefusedError,
    Reply,
    label_options,
    reply_options,
)
from lineup_fast.verifiers.vllm import VLLMReplica, completion_body, read_reply

# Trimmed of what nobody reads.
LABELS: dict[str, Any] = {
    "choices": [
        {
            "index": 0,
            "text": "",
            "logprobs": {
                "text_offset": [0],
                "token_logprobs": [-2.445404052734375],
                "tokens": ["token_id:207"],
                "top_logprobs": [
                    {
                        "token_id:207": -2.445404052734375,
                        "token_id:5": -6.607879638671875,
                        "token_id:6": -7.4051666259765625,
                    }
                ],
            },
            "finish_reason": "length",
        }
    ],
    "usage": {
        "prompt_tokens": 67,
        "total_tokens": 68,
        "completion_tokens": 1,
        "prompt_tokens_details": {"cached_tokens": 64},
    },
}
MODELS = {"data": [{"id": "name", "root": "/models/folder", "max_model_len": 2048}]}


def test_bodies_say_what_is_asked_in_vllms_words() -> None:
    assert json.loads(completion_body("[1, 2]", label_options([5, 6]))) == {
        "prompt": [1, 2],
        "max_tokens": 1,
        "temperature": 0.0,
        "logprobs": 2,
        "logprob_token_ids": [5, 6],
        "return_tokens_as_token_ids": True,
    }
    assert json.loads(completion_body("[1]", reply_options(8))) == {
        "prompt": [1],
        "max_tokens": 8,
        "temperature": 0.0,
        "logprobs": 0,
        "return_tokens_as_token_ids": True,
    }


def test_a_reply_is_read() -> None:
    reply = read_reply(LABELS, label_options([5, 6]))
    assert reply == Reply(67, 64, {5: -6.607879638671875, 6: -7.4051666259765625}, [207])
    silent = LABELS | {"usage": {"prompt_tokens": 67, "prompt_tokens_details": None}}
    assert read_reply(silent, label_options([6])).cached == 0


def test_a_log_probability_that_is_none_is_not_a_number() -> None:
    text = json.dumps(LABELS).replace("-7.4051666259765625", "-9999.0")
    reply = read_reply(json.loads(text), label_options([5, 6]))
    assert math.isnan(reply.logprobs[6])
    assert reply.logprobs[5] == -6.607879638671875


@pytest.mark.parametrize(
    "answer",
    [
        "up",
        {},
        {"usage": {"prompt_tokens": 3}, "choices": []},
        {"usage": {"prompt_tokens": 3}, "choices": [{"logprobs": None}]},
        LABELS | {"usage": None},
    ],
)
def test_anything_else_is_refused(answer: Any) -> None:
    with pytest.raises(RefusedError, match="expected a reply of vLLM, got"):
        read_reply(answer, label_options([5]))
    with pytest.raises(RefusedError, match="KeyError: 7"):
        read_reply(LABELS, label_options([5, 7]))


def test_prompts_go_one_by_one_and_none_is_left_under_way(monkeypatch: Any) -> None:
    replica, asked, ended = VLLMReplica("http://127.0.0.1:1/"), [], []

    async def call(method: str, path: str, body: bytes) -> Any:
        ids = json.loads(body)["prompt"]
        asked.append((method, path, ids))
        await asyncio.sleep(0 if ids == [1] else 0.05)
        ended.append(ids)
        if ids == [1]:
            raise RefusedError("no such id")
        return LABELS

    monkeypatch.setattr(replica, "_call", call)
    nodes = [np.array(ids, dtype=np.int32) for ids in ([1], [2, 3], [4])]
    writer = PromptWriter(Forest(nodes, [-1] * 3, [0] * 3, [0] * 3, []))
    with pytest.raises(RefusedError, match="no such id"):
        asyncio.run(replica.generate(writer, [0, 1, 2], label_options([5])))
    assert asked == [("POST", "v1/completions", ids) for ids in ([1], [2, 3], [4])]
    assert sorted(ended) == [[1], [2, 3], [4]]
    replies = asyncio.run(replica.generate(writer, [1, 2], label_options([5])))
    assert [reply.cached for reply in replies] == [64, 64]


def test_what_the_server_says_of_itself_and_what_it_is_told(monkeypatch: Any) -> None:
    replica, asked = VLLMReplica("http://127.0.0.1:1"), []

    async def call(method: str, path: str, body: bytes | None = None) -> Any:
        asked.append((method, path))
        return MODELS

    monkeypatch.setattr(replica, "_call", call)
    about = asyncio.run(replica.info("model_info"))
    assert about == {"model_path": "/models/folder", "served_model_name": "name"}
    assert asyncio.run(replica.info("server_info")) == {"max_req_input_len": 2048}
    asyncio.run(replica.command("flush_cache"))
    assert asked[-1] == ("POST", "reset_prefix_cache")
    with pytest.raises(RefusedError, match="update_weights_from_disk"):
        asyncio.run(replica.command("update_weights_from_disk", model_path="x"))
