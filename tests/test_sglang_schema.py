"""Requests to SGLang and its replies, against SGLang's own schema file. No server is involved."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from lineup_fast.verifiers.sglang_wire import (
    RefusedError,
    UnavailableError,
    generate_body,
    label_options,
    read_replies,
    reply_options,
)
from tests.sglang_schema import schema

OPTIONS = [label_options([5, 7]), reply_options(8)]


@pytest.mark.parametrize("options", OPTIONS)
def test_schema_bodies_hold_known_keys_of_the_right_types(options: dict[str, Any]) -> None:
    body = json.loads(generate_body(["[1,2]", "[3]"], options))
    parsed = schema().GenerateRequest.from_json_value(body)
    assert set(body) <= set(schema().GenerateRequest.__struct_fields__)
    sampling = schema().SamplingParams.from_json_value(body["sampling_params"])
    assert set(body["sampling_params"]) <= set(schema().SamplingParams.__struct_fields__)
    assert body["input_ids"] == [[1, 2], [3]]
    assert sampling.temperature == 0.0
    assert parsed.return_logprob == options.get("return_logprob")


def test_schema_labels_are_asked_for_without_touching_the_prompt() -> None:
    parsed = schema().GenerateRequest.from_json_value(
        json.loads(generate_body(["[1]"], label_options([5, 7])))
    )
    assert parsed.return_logprob
    assert parsed.logprob_start_len == -1
    assert schema().encode_GenerateRequest(parsed)["token_ids_logprob"] == [5, 7]
    assert schema().encode_GenerateRequest(parsed)["sampling_params"]["max_new_tokens"] == 1


def test_schema_tells_a_misspelt_key_and_a_wrong_type() -> None:
    # What makes the checks above worth their while: they can fail.
    body = json.loads(generate_body(["[1]"], label_options([5])))
    assert "token_ids_logprobs" not in schema().GenerateRequest.__struct_fields__
    with pytest.raises(schema().JsonContractError):
        schema().GenerateRequest.from_json_value(body | {"logprob_start_len": "-1"})
    with pytest.raises(schema().JsonContractError):
        schema().SamplingParams.from_json_value({"max_tokens": 1})


def _reply(**changes: Any) -> dict[str, Any]:
    meta = {
        "finish_reason": {"type": "length", "length": 1},
        "prompt_tokens": 9,
        "cached_tokens": 4,
        "output_token_ids_logprobs": [[[-1.5, 7, None], [None, 5, None]]],
    }
    return {"text": "", "output_ids": [3], "meta_info": meta | changes}


def test_schema_replies_are_read() -> None:
    row = _reply()
    schema().GenerateResponse.from_json_value(row)
    (reply,) = read_replies([row], 1, OPTIONS[0])
    assert (reply.tokens, reply.cached, reply.output_ids) == (9, 4, [3])
    assert reply.logprobs[7] == -1.5
    assert np.isnan(reply.logprobs[5])
    (bare,) = read_replies(row, 1, OPTIONS[0])  # one prompt, not in a list
    assert bare.tokens == 9


@pytest.mark.parametrize(
    "answer",
    [
        [],
        [_reply(), _reply()],
        ["text"],
        [{"text": "no meta_info"}],
        [_reply(cached_tokens=None)],
        [_reply(output_token_ids_logprobs=[[["x"]]])],
        [_reply(output_token_ids_logprobs=[])],
        [_reply(output_token_ids_logprobs=[[[-1.0, 5, None]]])],
        {"choices": []},
    ],
)
def test_schema_anything_else_is_refused(answer: Any) -> None:
    with pytest.raises(RefusedError, match="expected"):
        read_replies(answer, 1, OPTIONS[0])


def test_schema_a_prompt_broken_off_may_be_asked_again() -> None:
    row = _reply(finish_reason={"type": "abort", "message": "overloaded"})
    schema().GenerateResponse.from_json_value(row)
    with pytest.raises(UnavailableError, match="overloaded"):
        read_replies([row], 1, OPTIONS[0])
