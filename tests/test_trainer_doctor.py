"""``python -m trainer doctor``: one report, with the reasons of what does not run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lineup_fast import doctor as core_doctor
from trainer import attention, head_choice
from trainer.__main__ import main
from trainer.attention.padded import CPU
from trainer.choice import Choice
from trainer.doctor import choices
from trainer.logprobs import chosen_logprobs

ROOT = Path(__file__).parents[1]
CAPTIONER = str(ROOT / "trainer" / "tiny" / "captioner")


def test_the_report_is_the_cores_and_what_the_trainer_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core_doctor, "report", lambda: "what lineup-fast doctor prints")
    assert main(["doctor", "--model", CAPTIONER]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["what lineup-fast doctor prints", "trainer"]
    assert any(line.startswith("  adamw-offload") for line in lines)
    assert "  cpu, float32" in lines
    assert "  cpu, bfloat16" in lines
    (head, *_) = [line for line in lines if "loss head" in line]
    assert head.split("  ")[-1].strip() == "chunked, recomputed"
    attends = [line for line in lines if "attention, " in line]
    assert len(attends) == 2 * lines[2:].count("  cpu, float32") * 2
    assert any("not liger: " in line for line in lines)
    if not torch.cuda.is_available():
        assert lines[-1].startswith("  cuda: torch ")


def test_every_reason_on_every_gpu_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def chosen(config: object, device: str, dtype: torch.dtype) -> object:
        del config
        reasons = {"flash-attn 3": "is not installed"} if device != "cpu" else {}
        return {"text": Choice(f"for {device}, {dtype}", CPU, reasons)}

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA X")
    monkeypatch.setattr(attention, "chosen_attention", chosen)
    head = Choice("ours", chosen_logprobs, {"liger": "failed its check"})
    monkeypatch.setattr(head_choice, "choose_head", lambda device, dtype: head)
    lines = choices(None)
    assert sum("not flash-attn 3: is not installed" in line for line in lines) == 4
    assert sum("not liger: failed its check" in line for line in lines) == 6
    assert "  cuda:1 (NVIDIA X), bfloat16" in lines
    assert any(line.endswith("for cuda:1, torch.bfloat16") for line in lines)
    assert "so nothing" not in lines[-1]


def test_other_models_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    assert main(["doctor", "--model", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "python -m trainer doctor: model: expected the Qwen2.5-VL family, got llama"


def test_its_help_loads_no_torch() -> None:
    code = (
        "import sys\nfrom trainer.__main__ import main\n"
        "try: main(['doctor', '--help'])\nexcept SystemExit: pass\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "--model" in done.stdout
