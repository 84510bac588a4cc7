"""Rewards of servers and of a verifier that sleeps; runs whose captions an engine writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lineup_fast.verifiers import fleet
from lineup_fast.verifiers.base import BackendError
from tests.random_vlm import byte_tokenizer, random_captioner, random_model
from tests.scripted_run import FewSeries, ScriptedReward, settings, vowels
from tests.scripted_server import corpus, reward, serving, truth
from tests.standin_captioner import CaptionerEngine, CaptionerServer
from tests.test_checkpoint import without_times
from trainer import loading, rewarding
from trainer.config import RlooConfig, load_preset, parse
from trainer.record.console import Console
from trainer.rewarding import ServedReward, SleepingReward
from trainer.rloo import train

URL = "http://127.0.0.1:30000"


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "FIRST_PAUSE_S", 0.01)


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random captioner on disk."""
    folder = tmp_path_factory.mktemp("model")
    random_model().save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def quiet() -> Console:
    return Console("", 6, enabled=False)


# ---------------------------------------------------------------------------------------- rewards


def test_servers_score_as_the_reward_itself_does() -> None:
    ids, here = corpus().ids("train")[:4], reward()
    captions = [truth(ids[0]), truth(ids[2]), "", truth(ids[3])]
    with serving() as (one, _), serving() as (two, _):
        served = ServedReward([one, two], corpus=corpus().fingerprint, recipe=here.recipe.name)
        for index in (None, 3):
            for name in ("reward", "picks", "valid"):
                found = getattr(served.score(captions, ids, index=index), name)
                own = getattr(here.score(captions, ids, index=index), name)
                np.testing.assert_array_equal(found, own)
        rewarding.prepare(served, ids, 1)  # neither is anything to servers
        rewarding.idle(served)
        other = ServedReward([one], corpus="another", recipe=here.recipe.name)
        with pytest.raises(ValueError, match="reward_url: expected servers of"):
            other.score(captions, ids, index=0)
    with pytest.raises(BackendError):
        ServedReward([one], corpus=corpus().fingerprint, recipe=here.recipe.name)


class Memory:
    """An engine's memory on one GPU, of which only one engine may have any."""

    used: list[str]

    def __init__(self, name: str, used: list[str]) -> None:
        self.name, self.used, self.asleep = name, used, False

    def sleep(self) -> None:
        self.used.append(f"-{self.name}")
        self.asleep = True

    def wake(self) -> None:
        self.used.append(f"+{self.name}")
        self.asleep = False


def test_a_verifier_sleeps_until_it_is_asked() -> None:
    ids, used = corpus().ids("train")[:2], []
    scored = reward()
    sleeping = SleepingReward(scored, Memory("verifier", used))
    assert used == ["-verifier"]
    rewarding.prepare(sleeping, ids, 1)
    assert len(scored._prepared) == 2
    for _ in range(2):
        sleeping.score([truth(item) for item in ids], ids, index=1)
    assert used == ["-verifier", "+verifier"]
    rewarding.idle(sleeping)
    rewarding.idle(sleeping)
    assert used == ["-verifier", "+verifier", "-verifier"]


# ------------------------------------------------------------------------------------------- runs


def test_a_run_learns_from_the_captions_of_an_engine(model_folder: Path, tmp_path: Path) -> None:
    with CaptionerServer(CaptionerEngine(random_captioner(seed=9))) as server:
        config = settings(
            model_folder, tmp_path / "run", steps=3, captions_per_update=16, lr=3e-2,
            sampler="sglang", sampler_url=(server.url,),
        )  # fmt: skip
        assert train(config, FewSeries(), ScriptedReward(vowels), console=quiet())
        assert server.engine.commands == ["update_weights_from_disk"] * 4  # start, three updates
        assert len(server.bodies) == 12  # one for each chart
    rows = without_times(config.run)[1:]
    for row in rows:  # one update a step: every caption was drawn by the weights that learn
        assert row["mismatch/logp_gap_mean"] < 1e-4
        assert row["mismatch/ratio_max"] == pytest.approx(1.0, abs=1e-3)
        assert row["mismatch/capped_frac"] == 0.0
        assert row["grad_norm"] > 0
    assert server.engine.dropped == []


