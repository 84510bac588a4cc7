"""Captions from SGLang against a stand-in whose model is a captioner of ours.

What a real SGLang does is tested in tests/engine (make test-engines).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lineup_fast import charts
from lineup_fast.verifiers import fleet
from lineup_fast.verifiers.base import BackendError
from tests.random_vlm import random_captioner, random_images
from tests.sglang_schema import schema
from tests.standin_captioner import CaptionerEngine, CaptionerServer
from trainer.policy import Captioner, Prompts
from trainer.rollouts import Part, Rollout, gather
from trainer.rollouts.engine import SGLangSampler, engine_weights, write_weights
from trainer.rollouts.importance import Importance
from trainer.rollouts.wire import sampling_seed, unpatch

IDS = ["a", "b", "c"]


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "FIRST_PAUSE_S", 0.01)


@pytest.fixture
def server() -> Iterator[CaptionerServer]:
    """Holds other weights than ours until it is given ours."""
    with CaptionerServer(CaptionerEngine(random_captioner(seed=9))) as standin:
        yield standin


@pytest.fixture(scope="module")
def charts_of() -> np.ndarray:
    return random_images(3)


def sampler_of(
    captioner: Captioner, folder: Path, urls: Any = None, **options: Any
) -> SGLangSampler:
    return SGLangSampler(captioner, urls, folder=folder, group_size=4, max_new_tokens=9, seed=0,
                         **options)  # fmt: skip


def drawn(sampler: SGLangSampler, prompts: Prompts, step: int = 1) -> Rollout:
    parts = sorted(sampler.sample(prompts, IDS, step), key=lambda part: part.rows)
    return gather(IDS, prompts, parts)


def gap(captioner: Captioner, rollout: Rollout) -> Importance:
    """How far the log-probabilities of the engine are from ours."""
    weigh = Importance(2.0)
    for row in range(len(rollout.ids)):
        group = slice(4 * row, 4 * row + 4)
        logps, _ = captioner.token_logps(rollout.prompts.select([row]), [rollout.token_ids[group]])
        weigh.weights(logps, torch.cat(rollout.token_logps[group]))
    return weigh


def check_captions(captioner: Captioner, rollout: Rollout) -> None:
    assert len(rollout.token_ids) == 12
    assert captioner.texts(rollout.token_ids) == rollout.texts
    ends = [int(ids[-1]) in captioner.eos_ids for ids in rollout.token_ids]
    assert ends == rollout.finished
    assert all(len(ids) == 9 for ids, end in zip(rollout.token_ids, ends, strict=True) if not end)
    for group in range(3):  # other captions inside a group
        assert len({tuple(ids.tolist()) for ids in rollout.token_ids[4 * group :][:4]}) == 4
    metrics = gap(captioner, rollout).metrics()
    assert metrics["mismatch/logp_gap_mean"] < 1e-4
    assert metrics["mismatch/ratio_max"] < 1.0 + 1e-3
    assert metrics["mismatch/capped_frac"] == 0.0
    assert rollout.entropy == pytest.approx(-float(torch.cat(rollout.token_logps).mean()), rel=1e-5)


def test_server_captions_have_our_log_probabilities_and_follow_a_push(
    server: CaptionerServer, charts_of: np.ndarray, tmp_path: Path
) -> None:
    captioner = random_captioner()
    prompts = captioner.prompts(charts_of)
    with sampler_of(captioner, tmp_path, server.url) as sampler:
        assert sampler.off_policy
        check_captions(captioner, drawn(sampler, prompts))
        with torch.no_grad():
            for parameter in captioner.model.parameters():
                parameter += 0.05 * torch.randn_like(parameter)
        before = gap(captioner, drawn(sampler, prompts)).metrics()
        assert before["mismatch/logp_gap_mean"] > 0.05  # the engine still has the old weights
        sampler.push(captioner)
        check_captions(captioner, drawn(sampler, prompts))
        folders = [path.name for path in tmp_path.iterdir()]
        assert folders == [server.engine.version]  # one version of the weights, and whole
    assert not list(tmp_path.iterdir())
    assert server.engine.dropped == []


def test_a_chart_is_sent_once_for_all_its_captions(
    server: CaptionerServer, charts_of: np.ndarray, tmp_path: Path
) -> None:
    captioner = random_captioner()
    with sampler_of(captioner, tmp_path, server.url) as sampler:
        drawn(sampler, captioner.prompts(charts_of))
    assert len(server.bodies) == 3
    assert server.engine.captioner.prompt_encodings == 3
    for body in server.bodies:
        assert set(body) <= set(schema().GenerateRequest.__struct_fields__)
        assert set(body["sampling_params"]) <= set(schema().SamplingParams.__struct_fields__)
        assert [len(items) for items in body["image_data"]] == [1]
        assert body["sampling_params"]["n"] == 4


def test_parts_come_as_charts_are_finished(
    server: CaptionerServer, charts_of: np.ndarray, tmp_path: Path
) -> None:
    captioner, gate = random_captioner(), threading.Event()

    def later(rows: Any) -> tuple[int, Any]:
        assert gate.wait(60)
        return 200, rows

    with sampler_of(captioner, tmp_path, server.url) as sampler:
        server.faults = [later]  # the first chart that is answered waits
        parts: list[Part] = []
        for part in sampler.sample(captioner.prompts(charts_of), IDS, 1):
            parts.append(part)
            if len(parts) == 2:
                gate.set()
        assert sorted(part.rows for part in parts) == [[0], [1], [2]]


def test_a_deterministic_server_is_sent_a_seed_for_every_caption(
    charts_of: np.ndarray, tmp_path: Path
) -> None:
    captioner = random_captioner()
    prompts = captioner.prompts(charts_of)
    found = []
    for run in range(2):
        engine = CaptionerEngine(random_captioner(), seeded=True)
        with (
            CaptionerServer(engine) as server,
            sampler_of(captioner, tmp_path / str(run), server.url) as sampler,
        ):
            found.append(drawn(sampler, prompts))
            check_captions(captioner, found[-1])
            assert drawn(sampler, prompts, step=2).texts != found[-1].texts
            primes = [body for body in server.bodies
                      if isinstance(body["sampling_params"], dict)]  # fmt: skip
            assert len(server.bodies) == 12
            assert [one["sampling_params"]["max_new_tokens"] for one in primes] == [0] * 6
    assert found[0].texts == found[1].texts
    seeds = {sampling_seed(seed, step, item, number) for seed in (0, 1) for step in (0, 1)
             for item in IDS for number in range(8)}  # fmt: skip
    assert len(seeds) == 96
    assert all(0 <= seed < 2**63 for seed in seeds)


@pytest.mark.parametrize("at_once", [1, 2])
def test_an_engine_of_this_process_takes_patches_and_tensors(
    at_once: int, charts_of: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.rollouts.engine._CALL_BYTES", 20_000)
    captioner, engine = random_captioner(), CaptionerEngine(random_captioner(seed=9))
    prompts = captioner.prompts(charts_of)
    with sampler_of(captioner, tmp_path, engine=engine, charts_at_once=at_once) as sampler:
        check_captions(captioner, drawn(sampler, prompts))
    assert len(engine.requests) == 3 // at_once + 3 % at_once
    assert engine.requests[0]["image_data"][0][0]["format"] == "processor_output"
    assert engine.commands[-2:] == ["update_weights_from_tensor", "end"]  # the cache goes as well
    assert set(engine.commands[:-2]) == {"update_weights_from_tensor more"}
    assert engine.dropped == []
    assert not list(tmp_path.iterdir())


def test_sleep_gives_memory_back_and_waking_brings_the_newest_weights(
    server: CaptionerServer, charts_of: np.ndarray, tmp_path: Path
) -> None:
    captioner = random_captioner()
    prompts = captioner.prompts(charts_of)
    with sampler_of(captioner, tmp_path, server.url) as sampler:
        sampler.sleep()
        sampler.sleep()
        assert server.engine.asleep == {"kv_cache", "weights", "cuda_graph"}
        with torch.no_grad():
            for parameter in captioner.model.parameters():
                parameter += 0.05 * torch.randn_like(parameter)
        sampler.push(captioner)  # while it sleeps
        check_captions(captioner, drawn(sampler, prompts))  # wakes it
        assert not sampler.asleep
    assert server.engine.commands == [
        "update_weights_from_disk", "release", "resume weights", "update_weights_from_disk",
        "resume kv_cache cuda_graph",
    ]  # fmt: skip


def test_weights_that_did_not_arrive_are_told(server: CaptionerServer, tmp_path: Path) -> None:
    server.keeps_version = False
    with pytest.raises(BackendError, match="weight version: expected weights-"):
        sampler_of(random_captioner(), tmp_path, server.url)


def changed(**changes: Any) -> Any:
    def fault(rows: list[dict[str, Any]]) -> tuple[int, Any]:
        rows[0]["meta_info"] |= changes
        return 200, rows

    return fault


@pytest.mark.parametrize(("fault", "words"), [
    (lambda rows: (200, rows[:-1]), "expected 4 captions, got 3"),
    (lambda rows: (400, {"error": {"message": "image too large"}}), "image too large"),
    (changed(output_token_logprobs=None), "expected a caption with output_token_logprobs"),
    (changed(finish_reason={"type": "length"}, output_token_logprobs=[[-1.0, 300, None]]),
     r"expected none that is banned, got \[300\]"),
    (changed(finish_reason={"type": "stop", "matched": 1}, output_token_logprobs=[[-1, 1, None]]),
     "does not go with last token 1"),
])  # fmt: skip
def test_captions_that_were_not_asked_for_are_refused(
    fault: Any, words: str, server: CaptionerServer, charts_of: np.ndarray, tmp_path: Path
) -> None:
    captioner = random_captioner()
    with sampler_of(captioner, tmp_path, server.url) as sampler:
        server.faults = [fault]
        with pytest.raises(BackendError, match=words):
            drawn(sampler, captioner.prompts(charts_of))


def test_banned_tokens_are_refused(
    server: CaptionerServer, charts_of: np.ndarray, tmp_path: Path
) -> None:
    captioner = random_captioner()
    image = captioner.model.config.image_token_id
    with sampler_of(captioner, tmp_path, server.url) as sampler:
        server.faults = [changed(finish_reason={"type": "length", "length": 1},
                                 output_token_logprobs=[[-1.0, image, None]])]  # fmt: skip
        with pytest.raises(BackendError, match="expected none that is banned"):
            drawn(sampler, captioner.prompts(charts_of))


def test_a_caption_broken_off_is_asked_for_again(
    server: CaptionerServer, charts_of: np.ndarray, tmp_path: Path
) -> None:
    captioner = random_captioner()
    with sampler_of(captioner, tmp_path, server.url) as sampler:
        aborted = changed(finish_reason={"type": "abort", "message": "overloaded"})
        server.faults = [aborted, lambda rows: (503, {"error": "busy"})]
        check_captions(captioner, drawn(sampler, captioner.prompts(charts_of)))
    assert len(server.bodies) == 5


@pytest.mark.parametrize(("height", "width"), [(56, 84), (308, 588)])
def test_images_come_back_out_of_their_patches(height: int, width: int) -> None:
    images = random_images(2, height, width)
    pixels, grid = charts.patches(images)
    for row, part in enumerate(np.split(pixels, 2)):
        found = unpatch(torch.from_numpy(part), grid[row].tolist(), 14, 2, 2)
        np.testing.assert_array_equal(found, images[row])


def test_weights_have_the_names_of_checkpoints(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    captioner = random_captioner()
    captioner.model.save_pretrained(tmp_path / "saved")
    saved = load_file(tmp_path / "saved/model.safetensors")
    ours = dict(engine_weights(captioner))
    assert ours.keys() == saved.keys()
    assert all(torch.equal(ours[name], saved[name]) for name in ours)
    write_weights(captioner, tmp_path / "weights")
    written = load_file(tmp_path / "weights/model.safetensors")
    assert all(torch.equal(ours[name], written[name]) for name in ours)
    assert json.loads((tmp_path / "weights/config.json").read_text())["model_type"] == "qwen2_5_vl"
    captioner.model.register_parameter("lora_A", torch.nn.Parameter(torch.zeros(1)))
    with pytest.raises(ValueError, match=r"weights: expected names of .*, got lora_A"):
        dict(engine_weights(captioner))
