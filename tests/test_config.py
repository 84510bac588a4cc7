"""Settings from flags and presets, and what a terminal shows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console as RichConsole

from trainer.__main__ import main
from trainer.config import PRESETS, RlooConfig, load_preset, parse
from trainer.record.console import Console

ROOT = Path(__file__).parents[1]


def test_defaults_are_the_papers_values() -> None:
    paper = load_preset("paper")
    for config in (RlooConfig(), paper):
        assert (config.charts, config.group_size, config.captions_per_update) == (32, 8, 128)
        assert (config.lr, config.betas, config.warmup_updates) == (1e-6, (0.9, 0.95), 20)
        assert (config.max_new_tokens, config.epochs, config.n_val) == (1024, 4.0, 500)
        assert config.recipe().name == "k4.caption_first.label_logprobs.dauto.v1"


@pytest.mark.parametrize("name", sorted(path.stem for path in PRESETS.glob("*.toml")))
def test_presets_load(name: str) -> None:
    assert load_preset(name).recipe()


def test_flags_go_over_the_preset() -> None:
    config = parse(["--preset", "tiny-cpu", "--steps", "7", "--lr", "0.5", "--run", "there"])
    assert config.layout == "candidates_first"
    assert (config.steps, config.lr, config.run) == (7, 0.5, Path("there"))
    assert config.decimals == 0
    assert parse(["--decimals", "2"]).decimals == 2
    assert parse(["--preset=paper"]) == load_preset("paper")


def test_wrong_settings_are_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("lrr = 1.0\n")
    with pytest.raises(ValueError, match="lrr"):
        load_preset(str(tmp_path / "mine.toml"))
    with pytest.raises(ValueError, match="tiny-cpu"):
        load_preset("tiny")
    (tmp_path / "mine.toml").write_text("charts = 'many'\n")
    with pytest.raises(ValueError, match=r"mine.toml: expected values of the settings' types"):
        load_preset(str(tmp_path / "mine.toml"))
    for name, value in (("threads", -1), ("lr", float("nan")), ("epochs", 0.0), ("n_test", 0)):
        with pytest.raises(ValueError, match=f"^{name}: expected"):
            RlooConfig(**{name: value})
    with pytest.raises(ValueError, match="captions_per_update"):
        RlooConfig(captions_per_update=100)
    with pytest.raises(ValueError, match="group_size"):
        RlooConfig(group_size=1)
    with pytest.raises(ValueError, match="chart_style"):
        RlooConfig(chart_style="fancy")


def test_wrong_paths_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, nowhere = str(tmp_path / "run"), str(tmp_path / "nowhere")
    for arguments, message in (
        (["--run", run, "--corpus", nowhere], "folder: expected a corpus"),
        (["--run", run, "--resume"], "run: expected a run to resume"),
    ):
        assert main(["rloo", "--preset", "tiny-cpu", *arguments]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"python -m trainer rloo: {message}")
        assert not (tmp_path / "run").exists()
    with pytest.raises(SystemExit) as ended:
        main(["rloo", "--preset", "nope"])
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("python -m trainer rloo: preset: expected one-gpu, paper, tiny-cpu")


def test_help_does_not_import_torch() -> None:
    code = (
        "import sys\nfrom trainer.__main__ import main\n"
        "try: main(sys.argv[1:])\nexcept SystemExit: pass\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules\n"
    )
    command = [sys.executable, "-c", code, "rloo", "--preset", "tiny-cpu", "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "--group-size" in done.stdout


def test_the_table_shows_the_last_values(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console("demo", 10, enabled=False)
    with console:
        console.row({"step": 0, "val/acc": 0.5, "val/floor": 0.25})
        console.row({"step": 1, "reward": 1.0, "lr": 1e-4, "time/rollout_s": 0.75})
        console.row({"step": 2, "reward": 1.5, "lr": 1e-4})
        console.say("quiet")
        console.caption("id", "a caption", 1.0)
    assert capsys.readouterr() == ("", "")
    table = console._table()
    with Console("piped", 1) as console:  # no terminal under pytest
        console.caption("id", "a caption", 1.0)
        console.say("done: 3 of 3")
    assert capsys.readouterr() == ("", "done: 3 of 3\n")
    rich = RichConsole(width=100)
    with rich.capture() as shown:
        rich.print(table)
    text = shown.get()
    assert "step 2 of 10" in text
    assert "1.500" in text
    assert "rollout 0.75" in text
    assert "0.250" in text
