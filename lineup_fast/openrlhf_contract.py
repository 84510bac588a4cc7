"""What OpenRLHF sends to a remote reward and what it takes back.

A query is the prompt and the answer decoded together, special tokens kept; for a vision-language
model the prompt in it is longer than the prompt text beside it, because image tokens are expanded.
The caption is therefore cut out by the markers of the chat template.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lineup_fast.wire import draw_index, read_object, strings

if TYPE_CHECKING:
    from lineup_fast.rewards import RewardBatch


@dataclass(frozen=True)
class Turn:
    """Markers around the assistant's turn in a chat template; the defaults are ChatML's (Qwen).

    Llama 3: "<|start_header_id|>assistant<|end_header_id|>\\n\\n" and "<|eot_id|>".
    """

    start: str = "<|im_start|>assistant\n"
    end: str = "<|im_end|>"

    def __post_init__(self) -> None:
        if not self.start or not self.end:
            raise ValueError("turn: expected a start and an end, got an empty marker")


@dataclass(frozen=True)
class RemoteRequest:
    """Captions with their items; index is None where the label has none."""

    captions: list[str]
    ids: list[str]
    index: list[int] | None


def caption_of(query: str, prompt: str, turn: Turn | None = None) -> str:
    """The caption in a query.

    It begins behind as many start markers as the prompt has, so that a marker which the policy
    wrote itself is part of its caption, and ends before the end marker. Raises: ValueError where
    the query has no start marker and does not begin with the prompt.
    """
    turn = turn or Turn()
    pieces = query.split(turn.start)
    before = prompt.count(turn.start)
    if len(pieces) > 1:
        skipped = before if 0 < before < len(pieces) else len(pieces) - 1
        answer = turn.start.join(pieces[skipped:])
    elif query.startswith(prompt):
        answer = query[len(prompt) :]
    else:
        raise ValueError(f"query: expected the marker {turn.start!r} before the caption, got none")
    return answer.split(turn.end, 1)[0].strip()


def item_of(label: str) -> tuple[str, int | None]:
    """(id, draw index or None) out of a label: {"uid": id, "index": n} as JSON, or the bare id.

    Raises: ValueError where it is JSON of another form.
    """
    if not label.lstrip().startswith("{"):
        return label, None
    try:
        value: dict[str, Any] = read_object(label.encode("utf-8", "surrogatepass"))
    except ValueError as error:
        raise ValueError(f"labels: {error}") from None
    if not isinstance(value.get("uid"), str):
        raise ValueError(f"labels: expected an object with the string uid, got {label!r:.80}")
    index = value.get("index")
    return value["uid"], None if index is None else draw_index(index)


def parse_remote(body: bytes, turn: Turn | None = None) -> RemoteRequest:
    """The body of POST /get_reward; the lists may be empty, as they are for a spare endpoint."""
    value = read_object(body)
    queries = strings(value, "query")
    prompts = strings(value, "prompts", len(queries))
    labels = strings(value, "labels", len(queries))
    items = [item_of(label) for label in labels]
    given = [index for _, index in items if index is not None]
    if given and len(given) < len(items):
        raise ValueError("labels: expected an index in all of them or in none")
    captions = [caption_of(*pair, turn) for pair in zip(queries, prompts, strict=True)]
    return RemoteRequest(captions, [item for item, _ in items], given or None)


def remote_reply(batch: RewardBatch | None) -> dict[str, Any]:
    """What OpenRLHF reads: plain numbers for one caption, lists for several.

    A caption without an answer has null rewards and lineup_failed 1. extra_logs hold numbers only,
    because OpenRLHF makes tensors of them; lineup_acc is then left out.
    """
    if batch is None:
        return {"rewards": [], "scores": [], "extra_logs": {}}
    rewards = [float(x) if ok else None for x, ok in zip(batch.reward, batch.valid, strict=True)]
    accuracy = [float(x) if ok else None for x, ok in zip(batch.accuracy, batch.valid, strict=True)]
    logs: dict[str, Any] = {"lineup_failed": [int(not ok) for ok in batch.valid]}
    if batch.valid.all():
        logs["lineup_acc"] = accuracy
    if None not in batch.index:
        logs["lineup_index"] = batch.index
    reply: dict[str, Any] = {"rewards": rewards, "scores": accuracy, "extra_logs": logs}
    if len(rewards) == 1:
        reply = {"rewards": rewards[0], "scores": accuracy[0],
                 "extra_logs": {name: values[0] for name, values in logs.items()}}  # fmt: skip
    return {**reply, "reason": batch.reason}


def label_of(item: str, index: int | None = None) -> str:
    """The label that :func:`item_of` reads back."""
    return json.dumps({"uid": item} if index is None else {"uid": item, "index": index})