def test_engines_that_share_a_gpu_take_turns(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[str] = []
    verifier = Memory("verifier", used)
    engine = CaptionerEngine(random_captioner(seed=9))
    for name, word in (("release_memory_occupation", "-captioner"), ("generate", "captions")):
        own = getattr(engine, name)

        def noted(*words: Any, own: Any = own, word: str = word, **more: Any) -> Any:
            used.append(word)
            return own(*words, **more)

        monkeypatch.setattr(engine, name, noted)

    def asked(index: int | None) -> None:
        used.append("reward" if index else "validation")
        assert engine.asleep == {"kv_cache", "weights", "cuda_graph"}

    with CaptionerServer(engine) as server:
        config = settings(
            model_folder, tmp_path / "run", steps=2, captions_per_update=16, charts_at_once=4,
            sampler="sglang", sampler_url=(server.url,), sleep=True,
        )  # fmt: skip
        scored = SleepingReward(ScriptedReward(vowels, before=asked), verifier)
        assert train(config, FewSeries(), scored, console=quiet())
    start = ["-verifier", "-captioner", "+verifier", "validation", "-verifier"]
    again = ["+verifier", "validation", "-verifier"]  # the floor: captions left empty
    step = ["captions"] * 4 + ["-captioner", "+verifier"] + ["reward"] * 4 + ["-verifier"]
    assert used[: len(start)] == start
    at = used.index("captions")
    assert used[at : at + len(step)] == step
    assert used[at + len(step) :][: len(step)] == step
    assert set(zip(*[iter(used[len(start) : at])] * 3, strict=True)) <= {tuple(again)}
    for row in without_times(config.run)[1:]:
        assert row["mismatch/logp_gap_mean"] < 1e-4  # the weights came back with the memory


# --------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize(("changes", "words"), [
    ({"sampler": "sglang"}, "sampler_url: expected servers with sampler sglang"),
    ({"sampler_url": (URL,)}, "sampler_url: expected servers with sampler sglang"),
    ({"verifier_url": (URL,), "reward_url": (URL,)}, "reward_url: expected it or verifier_url"),
    ({"reward_url": ("localhost:1",)}, "reward_url: expected http:// or https://"),
    ({"sleep": True}, "sleep: expected sampler_url or verifier_url"),
    ({"sleep": True, "verifier_url": (URL,), "async_depth": 1}, "sleep: expected async_depth 0"),
    ({"importance_cap": 0.0}, "importance_cap: expected a number above 0"),
])  # fmt: skip
def test_settings_that_do_not_go_together_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        RlooConfig(**changes)


def test_servers_are_named_by_flags_and_presets(tmp_path: Path) -> None:
    config = parse(["--sampler", "sglang", "--sampler-url", URL, "--reward-url", URL, URL + "1"])
    assert config.sampler_url == (URL,)
    assert config.reward_url == (URL, URL + "1")
    (tmp_path / "mine.toml").write_text(f'verifier_url = ["{URL}"]\nsleep = true\n')
    assert load_preset(str(tmp_path / "mine.toml")).verifier_url == (URL,)


def test_the_verifier_is_loaded_from_where_the_settings_say(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving() as (url, _):
        config = RlooConfig(reward_url=(url,))
        assert isinstance(loading.load_reward(config, corpus()), ServedReward)

    class Verifier(Memory):
        def __init__(self, urls: tuple[str, ...]) -> None:
            super().__init__(str(urls), [])
            self.encoder, self.max_prompt_tokens = reward().verifier.encoder, None
            self.fingerprint = lambda: "none"

    monkeypatch.setattr("lineup_fast.verifiers.sglang.SGLangVerifier", Verifier)
    config = RlooConfig(model=str(model_folder), verifier_url=(URL,))
    found = loading.load_reward(config, corpus())
    assert found.verifier.name == f"('{URL}',)"
    config = RlooConfig(model=str(model_folder), verifier_url=(URL,), sleep=True)
    assert isinstance(loading.load_reward(config, corpus()), SleepingReward)
