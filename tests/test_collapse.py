"""Signs of collapse, and a run that is ended by them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.random_vlm import byte_tokenizer, random_model
from tests.scripted_run import FewSeries, ScriptedReward, settings
from trainer import checkpoint
from trainer.collapse import CollapseError, distinct_openings, reason
from trainer.config import RlooConfig
from trainer.record.console import Console
from trainer.rloo import train

GOOD = {
    "reward": 1.0,
    "lineup/invalid_frac": 0.0,
    "frac_reward_zero_std": 0.3,
    "lineup/distinct_openings_frac": 0.6,
}
CONFIG = RlooConfig(collapse_window=3)


def rows(n: int, **changes: Any) -> list[dict[str, Any]]:
    return [GOOD | changes for _ in range(n)]


def test_openings_are_the_first_eight_words() -> None:
    long = "one two three four five six seven eight"
    assert distinct_openings([f"{long} nine", f"{long} ten", "one two", ""]) == 3 / 4
    assert distinct_openings([]) == 0.0


@pytest.mark.parametrize(
    ("name", "value", "word"),
    [
        ("lineup/invalid_frac", 0.5, "no answer"),
        ("frac_reward_zero_std", 0.98, "same reward"),
        ("lineup/distinct_openings_frac", 0.02, "began differently"),
    ],
)
def test_a_sign_counts_only_when_it_holds_through_the_window(
    name: str, value: float, word: str
) -> None:
    assert reason(rows(5), CONFIG) is None
    bad = rows(3, **{name: value})
    assert word in str(reason(rows(2) + bad, CONFIG))
    assert reason(bad[:2], CONFIG) is None  # too few steps
    assert reason([*bad[:2], GOOD, *bad[:2]], CONFIG) is None
    assert reason([*bad, GOOD], CONFIG) is None
    assert reason(bad, replace(CONFIG, collapse_window=0)) is None
    unknown = rows(3, **{name: None})  # null in the record: nothing was valid
    assert reason(unknown, CONFIG) is None


def test_the_row_of_the_start_is_no_step() -> None:
    start = {"step": 0, "val/acc": 0.5}
    bad = rows(3, frac_reward_zero_std=1.0)
    assert reason([start, *bad[:2]], CONFIG) is None
    assert reason([*bad, start], CONFIG) is not None


def test_a_collapsed_run_ends_with_a_checkpoint_and_its_reason(tmp_path: Path) -> None:
    random_model().save_pretrained(tmp_path / "model")
    byte_tokenizer().save_pretrained(tmp_path / "model")
    config = settings(tmp_path / "model", tmp_path / "run", collapse_window=3, eval_every=50,
                      checkpoint_every=50)  # fmt: skip
    constant = ScriptedReward(lambda caption: 0.5)
    with pytest.raises(CollapseError, match="same reward"):
        train(config, FewSeries(), constant, console=Console("", 6, enabled=False))
    assert checkpoint.steps(config.run / "checkpoints") == [3]
    stopped = json.loads((config.run / "stopped.json").read_text())
    assert stopped["step"] == 3
    assert "same reward" in stopped["reason"]
    again = replace(config, resume=True, collapse_window=0)  # may be overruled
    assert train(again, FewSeries(), constant, console=Console("", 6, enabled=False))
    assert not (config.run / "stopped.json").exists()
