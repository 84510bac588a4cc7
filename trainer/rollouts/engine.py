"""Captions sampled by SGLang: a server or several, or an engine of this process.

One request holds one chart, once, and asks for all G captions of it (`n`): the engine encodes the
chart and its prompt once, and the captions draw from the engine's own stream of random numbers. A
server with --enable-deterministic-inference gives every caption the stream of its `sampling_seed`,
and all `n` of a request the same one: there, G prompts with seeds of their own follow one that
fills the prefix cache, and captions are a function of (seed, step, series, rollout).
"""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import as_completed
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from lineup_fast.verifiers.base import BackendError
from lineup_fast.verifiers.sglang_model import SGLangModel
from lineup_fast.verifiers.sglang_wire import UnavailableError
from trainer import lora
from trainer.rollouts import wire
from trainer.rollouts.sampling import Part
from trainer.rollouts.wire import Drawn

if TYPE_CHECKING:
    from lineup_fast.verifiers.fleet import Fleet
    from lineup_fast.verifiers.replicas import Replica
    from trainer.policy import Captioner, Prompts

_NAMES = {"model.language_model.": "model.", "model.visual.": "visual.", "lm_head.": "lm_head."}
_CALL_BYTES = 2**30  # of weights handed to an engine at once


class SGLangSampler(SGLangModel):
    """Captions from SGLang, at temperature 1 from the whole distribution; see `Sampler`.

    captioner: whose weights the engine is given, at once and after every update. folder: where
    weights are written for servers, which must see it; one version, none after `close`.
    charts_at_once: charts in one call of an engine of this process (servers are sent one per
    request). urls, engine and the other options: see :class:`SGLangModel`.
    """

    off_policy = True

    def __init__(
        self,
        captioner: Captioner,
        urls: str | Sequence[str] | None = None,
        *,
        engine: Any = None,
        folder: Path,
        group_size: int,
        max_new_tokens: int,
        seed: int,
        charts_at_once: int = 1,
        **options: Any,
    ) -> None:
        super().__init__(urls, engine=engine, **options)
        self._captioner, self._folder = captioner, folder
        self._group_size, self._seed = group_size, seed
        self._sampling = wire.sampling_options(captioner, max_new_tokens)
        self._engine_here = engine is not None
        self._at_once = charts_at_once if self._engine_here else 1
        self._run, self._version = uuid.uuid4().hex[:8], 0
        try:
            self._read_infos()
            self.seeded = bool(self._server.get("enable_deterministic_inference"))
            self.push(captioner)
        except BaseException:
            self.close()
            raise

    # ------------------------------------------------------------------------------ captions

    def sample(self, prompts: Prompts, ids: Sequence[str], step: int) -> Iterator[Part]:
        """G captions of every chart, in the order in which charts are finished.

        Raises:
            BackendError: the engine gives no captions, or others than were asked for.
        """
        self.wake()
        calls = {}
        for start in range(0, len(ids), self._at_once):
            rows = list(range(start, min(start + self._at_once, len(ids))))
            requests = self._requests(prompts, rows, ids, step)
            draw = partial(self._draw, requests=requests, n=len(rows) * self._group_size)
            calls[self._fleet.submit(draw)] = rows
        try:
            for call in as_completed(calls):
                yield self._part(calls[call], call.result())
        finally:
            for call in calls:
                call.cancel()

    def _requests(
        self, prompts: Prompts, rows: list[int], ids: Sequence[str], step: int
    ) -> list[dict[str, Any]]:
        """Requests to be made one after the other; the last one brings the captions."""
        config = self._captioner.model.config
        vision = config.vision_config
        texts: list[list[int]] = []
        images: list[Any] = []
        keys = [wire.image_hash(prompts, row, self._weights().name) for row in rows]
        for row, key in zip(rows, keys, strict=True):
            texts.append(
                wire.prompt_ids(prompts, row, config.image_token_id, expanded=self._engine_here)
            )
            if self._engine_here:
                images.append(wire.patches_item(prompts, row, key))
            else:
                sizes = (vision.patch_size, vision.spatial_merge_size, vision.temporal_patch_size)
                images.append(wire.png_item(prompts, row, *sizes))
        size = self._group_size
        hashes = None if self._engine_here else keys
        if not self.seeded:
            return [wire.request(texts, images, hashes, self._sampling | {"n": size})]
        first = wire.request(texts, images, hashes, self._sampling | {"max_new_tokens": 0})
        seeded = [
            self._sampling
            | {"sampling_seed": wire.sampling_seed(self._seed, step, ids[row], number)}
            for row in rows
            for number in range(size)
        ]
        texts = [text for text in texts for _ in range(size)]
        images = [image for image in images for _ in range(size)]
        hashes = hashes and [key for key in hashes for _ in range(size)]
        return [first, wire.request(texts, images, hashes, seeded)]

    async def _draw(self, fleet: Fleet, requests: list[dict[str, Any]], n: int) -> list[Drawn]:
        async def attempt() -> list[Drawn]:
            async with fleet.place(n) as replica:
                return await self._ask(replica, requests, n)

        async with fleet.call():
            return await self._answered(fleet.retried(attempt))

    async def _ask(self, replica: Replica, requests: list[dict[str, Any]], n: int) -> list[Drawn]:
        try:
            for fields in requests[:-1]:
                await replica.rows(**fields)
            answer = await replica.rows(**requests[-1])
            return wire.read_rows(answer, n, self._captioner)
        except UnavailableError:
            replica.failed_at = time.monotonic()
            raise

    def _part(self, rows: list[int], drawn: list[Drawn]) -> Part:
        device = self._captioner.device
        token_ids = [torch.tensor(one.token_ids, device=device) for one in drawn]
        logps = [torch.tensor(one.token_logps, device=device) for one in drawn]
        return Part(
            rows=rows,
            token_ids=token_ids,
            token_logps=logps,
            texts=self._captioner.texts(token_ids),
            finished=[one.finished for one in drawn],
            entropy=-float(torch.cat(logps).mean()),  # an unbiased estimate of it
        )

    # ------------------------------------------------------------------------ memory, weights

    def close(self) -> None:
        """Lets go of connections and of the weights on disk; the engine keeps those it has."""
        super().close()
        shutil.rmtree(self._weights(), ignore_errors=True)

    def push(self, captioner: Captioner) -> None:
        """Gives the engine the captioner's weights: now, or when it wakes.

        Raises:
            BackendError: the engine refuses them, or answers with another version of them.
        """
        self._captioner = captioner
        self._version += 1
        if not self._engine_here:
            write_weights(captioner, self._weights())
            old = [path for path in self._folder.glob("weights-*") if path != self._weights()]
        if not self.asleep:
            self._load()
        if not self._engine_here:
            for path in old:
                shutil.rmtree(path)

    def wake(self, *tags: str) -> None:
        """Takes the memory again, in the order weights, their newest values, everything else."""
        if not self.asleep:
            return
        super().wake("weights")
        self._load()
        super().wake("kv_cache", "cuda_graph")

    def sleep(self) -> None:
        """Gives the engine's memory back until :meth:`wake`."""
        if not self.asleep:
            super().sleep()

    def _weights(self) -> Path:
        return self._folder / f"weights-{self._run}-{self._version}"

    def _load(self) -> None:
        if self._engine_here:
            self._command("begin_weight_update")
            for chunk, last in _chunks(engine_weights(self._captioner)):
                self._command("update_weights_from_tensor", named_tensors=chunk, flush_cache=last)
            self._command("end_weight_update")
            return
        folder = self._weights().resolve()
        self._command(
            "update_weights_from_disk",
            model_path=str(folder),
            weight_version=folder.name,
            flush_cache=True,
        )
        self._read_infos()
        version = self._model.get("weight_version")
        if version != folder.name:
            raise BackendError(f"weight version: expected {folder.name}, got {version}")


