"""Low-rank adapters (LoRA) on a captioner's language model, through peft.

Layers are replaced inside the model, so every attribute path stays what it was. Base weights are
frozen; what learns, and what a checkpoint holds, is two float32 matrices a layer, in peft's own
file format: `peft.PeftModel.from_pretrained(base, checkpoint)` reads it.

Source: Hu et al. 2021, W' = W + (alpha / rank) B A with B = 0 at the start.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

_ADAPTER = "default"
_CONFIG = "adapter_config.json"
_WEIGHTS = "adapter_model.safetensors"
_PREFIX = "base_model.model."  # of every name in peft's files
_BASE = ".base_layer."


@dataclass(frozen=True)
class LoraSettings:
    """rank and alpha of the adapters, names of the linear layers they sit on, seed of A."""

    rank: int
    alpha: float
    modules: tuple[str, ...]
    seed: int = 0


def base_of(path: str | Path) -> str | None:
    """What the adapter in a folder was trained on; None where `path` holds no adapter."""
    file = Path(path) / _CONFIG
    if not file.is_file():
        return None
    base = json.loads(file.read_text(encoding="utf-8")).get("base_model_name_or_path")
    if not base:
        raise ValueError(f"{file}: expected base_model_name_or_path, got none")
    return str(base)


def wrap(model: Any, settings: LoraSettings) -> None:
    """Puts fresh adapters on the language model's layers and freezes everything else, in place.

    Raises:
        ValueError: peft is missing, or no layer has one of the names.
    """
    peft = _peft()
    names = {name.rpartition(".")[2] for name, _ in model.named_modules() if _in_text(name)}
    unknown = sorted(set(settings.modules) - names)
    if unknown:
        raise ValueError(f"lora_modules: expected layers of the model, got {', '.join(unknown)}")
    config = peft.LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=0.0,
        target_modules=rf"model\.language_model\..*\.({'|'.join(settings.modules)})",
    )
    with torch.random.fork_rng():
        torch.manual_seed(settings.seed)
        _inject(model, config)


def load(model: Any, folder: Path) -> None:
    """Puts the adapters of a checkpoint folder on the model, in place."""
    from safetensors.torch import load_file

    peft = _peft()
    with torch.random.fork_rng():  # peft draws an A that is overwritten below
        _inject(model, peft.LoraConfig.from_pretrained(folder))
    stored = load_file(folder / _WEIGHTS)
    own = _adapter_tensors(model)
    if stored.keys() != own.keys():
        odd = sorted(stored.keys() ^ own.keys())
        raise ValueError(f"{_WEIGHTS}: expected the model's adapters, got other names: {odd[:3]}")
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(stored[name])


def save(model: Any, folder: Path, base: str) -> None:
    """Adapters alone: adapter_model.safetensors and adapter_config.json.

    base: folder or hub id of the weights they belong to; a folder is written as an absolute path.
    """
    from safetensors.torch import save_file

    config = model.peft_config[_ADAPTER]
    config.base_model_name_or_path = str(Path(base).resolve()) if Path(base).is_dir() else base
    config.inference_mode = True
    config.task_type = "CAUSAL_LM"
    config.save_pretrained(folder)
    tensors = {name: x.detach().contiguous() for name, x in _adapter_tensors(model).items()}
    save_file(tensors, folder / _WEIGHTS)


def is_wrapped(model: Any) -> bool:
    """Whether the model carries adapters."""
    return hasattr(model, "peft_config")


def merged_weights(model: Any) -> Iterator[tuple[str, Tensor]]:
    """Every weight under its name without adapters, one at a time, adapters added in float32.

    What an engine that knows no adapters is sent; the plain weights of a model without any.
    Merged weights are float32 (float64 for float64), the others as the model holds them.
    """
    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            continue
        if _BASE in name:
            layer = model.get_submodule(name.partition(_BASE)[0])
            wide = torch.promote_types(parameter.dtype, torch.float32)
            with torch.no_grad():
                merged = parameter.to(wide)
                if name.endswith(".weight"):
                    merged = merged + layer.get_delta_weight(_ADAPTER).to(wide)
            yield name.replace(_BASE, "."), merged
        else:
            yield name, parameter.detach()


def merge(model: Any) -> None:
    """Adds the adapters to the weights and removes them, in place.

    Raises:
        ValueError: the weights are narrower than float32, where the sum would be rounded away.
    """
    for name, layer in [(n, m) for n, m in model.named_modules() if hasattr(m, "base_layer")]:
        linear = layer.base_layer
        if linear.weight.dtype not in (torch.float32, torch.float64):
            raise ValueError(f"model: expected float32 weights to merge, got {linear.weight.dtype}")
        with torch.no_grad():
            linear.weight += layer.get_delta_weight(_ADAPTER)
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, linear)
    del model.peft_config


def _inject(model: Any, config: Any) -> None:
    _peft().inject_adapter_in_model(config, model, _ADAPTER)
    for name, parameter in model.named_parameters():
        learns = ".lora_" in name
        parameter.requires_grad_(learns)
        if learns:  # peft gives them the dtype of the layer
            wide = torch.promote_types(parameter.dtype, torch.float32)
            parameter.data = parameter.data.to(wide)


def _adapter_tensors(model: Any) -> dict[str, Tensor]:
    """Adapter weights by the names peft's files give them."""
    return {
        _PREFIX + name.replace(f".{_ADAPTER}.", "."): parameter
        for name, parameter in model.named_parameters()
        if ".lora_" in name
    }


def _in_text(name: str) -> bool:
    return name.startswith("model.language_model.")


def _peft() -> Any:
    try:
        import peft
    except ImportError as error:
        raise ValueError(
            "lora_rank: expected peft to be installed (pip install 'peft>=0.15'), got none"
        ) from error
    return peft
