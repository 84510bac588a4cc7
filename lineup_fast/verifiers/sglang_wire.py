"""What goes to an SGLang server and what comes back: request bodies and replies.

SGLang ignores keys that it does not know, so a misspelt one would pass in silence: bodies are made
here and nowhere else, of the keys below, which the tests hold against the server's own schema.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lineup_fast.verifiers.prefix_plan import Forest


class RefusedError(Exception):
    """The engine says no to this request, and would again. splits: one prompt may be at fault."""

    def __init__(self, message: str, *, splits: bool = False) -> None:
        super().__init__(message)
        self.splits = splits


class UnavailableError(Exception):
    """No answer this time; another attempt may get one. after_s: not before so many seconds."""

    def __init__(self, message: str, after_s: float = 0.0) -> None:
        super().__init__(message)
        self.after_s = after_s


@dataclass(frozen=True)
class Reply:
    """The engine's answer to one prompt.

    tokens of the prompt and how many of them were cached; logprobs: of each id asked for, at the
    first new position, NaN where the engine had none; output_ids: new tokens.
    """

    tokens: int
    cached: int
    logprobs: dict[int, float]
    output_ids: list[int]


class PromptWriter:
    """Prompts of a forest as JSON and as lists of ids; equal nodes are written once."""

    def __init__(self, forest: Forest) -> None:
        self._forest = forest
        written: dict[bytes, str] = {}
        self._texts = []
        for ids in forest.ids:
            key = ids.tobytes()
            if key not in written:
                written[key] = str(ids.tolist())[1:-1]
            self._texts.append(written[key])

    def json(self, node: int) -> str:
        """The ids of the prompt that ends at ``node``, as a JSON list."""
        return f"[{', '.join(self._texts[part] for part in self._forest.path(node))}]"

    def ids(self, node: int) -> list[int]:
        """The ids of the prompt that ends at ``node``."""
        return [
            token for part in self._forest.path(node) for token in self._forest.ids[part].tolist()
        ]


def label_options(label_ids: Sequence[int]) -> dict[str, Any]:
    """Ask for the log-probabilities of ids at the answer position.

    One token is made and thrown away. logprob_start_len stays -1: anything else asks for
    log-probabilities inside the prompt, which an engine can only give for what it computes anew.
    """
    return {
        "sampling_params": {"max_new_tokens": 1, "temperature": 0.0},
        "return_logprob": True,
        "logprob_start_len": -1,
        "token_ids_logprob": list(label_ids),
    }


def reply_options(max_new_tokens: int) -> dict[str, Any]:
    """Ask for a greedy reply."""
    return {"sampling_params": {"max_new_tokens": max_new_tokens, "temperature": 0.0}}


def generate_body(prompts: Sequence[str], options: dict[str, Any]) -> bytes:
    """Body of POST /generate. Args: prompts, each a JSON list of ids."""
    return f'{{"input_ids":[{",".join(prompts)}],{json.dumps(options)[1:]}'.encode()


def read_replies(answer: Any, n_prompts: int, options: dict[str, Any]) -> list[Reply]:
    """The replies of one request with these options. Raises: RefusedError on anything that is not
    n_prompts replies to what was asked, UnavailableError when the engine broke a prompt off."""
    rows = answer if isinstance(answer, list) else [answer]
    if len(rows) != n_prompts:
        raise RefusedError(f"expected {n_prompts} replies, got {len(rows)}")
    wanted = set(options.get("token_ids_logprob", ()))
    try:
        replies = [_read_reply(row) for row in rows]
        if not all(wanted <= reply.logprobs.keys() for reply in replies):
            raise KeyError("output_token_ids_logprobs")  # asked for and not given
    except (KeyError, IndexError, TypeError, ValueError) as error:
        shown = json.dumps(rows[0], default=str)[:200]
        raise RefusedError(
            f"expected a reply of SGLang with meta_info, got {shown} "
            f"({type(error).__name__}: {error})"
        ) from error
    return replies


def _read_reply(row: Any) -> Reply:
    meta = row["meta_info"]
    finish = meta.get("finish_reason") or {}
    if finish.get("type") == "abort":
        raise UnavailableError(f"broken off: {finish.get('message')}")
    positions = meta.get("output_token_ids_logprobs")
    logprobs = {
        int(token): float("nan") if value is None else float(value)
        for value, token, *_ in (positions[0] if positions else ())
    }
    return Reply(
        tokens=int(meta["prompt_tokens"]),
        cached=int(meta["cached_tokens"]),
        logprobs=logprobs,
        output_ids=[int(token) for token in row.get("output_ids") or ()],
    )
