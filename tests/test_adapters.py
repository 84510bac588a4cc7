"""Adapters on a client in this process; make test-adapters runs them under their hosts."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lineup_fast.adapters import openrlhf, verl
from lineup_fast.adapters.trl import LineupReward, completion_text
from lineup_fast.client import RewardClient
from lineup_fast.corpus import Corpus
from lineup_fast.openrlhf_contract import label_of
from lineup_fast.prompts import Recipe
from lineup_fast.rewards import IdentificationReward
from lineup_fast.verifiers.base import BackendError
from lineup_fast.verifiers.scripted import ScriptedVerifier
from tests.test_rewards import by_first_value, made_corpus, truth

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return made_corpus()


def _broken(*_: Any) -> list[float]:
    raise RuntimeError("no memory")


def _client(corpus: Corpus, script: Any = by_first_value) -> RewardClient:
    return RewardClient(
        IdentificationReward(corpus, ScriptedVerifier(script), Recipe()), group_size=2
    )


def test_trl_rewards_follow_rows_and_step(corpus: Corpus) -> None:
    items = corpus.ids()[:3]
    reward = LineupReward(_client(corpus))
    completions = [[{"role": "assistant", "content": truth(corpus, item)}] for item in items]
    metrics: dict[str, float] = {}
    state = SimpleNamespace(global_step=4)
    columns: dict[str, Any] = {"trainer_state": state, "image": [None] * 3, "completion_ids": []}
    found = asyncio.run(
        reward(["p"] * 3, completions, uid=items, log_metric=metrics.__setitem__, **columns)
    )
    assert found == [2.0] * 3
    assert metrics == {"lineup/acc": 1.0, "lineup/invalid_frac": 0.0}
    assert reward.__name__ == "lineup"
    # Another series' first value: which distractors are shown decides, and the step decides those.
    lies = [truth(corpus, corpus.pool(item)[0]) for item in items]
    by_step = [
        asyncio.run(
            reward(["p"] * 3, lies, uid=items, trainer_state=SimpleNamespace(global_step=n))
        )
        for n in range(8)
    ]
    expected = [_client(corpus).score(lies, items, index=n).reward.tolist() for n in range(8)]
    assert by_step == expected
    assert len({tuple(rewards) for rewards in by_step}) > 1


def test_trl_gets_none_for_a_failure(corpus: Corpus) -> None:
    metrics: dict[str, float] = {}
    reward = LineupReward(_client(corpus, _broken))
    found = asyncio.run(
        reward(["p"], ["1.0"], uid=corpus.ids()[:1], log_metric=metrics.__setitem__)
    )
    assert found == [None]
    assert metrics == {"lineup/invalid_frac": 1.0}


def test_completion_text_of_strings_messages_and_parts() -> None:
    assert completion_text("as it is") == "as it is"
    assert completion_text([{"content": None}, {"content": "b"}]) == "b"
    assert completion_text([{"content": [{"type": "text", "text": "a"}, {"type": "image"}]}]) == "a"


def test_verl_fields(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    item = corpus.ids()[0]
    monkeypatch.setattr(verl, "_client", lambda *_: _client(corpus))
    words: dict[str, Any] = {"url": "http://unused", "num_turns": 1}
    fields = asyncio.run(verl.compute_score("d", truth(corpus, item), item, None, **words))
    assert fields == {"score": 2.0, "lineup_acc": 1.0, "lineup_failed": 0.0}
    named = asyncio.run(verl.compute_score("d", truth(corpus, item), "-", {"uid": item}, **words))
    assert named == fields
    monkeypatch.setattr(verl, "_client", lambda *_: _client(corpus, _broken))
    with pytest.raises(BackendError, match=r"expected an answer, got none .*no memory"):
        asyncio.run(verl.compute_score("d", "1.0", item, None, **words))
    fields = asyncio.run(verl.compute_score("d", "1.0", item, None, fallback=0.5, **words))
    assert fields == {"score": 0.5, "lineup_acc": -1.0, "lineup_failed": 1.0}
    with pytest.raises(AttributeError, match="no attribute 'Other'"):
        _ = verl.Other


def test_openrlhf_function(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    item = corpus.ids()[0]
    prompt = "<|im_start|>user\n<|image_pad|>Describe.<|im_end|>\n<|im_start|>assistant\n"
    query = prompt.replace("<|image_pad|>", "<|image_pad|>" * 9) + truth(corpus, item)
    monkeypatch.delenv("LINEUP_URL", raising=False)
    with pytest.raises(ValueError, match="LINEUP_URL: expected the URL"):
        openrlhf.reward_func([query], [prompt], [label_of(item)])
    monkeypatch.setenv("LINEUP_URL", "http://unused")
    monkeypatch.setattr(openrlhf, "_client", lambda _: _client(corpus))
    found = openrlhf.reward_func([query + "<|im_end|>"], [prompt], [label_of(item)])
    logs = {"lineup_acc": 1.0, "lineup_failed": 0.0}
    assert found == {"rewards": 2.0, "scores": 1.0, "extra_logs": logs}
    both = openrlhf.reward_func([query] * 2, [prompt] * 2, [label_of(item, 3)] * 2)
    assert both["rewards"] == [2.0, 2.0]
    with pytest.raises(ValueError, match="labels: expected an index in all of them or in none"):
        openrlhf.reward_func([query] * 2, [prompt] * 2, [label_of(item, 3), label_of(item)])
    monkeypatch.setattr(openrlhf, "_client", lambda _: _client(corpus, _broken))
    failed = openrlhf.reward_func([query], [prompt], [label_of(item)])
    assert failed["rewards"] == openrlhf.GUESS
    assert failed["extra_logs"]["lineup_failed"] == 1.0
    assert "no memory" in caplog.text
    monkeypatch.setenv("LINEUP_FALLBACK", "0.25")
    assert openrlhf.reward_func([query], [prompt], [label_of(item)])["rewards"] == 0.25


def test_no_adapter_is_imported_by_the_package() -> None:
    code = (
        "import lineup_fast.client, lineup_fast.rewards, lineup_fast.cli, sys; "
        "print([m for m in sys.modules if m.startswith('lineup_fast.adapters')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert json.loads(done.stdout.replace("'", '"')) == []