def engine_weights(captioner: Captioner) -> Iterator[tuple[str, Tensor]]:
    """The weights under the names that SGLang loads them by, which are those of checkpoints.

    SGLang passes over names that it does not know without a word, so that others are refused here.
    In the dtype of the captioner's matmuls: what learns rounds them to it as well.

    Raises:
        ValueError: a name of another form.
    """
    for name, parameter in lora.merged_weights(captioner.model):  # engines get no adapters
        for ours, theirs in _NAMES.items():
            if name.startswith(ours):
                yield theirs + name.removeprefix(ours), _narrow(captioner, parameter)
                break
        else:
            raise ValueError(f"weights: expected names of {', '.join(_NAMES)}, got {name}")


def _narrow(captioner: Captioner, parameter: Tensor) -> Tensor:
    return parameter.detach().to(captioner.compute_dtype or parameter.dtype)


def write_weights(captioner: Captioner, folder: Path) -> None:
    """The weights as a folder that SGLang loads, whole or not at all."""
    partial = folder.with_name(f".partial-{folder.name}")
    if partial.exists():
        shutil.rmtree(partial)
    partial.mkdir(parents=True)
    tensors = {name: tensor.contiguous() for name, tensor in engine_weights(captioner)}
    save_file(tensors, partial / "model.safetensors", metadata={"format": "pt"})
    captioner.model.config.save_pretrained(partial)
    partial.rename(folder)


def _chunks(
    weights: Iterable[tuple[str, Tensor]],
) -> Iterator[tuple[list[tuple[str, Tensor]], bool]]:
    """Weights in lists of up to a gigabyte, and whether a list is the last."""
    chunk: list[tuple[str, Tensor]] = []
    size = 0
    for name, tensor in weights:
        if chunk and size + tensor.nbytes > _CALL_BYTES:
            yield chunk, False
            chunk, size = [], 0
        chunk.append((name, tensor))
        size += tensor.nbytes
    yield chunk, True
