"""The token plan: its counts are those of the verifier, and the formulas of the layouts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lineup_fast import cli, counters
from lineup_fast.prompt_tokens import PromptBuilder
from lineup_fast.prompts import Recipe
from lineup_fast.rewards import IdentificationReward
from lineup_fast.token_plan import PlanRow, TokenPlan, plan_step
from lineup_fast.verifiers.transformers import TransformersVerifier
from tests.test_rewards import made_corpus
from tests.toy_models import model
from tests.toy_tokenizers import tokenizer

ROOT = Path(__file__).parent.parent
LAYOUTS = ("caption_first", "candidates_first")


def _row(plan: TokenPlan, layout: str, *, shared: bool, positions: int | None = None) -> PlanRow:
    (row,) = [
        row
        for row in plan.rows
        if (row.layout, row.shared, row.positions) == (layout, shared, positions)
    ]
    return row


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("positions", [None, 1])
def test_counts_are_those_of_the_verifier(layout: str, positions: int | None) -> None:
    corpus, tok = made_corpus(), tokenizer("qwen2")
    net = model("qwen2", len(tok))
    captions = ["It rises.", "It falls to 3.", "", "Flat, then 9."] * 3
    plan = plan_step(corpus, tok, Recipe(), batch=3, group=4, captions=captions, seed=5)
    ids = corpus.ids("train")
    items = [ids[at] for at in counters.order(len(ids), 5, "plan")[:3]]
    asked = [item for item in items for _ in range(4)]
    recipe = Recipe(layout=layout, positions=positions)
    for shared in (True, False):
        verifier = TransformersVerifier(net, tok, shared=shared)
        assert verifier.shared is shared
        reward = IdentificationReward(corpus, verifier, recipe, seed=5)
        counts = reward.score(captions, asked, index=0).counts
        if shared:
            row = _row(plan, layout, shared=True, positions=positions)
            assert counts["prefilled_tokens"] == row.tokens
        elif positions is None:
            assert counts["prefilled_tokens"] == _row(plan, layout, shared=False).tokens
            assert counts["prompt_tokens"] == counts["prefilled_tokens"]


def test_formulas_of_the_layouts() -> None:
    corpus, tok = made_corpus(), tokenizer("qwen2")
    group, k, length = 8, 4, 50
    recipe = Recipe(k=k, decimals=2)
    plan = plan_step(corpus, tok, recipe, batch=1, group=group, caption_tokens=length)
    builder = PromptBuilder(tok, recipe)
    assert (plan.groups, plan.left_out, plan.caption_tokens) == (1, 0, length)
    label = len(builder._frame.labels[0]) // k
    blocks = k * (plan.numbers_tokens + label)
    fixed = builder.fixed_tokens() - k * label
    naive = group * k * (fixed + length + blocks)
    assert _row(plan, "caption_first", shared=False).tokens == pytest.approx(naive)
    # Rotations share the distractors before the target, captions the blocks or only the head.
    ratio = _row(plan, "candidates_first", shared=True).fewer
    assert ratio > _row(plan, "caption_first", shared=True).fewer > 1
    assert _row(plan, "candidates_first", shared=True, positions=1).fewer > ratio
    assert plan.longest_prompt == pytest.approx(fixed + length + blocks, rel=0.1)


def test_the_table_shows_seconds_only_when_asked() -> None:
    plan = plan_step(made_corpus(), tokenizer("qwen2"), Recipe(), batch=2, group=2)
    lines = plan.table(1000.0).splitlines()
    assert lines[1].split()[-1] == "seconds"
    assert len(lines) == 2 + 6
    tokens = _row(plan, "caption_first", shared=False).tokens
    assert lines[2].split()[-1] == f"{tokens / 1000:.1f}"
    assert "seconds" not in plan.table()


def test_bad_input_is_refused() -> None:
    corpus, tok = made_corpus(), tokenizer("qwen2")
    with pytest.raises(ValueError, match="group: expected at least 1, got 0"):
        plan_step(corpus, tok, Recipe(), group=0)
    with pytest.raises(ValueError, match="batch: expected at most the "):
        plan_step(corpus, tok, Recipe(), batch=10**6)
    with pytest.raises(ValueError, match="captions: expected at least one, got none"):
        plan_step(corpus, tok, Recipe(), batch=1, captions=[])


def test_command_prints_the_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made_corpus().save(tmp_path / "corpus")
    tokenizer("qwen2").save_pretrained(tmp_path / "verifier")
    words = ["plan", str(tmp_path / "corpus"), "--verifier", str(tmp_path / "verifier")]
    assert cli.main([*words, "--batch", "2", "--tokens-per-second", "100"]) == 0
    shown = capsys.readouterr().out
    assert "candidates_first" in shown
    assert "once, positions=1" in shown
    assert cli.main([*words, "--tokens-per-second", "0"]) == 2
    assert "--tokens-per-second: expected a positive number" in capsys.readouterr().err


def test_planning_needs_no_torch() -> None:
    code = "import lineup_fast.token_plan, sys; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
