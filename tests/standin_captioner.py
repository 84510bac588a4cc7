"""A stand-in for SGLang whose model is a captioner of ours: as a server and as an engine.

Requests and replies go through SGLang's own schema. Weights are taken by the names and in the files
that SGLang takes; memory that was given back holds noise until weights are loaded again. Encoded
images are kept by their hashes across updates of the weights, as 0.5.23 does.
"""

from __future__ import annotations

import base64
import io
import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file

from tests.sglang_schema import schema
from trainer.policy import Captioner, Prompts

ALL_MEMORY = ("kv_cache", "weights", "cuda_graph")


class CaptionerEngine:
    """Methods of an ``sglang.Engine`` that a sampler uses. seeded: a deterministic one."""

    def __init__(self, captioner: Captioner, *, seeded: bool = False) -> None:
        self.captioner, self.seeded = captioner, seeded
        self.version = "default"
        self.requests: list[dict[str, Any]] = []
        self.commands: list[str] = []
        self.asleep: set[str] = set()
        self._encoded: dict[tuple[str, ...], Any] = {}
        self._encode = captioner.model.model.get_image_features
        captioner.model.model.get_image_features = self._remembered
        self.dropped: list[str] = []  # names of weights to be passed over, as SGLang does
        self._open = False  # whether weights may come
        self._chance = torch.Generator().manual_seed(5)
        self._lock = threading.Lock()

    def get_model_info(self) -> dict[str, Any]:
        return {"model_path": "/models/captioner", "weight_version": self.version}

    def get_server_info(self) -> dict[str, Any]:
        return {"max_total_num_tokens": 10_000, "enable_deterministic_inference": self.seeded}

    def generate(self, **fields: Any) -> list[dict[str, Any]]:
        """Captions of the charts of one request."""
        with self._lock:
            if self.asleep:
                raise RuntimeError("CUDA error: an illegal memory access was encountered")
            self.requests.append(fields)
            images = [item for items in fields["image_data"] for item in items]
            keys = fields.get("mm_hashes") or [[image["hash"]] for image in images]
            self._hashes = tuple(str(key) for row in keys for key in row)
            prompts = self.captioner.join([self._prompt(image) for image in images])
            for row, ids in enumerate(fields["input_ids"]):
                self._check_prompt(prompts.select([row]), ids, images[row])
            sampling = fields["sampling_params"]
            each = sampling if isinstance(sampling, list) else [sampling] * len(images)
            self._check_sampling(each[0])
            if each[0]["max_new_tokens"] == 0:
                return [_reply([], [], "length", 0) for _ in images]
            n, limit = each[0].get("n", 1), each[0]["max_new_tokens"]
            if self.seeded:  # one stream per seed, the same for all n of a request
                rows = [np.random.default_rng(one.get("sampling_seed", 42)).random(limit)
                        for one in each for _ in range(n)]  # fmt: skip
                numbers = torch.tensor(np.array(rows))
            else:
                numbers = torch.rand(len(images) * n, limit, generator=self._chance).double()
            found = self.captioner.generate(
                prompts, group_size=n, max_new_tokens=limit, uniforms=numbers
            )
        each_caption = zip(found.token_ids, found.token_logps, found.finished, strict=True)
        return [
            _reply(ids.tolist(), logps.tolist(), "stop" if ended else "length", limit)
            for ids, logps, ended in each_caption
        ]

    def begin_weight_update(self) -> tuple[bool, str]:
        self._open = True
        return True, "opened"

    def end_weight_update(self) -> tuple[bool, str]:
        self._open = False
        self.commands.append("end")
        return True, "closed"

    def update_weights_from_tensor(
        self, named_tensors: list[tuple[str, torch.Tensor]], flush_cache: bool = True
    ) -> tuple[bool, str]:
        if not self._open:
            return False, "must run between begin_weight_update() and end_weight_update()"
        self.commands.append("update_weights_from_tensor" + ("" if flush_cache else " more"))
        self.load(dict(named_tensors))
        return True, "done"

    def load(self, tensors: dict[str, torch.Tensor]) -> None:
        """Takes weights by the names of SGLang's model; what it does not know it passes over."""
        assert "weights" not in self.asleep
        own = dict(self.captioner.model.named_parameters())
        for name, tensor in tensors.items():
            prefix = "model.visual." if name.startswith("visual.") else "model.language_model."
            rest = name.removeprefix("visual.").removeprefix("model.")
            if prefix + rest not in own:
                self.dropped.append(name)
                continue
            with torch.no_grad():
                own[prefix + rest].copy_(tensor)

    def release_memory_occupation(self, tags: list[str] | None = None) -> None:
        self.commands.append("release")
        assert not self.asleep
        self.asleep = set(tags or ALL_MEMORY)
        with torch.no_grad():
            for parameter in self.captioner.model.parameters():
                parameter.normal_()

    def resume_memory_occupation(self, tags: list[str] | None = None) -> None:
        self.commands.append("resume " + " ".join(tags or ALL_MEMORY))
        for tag in tags or ALL_MEMORY:
            self.asleep.remove(tag)

    def _remembered(self, pixels: torch.Tensor, grid: torch.Tensor) -> Any:
        if self._hashes not in self._encoded:
            self._encoded[self._hashes] = self._encode(pixels, grid)
        return self._encoded[self._hashes]

    def _prompt(self, image: Any) -> Prompts:
        if isinstance(image, str):
            data = base64.b64decode(image.removeprefix("data:image/png;base64,"))
            with Image.open(io.BytesIO(data)) as opened:
                return self.captioner.prompts(np.asarray(opened.convert("RGB"))[None])
        assert image["format"] == "processor_output"
        grid = image["image_grid_thw"]
        ids = self.captioner._expand(int(grid.prod()) // 4)
        return self.captioner._assemble([ids], image["pixel_values"], grid)

    def _check_prompt(self, prompt: Prompts, ids: list[int], image: Any) -> None:
        """Ids as SGLang takes them: a single image token in front of a picture, else all."""
        own = prompt.input_ids[0][prompt.mask[0]].tolist()
        if isinstance(image, str):
            place = self.captioner.model.config.image_token_id
            assert ids.count(place) == 1
            at = ids.index(place)
            ids = ids[:at] + [place] * own.count(place) + ids[at + 1 :]
        assert ids == own

    def _check_sampling(self, sampling: dict[str, Any]) -> None:
        wanted = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0}
        assert wanted.items() <= sampling.items()
        assert set(sampling["stop_token_ids"]) == self.captioner.eos_ids
        low = {int(token) for token, bias in sampling["logit_bias"].items() if bias <= -1e9}
        assert low == set(self.captioner.banned.tolist())


