"""``python -m trainer doctor``: `lineup-fast doctor`, and which attention and loss head would run.

Every candidate is compared with the formula on each device that is here, as at the start of a run.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # nothing heavy before a command runs
    import torch

    from trainer.choice import Choice

# Heads of Qwen2.5-VL-3B-Instruct.
_DEFAULT = SimpleNamespace(
    text_config=SimpleNamespace(hidden_size=2048, num_attention_heads=16, num_key_value_heads=2),
    vision_config=SimpleNamespace(hidden_size=1280, num_heads=16),
)


@dataclass(frozen=True)
class DoctorConfig:
    """What is installed here, and what would attend and compute the loss on each device."""

    model: str | None = None
    """Folder or hub id of a captioner; its heads are checked. None = those of Qwen2.5-VL-3B."""


def run(config: DoctorConfig) -> int:
    """Prints the report; returns the exit status."""
    from lineup_fast import doctor

    try:
        model_config = _model_config(config.model)
    except ValueError as error:
        print(f"python -m trainer doctor: {error}", file=sys.stderr)
        return 2
    print(doctor.report())
    print("\n".join(choices(model_config)))
    return 0


def choices(model_config: Any) -> list[str]:
    """Lines about attention and loss head on a CPU and on each GPU."""
    import torch

    lines = ["trainer", *(f"  {line}" for line in _optimizers())]
    devices = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
    for device in devices:
        name = "" if device == "cpu" else f" ({torch.cuda.get_device_name(device)})"
        for dtype in (torch.float32, torch.bfloat16):
            lines.append(f"  {device}{name}, {str(dtype).removeprefix('torch.')}")
            lines += _of_device(model_config, device, dtype)
    if len(devices) == 1:
        built = torch.version.cuda
        why = f"torch sees no GPU (built for CUDA {built})" if built else "torch has no CUDA in it"
        lines.append(f"  cuda: {why}, so nothing of it can be checked")
    return lines


def _optimizers() -> list[str]:
    from trainer.optim import OPTIMIZERS, usable

    found = {kind: usable(kind) for kind in OPTIMIZERS}
    return [f"{kind:<20} {'' if ok else 'not here: '}{why}" for kind, (ok, why) in found.items()]


def _of_device(model_config: Any, device: str, dtype: torch.dtype) -> list[str]:
    from trainer.attention import chosen_attention
    from trainer.head_choice import choose_head

    found: dict[str, Choice[Any]] = {
        f"attention, {part}": choice
        for part, choice in chosen_attention(model_config, device, dtype).items()
    }
    found["loss head"] = choose_head(device, dtype)
    lines = []
    for what, choice in found.items():
        lines.append(f"    {what:<18} {choice.name}")
        lines += [f"    {'':<18} not {name}: {why}" for name, why in choice.passed_over.items()]
    return lines


def _model_config(model: str | None) -> Any:
    if model is None:
        return _DEFAULT
    from transformers import AutoConfig

    try:
        config: Any = AutoConfig.from_pretrained(model)
    except (OSError, ValueError) as error:
        raise ValueError(f"model: expected a folder or hub id, got {model!r} ({error})") from error
    if config.model_type != "qwen2_5_vl":
        raise ValueError(f"model: expected the Qwen2.5-VL family, got {config.model_type}")
    return config
