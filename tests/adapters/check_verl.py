"""verl's own loaders and managers on the adapter."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import ROOT, direct
from datasets import load_dataset
from omegaconf import OmegaConf
from tensordict import TensorDict
from transformers import AutoTokenizer
from verl import DataProto
from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager
from verl.trainer.ppo.reward import get_custom_reward_fn, load_reward_manager

from lineup_fast.verifiers.base import BackendError

MODULE = "pkg://lineup_fast.adapters.verl"


def _config(**reward: Any) -> Any:
    plain = {
        "custom_reward_function": {"path": None, "name": None},
        "reward_manager": {"source": "register", "name": "naive", "module": None},
    }
    return OmegaConf.create({"reward": plain | reward})


def _sample(row: dict[str, Any], caption: str) -> DataProto:
    """One rollout as the agent loop hands it over: left-padded prompt, right-padded response."""
    tokenizer = _tokenizer()
    ids = tokenizer(caption, add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id]
    response = torch.full((1, 96), tokenizer.pad_token_id)
    response[0, : len(ids)] = torch.tensor(ids)
    mask = torch.zeros(1, 4 + 96, dtype=torch.long)
    mask[0, 2 : 4 + len(ids)] = 1
    tensors = {"prompts": torch.ones(1, 4).long(), "responses": response, "attention_mask": mask}
    columns = ("data_source", "reward_model", "extra_info")
    return DataProto(
        TensorDict(tensors, batch_size=1),
        {name: np.array([row[name]], dtype=object) for name in columns},
    )


def _tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(ROOT / "trainer/tiny/captioner")


@pytest.fixture(scope="module")
def row(rows: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A row of the exported data set as verl's RLHFDataset reads it."""
    file = str(rows / "verl" / "train.parquet")
    cache = str(tmp_path_factory.mktemp("cache"))
    found: dict[str, Any] = load_dataset("parquet", data_files=file, cache_dir=cache)["train"][0]
    return found


def test_row_has_an_image_for_every_mark(row: dict[str, Any]) -> None:
    assert row["prompt"][0]["content"].count("<image>") == len(row["images"]) == 1
    assert row["extra_info"]["uid"] == row["reward_model"]["ground_truth"]


def test_score_function_under_the_naive_manager(
    server: str, row: dict[str, Any], truths: dict[str, str]
) -> None:
    uid = row["extra_info"]["uid"]
    function = {"path": MODULE, "name": "compute_score", "reward_kwargs": {"url": server}}
    score = get_custom_reward_fn(_config(custom_reward_function=function))

    async def run() -> dict[str, Any]:
        manager = NaiveRewardManager(_config(), _tokenizer(), score)
        return await manager.run_single(_sample(row, truths[uid]))

    found = asyncio.run(run())
    assert set(found["reward_extra_info"]) == {"score", "lineup_acc", "lineup_failed"}
    assert found["reward_extra_info"]["lineup_failed"] == 0.0
    # First of a group that the server counts: draw 0.
    assert found["reward_score"] == direct(server, [truths[uid]], [uid], 0).reward[0]


def test_own_manager(server: str, row: dict[str, Any], truths: dict[str, str]) -> None:
    uid = row["extra_info"]["uid"]
    manager_of = {"source": "importlib", "name": "LineupRewardManager", "module": {"path": MODULE}}

    async def run() -> dict[str, Any]:
        config = _config(reward_manager=manager_of, lineup={"url": server})
        manager = load_reward_manager(
            config, _tokenizer(), reward_router_address=None, reward_model_tokenizer=None
        )
        return await manager.run_single(_sample(row, truths[uid]))

    found = asyncio.run(run())
    assert found["reward_score"] in {
        float(direct(server, [truths[uid]], [uid], index).reward[0]) for index in (0, 1)
    }
    with pytest.raises(ValueError, match=r"reward\.lineup\.url"):
        load_reward_manager(_config(reward_manager=manager_of), _tokenizer())


def test_a_failure_is_never_a_number_unless_asked(row: dict[str, Any]) -> None:
    from lineup_fast.adapters.verl import compute_score

    words = {"url": "http://127.0.0.1:9", "deadline_s": 1.0}
    asked = ("lineup_fast", "x", "uid")
    with pytest.raises(BackendError, match="reward: expected an answer, got none"):
        asyncio.run(compute_score(*asked, **words))
    fields = asyncio.run(compute_score(*asked, fallback=0.5, **words))
    assert fields == {"score": 0.5, "lineup_acc": -1.0, "lineup_failed": 1.0}
