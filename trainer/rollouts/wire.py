"""What goes to an SGLang engine that samples captions, and what comes back.

A server takes a chart as PNG: the schema of 0.5.23 admits no patches in JSON. Charts have sides of
whole patches, which its image processor does not resize, so that the engine reads the same pixels
as the trainer. An engine of this process takes the patches themselves.

Source: sglang 0.5.23, api/v1/api_types.py and srt/multimodal/processors (base, qwen_vl).
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from lineup_fast import charts
from lineup_fast.verifiers.sglang_wire import RefusedError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from trainer.policy import Captioner, Prompts

BAN = -1e9  # added to a logit: exp of it is 0 in every floating-point type


@dataclass(frozen=True)
class Drawn:
    """One caption of an engine: token ids, their log-probabilities, whether it ended by itself."""

    token_ids: list[int]
    token_logps: list[float]
    finished: bool


def sampling_options(captioner: Captioner, max_new_tokens: int) -> dict[str, Any]:
    """Temperature 1 over the whole distribution but the banned ids, and our end tokens.

    Everything that a server could have other defaults for is said.
    """
    return {
        "max_new_tokens": max_new_tokens,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "stop_token_ids": sorted(captioner.eos_ids),
        "logit_bias": {str(token): BAN for token in captioner.banned.tolist()},
        "skip_special_tokens": False,
    }


def request(
    prompts: Sequence[list[int]],
    images: Sequence[Any],
    hashes: Sequence[str] | None,
    sampling: dict[str, Any] | list[Any],
) -> dict[str, Any]:
    """Fields of one request for captions of some charts.

    hashes: see :func:`image_hash`; None where the images have theirs with them, as patches do.
    """
    named = {} if hashes is None else {"mm_hashes": [[key] for key in hashes]}
    return named | {
        "input_ids": list(prompts),
        "image_data": [[image] for image in images],
        "sampling_params": sampling,
        "return_logprob": True,
        "logprob_start_len": -1,
    }


def sampling_seed(seed: int, step: int, item: str, number: int) -> int:
    """Seed of one caption, 0 to 2^63 - 1, a pure function of its arguments."""
    words = f"{seed}/{step}/{item}/{number}"
    digest = hashlib.blake2b(words.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def image_hash(prompts: Prompts, row: int, version: str) -> str:
    """Name of a chart in the engine's table of encoded images, 15 hexadecimal digits.

    That table outlives an update of the weights: under a name of the pixels alone it would go on
    giving what the vision tower of an earlier version made of them (seen with 0.5.23).
    """
    pixels = prompts.select([row]).pixel_values.cpu().numpy().tobytes()
    key = hashlib.blake2b(pixels, key=version.encode(), digest_size=8)
    return key.hexdigest()[:15]


def png_item(prompts: Prompts, row: int, patch: int, merge: int, temporal: int) -> str:
    """A chart of the prompts as a server takes it."""
    one = prompts.select([row])
    image = unpatch(one.pixel_values, one.grid[0].tolist(), patch, merge, temporal)
    return "data:image/png;base64," + base64.b64encode(charts.png(image)).decode()


def patches_item(prompts: Prompts, row: int, key: str) -> dict[str, Any]:
    """A chart of the prompts as an engine of this process takes it; key: its `image_hash`.

    The hash goes with the patches: given beside them, it comes after 0.5.23 has marked the place of
    the image in the prompt by another.
    """
    one = prompts.select([row])
    return {
        "format": "processor_output",
        "hash": int(key, 16),
        "pixel_values": one.pixel_values.cpu(),
        "image_grid_thw": one.grid.cpu(),
    }


def prompt_ids(prompts: Prompts, row: int, image_id: int, *, expanded: bool) -> list[int]:
    """Token ids without padding; expanded: one image token per patch group, else a single one."""
    ids: list[int] = prompts.input_ids[row][prompts.mask[row]].tolist()
    if expanded:
        return ids
    return [token for at, token in enumerate(ids) if token != image_id or ids[at - 1] != image_id]


def unpatch(
    pixels: Tensor, grid: Sequence[int], patch: int, merge: int, temporal: int
) -> NDArray[np.uint8]:
    """The image u8 [H, W, 3] whose patches are float32 [h * w, 3 * temporal * patch^2], exactly.

    grid: (1, h, w), patches. The inverse of `lineup_fast.charts.patches`.
    """
    _, rows, columns = grid
    values = pixels.cpu().float().numpy()
    values = values.reshape(
        rows // merge, columns // merge, merge, merge, 3, temporal, patch, patch
    )[..., 0, :, :]
    image = values.transpose(0, 2, 5, 1, 3, 6, 4).reshape(rows * patch, columns * patch, 3)
    colours = (image * np.array(charts.STD) + np.array(charts.MEAN)) * 255.0
    return np.rint(colours).clip(0, 255).astype(np.uint8)


def read_rows(answer: Any, n: int, captioner: Captioner) -> list[Drawn]:
    """The captions of one request.

    Raises:
        RefusedError: the answer is not n captions drawn as asked, of tokens that we have.
        UnavailableError: the engine broke a caption off; another attempt may help.
    """
    rows = answer if isinstance(answer, list) else [answer]
    if len(rows) != n:
        raise RefusedError(f"expected {n} captions, got {len(rows)}")
    banned = set(captioner.banned.tolist())
    size = captioner.model.config.text_config.vocab_size
    drawn = []
    for row in rows:
        try:
            one = _read_row(row, captioner.eos_ids)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            shown = json.dumps(row, default=str)[:200]
            raise RefusedError(
                f"expected a caption with output_token_logprobs, got {shown} "
                f"({type(error).__name__}: {error})"
            ) from error
        wrong = sorted({i for i in one.token_ids if i in banned or not 0 <= i < size})
        if wrong:
            raise RefusedError(f"token ids: expected none that is banned, got {wrong}")
        drawn.append(one)
    return drawn


def _read_row(row: Any, eos_ids: frozenset[int]) -> Drawn:
    meta = row["meta_info"]
    finish = meta["finish_reason"]
    if finish["type"] == "abort":
        raise UnavailableError(f"broken off: {finish.get('message')}")
    triples = meta["output_token_logprobs"]
    ids = [int(token) for _, token, *_ in triples]
    logps = [float(logp) for logp, *_ in triples]
    ended = finish["type"] == "stop"
    if ended != (ids[-1] in eos_ids):
        raise ValueError(f"finish_reason {finish} does not go with last token {ids[-1]}")
    return Drawn(ids, logps, ended)
