"""The JSON of the reward server, both ways: typed, strict, without a word lost.

Used by the server and by the client; needs numpy alone.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lineup_fast.rewards import RewardBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

MAX_INDEX = 2**63 - 1
MAX_REQUEST_ID = 200  # characters
LOWEST = float(np.finfo(np.float32).min)  # stands for -inf, which JSON does not have


@dataclass(frozen=True)
class ScoreRequest:
    """Captions to be scored, each with the id of its item.

    index: the draw of each, None for all of them where the server counts or the fixed sets are
    asked (fixed). request_ids: one per caption, the same again in a retry.
    """

    captions: list[str]
    ids: list[str]
    index: list[int] | None = None
    fixed: bool = False
    request_ids: list[str] | None = None


def read_object(body: bytes) -> dict[str, Any]:
    """The JSON object of a body; raises ValueError on anything else, NaN and deep nesting too."""
    try:
        value = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"body: expected a JSON object, got {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"body: expected a JSON object, got {_kind(value)}")
    return value


def parse_score(body: bytes) -> ScoreRequest:
    """The body of POST /score; raises ValueError that names the field."""
    value = read_object(body)
    known = ("captions", "ids", "index", "fixed", "request_ids")
    for name in value:
        if name not in known:
            raise ValueError(f"{name:.80}: expected one of {', '.join(known)}")
    captions = strings(value, "captions")
    n = len(captions)
    if not n:
        raise ValueError("captions: expected at least one, got none")
    ids = strings(value, "ids", n)
    fixed = value.get("fixed", False)
    if not isinstance(fixed, bool):
        raise ValueError(f"fixed: expected true or false, got {_kind(fixed)}")
    index = value.get("index")
    if fixed and index is not None:
        raise ValueError("index: expected null with fixed, which has no draw")
    request_ids = None
    if value.get("request_ids") is not None:
        request_ids = strings(value, "request_ids", n)
        if any(not 0 < len(text) <= MAX_REQUEST_ID for text in request_ids):
            raise ValueError(f"request_ids: expected 1 to {MAX_REQUEST_ID} characters each")
    return ScoreRequest(captions, ids, _indices(index, n), fixed, request_ids)


def strings(value: dict[str, Any], name: str, n: int | None = None) -> list[str]:
    """A list of strings, of n where given."""
    texts = value.get(name)
    if not isinstance(texts, list):
        raise ValueError(f"{name}: expected a list of strings, got {_kind(texts)}")
    for at, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"{name}: expected strings, got {_kind(text)} at {at}")
    if n is not None and len(texts) != n:
        raise ValueError(f"{name}: expected one per caption ({n}), got {len(texts)}")
    return texts


def draw_index(value: Any) -> int:
    """A draw index, as JSON has it."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"index: expected an integer, got {_kind(value)}")
    if not 0 <= value <= MAX_INDEX:
        raise ValueError(f"index: expected 0 to {MAX_INDEX}, got {value}")
    return value


def score_body(request: ScoreRequest) -> bytes:
    """The body of POST /score."""
    value: dict[str, Any] = {"captions": request.captions, "ids": request.ids}
    if request.index is not None:
        value["index"] = request.index
    if request.fixed:
        value["fixed"] = True
    if request.request_ids is not None:
        value["request_ids"] = request.request_ids
    return json.dumps(value).encode()


def reply(batch: RewardBatch) -> dict[str, Any]:
    """The reply of POST /score: null where there is no number, never a 0 in its place."""
    return {
        "reward": _numbers(batch.reward),
        "accuracy": _numbers(batch.accuracy),
        "valid": batch.valid.tolist(),
        "reason": batch.reason,
        "picks": batch.picks.tolist(),
        "asked": batch.asked.tolist(),
        "label_mass": _numbers(batch.label_mass),
        "label_logprobs": _numbers(batch.label_logprobs),
        "index": batch.index,
        "recipe": batch.recipe,
        "fingerprints": batch.fingerprints,
        "counts": batch.counts,
        "timings": batch.timings,
    }


def read_reply(body: bytes, n: int) -> RewardBatch:
    """The rewards of n captions out of a reply; raises ValueError where it is none."""
    value = read_object(body)
    try:
        k = len(value["picks"][0])
        batch = RewardBatch(
            reward=_floats(value["reward"], n),
            accuracy=_floats(value["accuracy"], n),
            picks=_array(value["picks"], _is_pick, n, k).astype(np.int32),
            label_logprobs=_floats(value["label_logprobs"], n, k, k),
            label_mass=_floats(value["label_mass"], n, k),
            valid=_array(value["valid"], _is_flag, n).astype(bool),
            reason=_array(value["reason"], _is_text, n).tolist(),
            timings={name: float(seconds) for name, seconds in value["timings"].items()},
            counts={name: int(count) for name, count in value["counts"].items()},
            recipe=str(value["recipe"]),
            fingerprints={name: str(text) for name, text in value["fingerprints"].items()},
            asked=_array(value["asked"], _is_flag, n, k).astype(bool),
            index=_array(value["index"], _is_draw, n).tolist(),
        )
    except (LookupError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"reply: expected that of POST /score, got {error!r:.200}") from None
    valid = batch.valid
    if not np.isfinite(batch.reward[valid]).all() or not np.isfinite(batch.accuracy[valid]).all():
        raise ValueError("reply: expected a reward for every valid caption")
    batch.reward[~valid] = np.nan
    batch.accuracy[~valid] = np.nan
    return batch


def _indices(index: Any, n: int) -> list[int] | None:
    if index is None:
        return None
    if not isinstance(index, list):
        return [draw_index(index)] * n
    if len(index) != n:
        raise ValueError(f"index: expected one per caption ({n}), got {len(index)}")
    return [draw_index(number) for number in index]


def _numbers(values: npt.NDArray[np.float32]) -> Any:
    """Nested lists with None for NaN."""
    boxed = np.maximum(values, LOWEST).astype(object)
    boxed[np.isnan(values)] = None
    return boxed.tolist()


def _floats(values: Any, *shape: int) -> npt.NDArray[np.float32]:
    """float32 of nested lists; None becomes NaN."""
    return _array(values, _is_number, *shape).astype(np.float32)


def _array(values: Any, good: Callable[[Any], bool], *shape: int) -> npt.NDArray[np.object_]:
    """Nested lists of a shape, every entry of them good."""
    array = np.empty(shape, dtype=object)
    array[...] = values
    wrong = [entry for entry in array.ravel() if not good(entry)]
    if wrong or np.shape(values) != shape:
        raise TypeError(f"{wrong[:1] or np.shape(values)}")
    return array


def _is_number(value: Any) -> bool:
    return value is None or (type(value) in (int, float) and math.isfinite(value))


def _is_pick(value: Any) -> bool:
    return type(value) is int and -1 <= value < 1000


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_text(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _is_draw(value: Any) -> bool:
    return value is None or draw_index(value) >= 0


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name}, which JSON does not have")


def _kind(value: Any) -> str:
    """What a JSON value is, in words."""
    if value is None:
        return "null"
    kinds: Sequence[tuple[type, str]] = (
        (bool, "true or false"),
        (str, "a string"),
        (int, "an integer"),
        (float, "a number"),
        (list, "a list"),
        (dict, "an object"),
    )
    return next(name for kind, name in kinds if isinstance(value, kind))
