"""Verifier on vLLM servers: what SGLang's does, in their words."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from lineup_fast.verifiers.replicas import HttpReplica
from lineup_fast.verifiers.sglang import SGLangVerifier
from lineup_fast.verifiers.sglang_wire import RefusedError, Reply

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lineup_fast.verifiers.sglang_wire import PromptWriter

NO_NUMBER = -9999.0  # what vLLM writes for a log-probability that is none


class VLLMReplica(HttpReplica):
    """A vLLM server at ``url``: one prompt a request, as of several it would tell what was cached
    of the last one alone."""

    async def generate(
        self, writer: PromptWriter, nodes: Sequence[int], options: dict[str, Any]
    ) -> list[Reply]:
        """See :class:`Replica`."""
        bodies = [completion_body(writer.json(node), options) for node in nodes]
        calls = [self._call("POST", "v1/completions", body) for body in bodies]
        # All of them end before one that failed is told of: who asks may ask each again.
        answers = await asyncio.gather(*calls, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return [read_reply(answer, options) for answer in answers]

    async def info(self, what: str) -> dict[str, Any]:
        """See :class:`Replica`; of the server itself vLLM tells its context alone."""
        answer = await super().info("v1/models")
        model = answer["data"][0]
        if what == "server_info":
            return {"max_req_input_len": model["max_model_len"]}
        return {"model_path": model["root"], "served_model_name": model["id"]}

    async def command(self, name: str, **options: Any) -> None:
        """See :class:`Replica`; flush_cache needs VLLM_SERVER_DEV_MODE=1 there."""
        if name != "flush_cache":
            raise RefusedError(f"{self.name}: {name} is not something that vLLM is asked for here")
        await super().command("reset_prefix_cache", **options)


class VLLMVerifier(SGLangVerifier):
    """:class:`SGLangVerifier` with ``urls`` of vLLM servers (0.32 or newer, prefix caching on).

    Start them with --enable-prompt-tokens-details: without it they do not tell what was cached, and
    every token counts as computed. sleep, wake and update_weights are refused.
    """

    _replica = VLLMReplica


def completion_body(prompt: str, options: dict[str, Any]) -> bytes:
    """Body of POST /v1/completions: vLLM's words for ``label_options`` and ``reply_options``.

    prompt: a JSON list of ids. logprob_token_ids are listed beside the token that was made;
    allowed_token_ids would not do, as it leaves the list to the most likely ones.
    """
    asked = options["sampling_params"]
    labels = options.get("token_ids_logprob", [])
    words = {
        "max_tokens": asked["max_new_tokens"],
        "temperature": asked["temperature"],
        "logprobs": len(labels),
        "return_tokens_as_token_ids": True,
    }
    if labels:
        words["logprob_token_ids"] = labels
    return f'{{"prompt": {prompt}, {json.dumps(words)[1:]}'.encode()


def read_reply(answer: Any, options: dict[str, Any]) -> Reply:
    """One reply. Raises: RefusedError on anything else than a reply to what was asked."""
    try:
        usage, made = answer["usage"], answer["choices"][0]["logprobs"]
        first = {_id(name): value for name, value in made["top_logprobs"][0].items()}
        found = {token: first[token] for token in options.get("token_ids_logprob", ())}
        return Reply(
            tokens=int(usage["prompt_tokens"]),
            cached=int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0),
            logprobs={i: x if x > NO_NUMBER else float("nan") for i, x in found.items()},
            output_ids=[_id(name) for name in made["tokens"]],
        )
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        shown = json.dumps(answer, default=str)[:200]
        raise RefusedError(
            f"expected a reply of vLLM, got {shown} ({type(error).__name__}: {error})"
        ) from error


def _id(name: str) -> int:
    """The id in "token_id:207"."""
    return int(name.removeprefix("token_id:"))