def _reply(ids: list[int], logps: list[float], kind: str, limit: int) -> dict[str, Any]:
    more = {"matched": ids[-1]} if kind == "stop" else {"length": limit}
    return {
        "text": "",
        "output_ids": ids,
        "meta_info": {
            "id": "x",
            "finish_reason": {"type": kind} | more,
            "prompt_tokens": 1,
            "cached_tokens": 0,
            "completion_tokens": len(ids),
            "output_token_logprobs": [[p, i, None] for p, i in zip(logps, ids, strict=True)],
        },
    }


class CaptionerServer:
    """The engine behind SGLang's routes; ``with CaptionerServer(engine) as server`` starts it.

    faults: taken one by one by the requests for captions; what one returns is sent as
    (status, body) in place of the engine's answer, given that answer.
    """

    def __init__(self, engine: CaptionerEngine) -> None:
        self.engine = engine
        self.bodies: list[dict[str, Any]] = []
        self.faults: list[Callable[[Any], tuple[int, Any]]] = []
        self.keeps_version = True
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> CaptionerServer:
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def get(self, path: str) -> tuple[int, Any]:
        """Answer a GET request."""
        infos = {"/model_info": self.engine.get_model_info, "/health": dict,
                 "/server_info": self.engine.get_server_info}  # fmt: skip
        return (200, infos[path]()) if path in infos else (404, {"detail": "Not Found"})

    def post(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        """Answer a POST request."""
        if path == "/generate":
            try:
                schema().GenerateRequest.from_json_value(body)
            except schema().JsonContractError as error:
                return 400, {"error": str(error)}
            self.bodies.append(body)
            try:
                rows = self.engine.generate(**body)
            except (RuntimeError, AssertionError) as error:
                return 500, {"error": {"message": f"{type(error).__name__}: {error}"}}
            for row in rows:
                schema().GenerateResponse.from_json_value(row)
            return self.faults.pop(0)(rows) if self.faults else (200, rows)
        if path == "/update_weights_from_disk":
            self.engine.commands.append("update_weights_from_disk")
            assert body["flush_cache"]
            self.engine.load(load_file(Path(body["model_path"]) / "model.safetensors"))
            if self.keeps_version:
                self.engine.version = body["weight_version"]
            return 200, {"success": True, "message": ""}
        getattr(self.engine, path[1:])(**body)
        return 200, ""


def _handler(server: CaptionerServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._send(*server.get(self.path))

        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            self._send(*server.post(self.path, json.loads(self.rfile.read(length) or b"{}")))

        def _send(self, status: int, body: Any) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            try:
                self.wfile.write(data)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True  # who asked has gone

        def log_message(self, *words: Any) -> None:
            """Says nothing."""

    return Handler
