"""``python -m trainer export``: a checkpoint as a folder that can be put on the hub.

Adapters are merged in float32 and the logits compared before anything is written. The model card
holds what the run folder says about the checkpoint, and nothing else.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lineup_fast.cli import one_line

# Read by transformers' processors; the trainer itself makes pixels without one.
PROCESSOR_FILES = (
    "preprocessor_config.json",
    "processor_config.json",
    "video_preprocessor_config.json",
)
TOLERANCE = 1e-5  # of logits, as a fraction of the largest one where that is above 1


def main(arguments: Sequence[str]) -> int:
    """Runs the command; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m trainer export",
        description="Write a checkpoint as a folder that from_pretrained loads: adapters merged, "
        "tokenizer, processor files and model card beside the weights.",
    )
    parser.add_argument("--checkpoint", type=Path, required=True, metavar="RUN/checkpoints/step-N")
    parser.add_argument("--to", type=Path, required=True, metavar="FOLDER", help="a new folder")
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16"), default="float32", help="of the weights written"
    )
    options = parser.parse_args(arguments)
    try:
        export(options.checkpoint, options.to, dtype=options.dtype)
    except (ValueError, OSError) as error:
        print(f"python -m trainer export: {one_line(error)}", file=sys.stderr)
        return 2
    print(f"wrote {options.to}")
    return 0


def export(checkpoint: Path, to: Path, *, dtype: str = "float32") -> float:
    """Writes the folder, whole or not at all; returns the largest change of a logit by merging.

    Raises:
        ValueError: no checkpoint of a run, a folder that exists, or logits that merging changed.
    """
    run, settings = _run_of(checkpoint)
    if to.exists():
        raise ValueError(f"to: expected a new folder, got {to}")
    import torch

    from trainer import lora
    from trainer.policy import Captioner

    config = settings["config"]
    captioner = Captioner.load(checkpoint, caption_prompt=config["caption_prompt"])
    change, adapted = 0.0, lora.is_wrapped(captioner.model)
    if adapted:
        before = _logits(captioner, config["chart_style"])
        lora.merge(captioner.model)
        change = float((_logits(captioner, config["chart_style"]) - before).abs().max())
        allowed = TOLERANCE * max(1.0, float(before.abs().max()))
        if not change <= allowed:
            raise ValueError(
                f"logits: expected a change of at most {allowed:.1g}, got {change:.1g}"
            )
    captioner.model.to(getattr(torch, dtype))
    partial = to.with_name(f".partial-{to.name}")
    shutil.rmtree(partial, ignore_errors=True)  # of an export that was killed
    partial.mkdir(parents=True)
    captioner.save(partial)
    for name, content in processor_files(config["model"]).items():
        (partial / name).write_bytes(content)
    card = model_card(run, settings, checkpoint, adapted=adapted, dtype=dtype)
    (partial / "README.md").write_text(card, encoding="utf-8")
    partial.rename(to)
    return change


def processor_files(model: str) -> dict[str, bytes]:
    """Processor files of the captioner the run started from, by name; those there are."""
    from transformers.utils.hub import cached_files

    if Path(model).is_dir():
        paths = [Path(model) / name for name in PROCESSOR_FILES]
    else:
        found = cached_files(
            model,
            list(PROCESSOR_FILES),
            _raise_exceptions_for_gated_repo=False,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
        )
        paths = [Path(path) for path in found or []]
    return {path.name: path.read_bytes() for path in paths if path.is_file()}


def model_card(
    run: Path, settings: dict[str, Any], checkpoint: Path, *, adapted: bool, dtype: str
) -> str:
    """README.md of the exported folder; figures are those of the run folder's files."""
    config, step = settings["config"], _step(checkpoint)
    local = Path(config["model"]).is_dir()
    head = ["---", "library_name: transformers", "pipeline_tag: image-text-to-text"]
    if not local:
        head.append(f"base_model: {config['model']}")
    how = "all weights"
    if adapted:
        modules = ", ".join(config["lora_modules"])
        how = f"adapters of rank {config['lora_rank']} on {modules}; merged here in float32"
    elif config.get("freeze_vision"):
        how = "all weights but the vision tower's"
    facts = {
        "Started from": f"`{config['model']}`",
        "Checkpoint": f"step {step} of `{run.name}`",
        "Trained": how,
        "Weights here": dtype,
        **_asked(settings),
        "Corpus fingerprint": f"`{settings['corpus_fingerprint']}`",
        "Charts": f"style `{settings['style']['name']}`, `{settings['style']['fingerprint']}`",
        "Prompt behind the chart": f"`{config['caption_prompt']}`",
        "Learning rate": f"{config['lr']:g}",
        "Captions an update": str(config["captions_per_update"]),
        "Versions": ", ".join(f"{k} {v}" for k, v in settings["versions"].items()),
    }
    lines = [*head, "---", f"# Captioner of time-series charts, step {step}", ""]
    lines += [
        f"Describes a line chart of a time series. Trained {_TAUGHT[_lesson(settings)]}.",
        "",
        *(f"- {name}: {value}" for name, value in facts.items()),
        "",
        "## Validation",
        "",
        *_results(run, step),
        "",
    ]
    return "\n".join(lines)


_TAUGHT = {
    "identification": "with the identification reward: a frozen reader has to pick the series out "
    "of look-alikes by the caption alone",
    "answerability": "with the answerability reward: a frozen reader has to answer questions about "
    "the series from the caption alone",
    "judge": "with the grades of a frozen judge, which reads the values beside the caption",
    "sft": "on captions of a teacher",
}


def _lesson(settings: dict[str, Any]) -> str:
    """What a run learned from: a reward by its config word, or sft."""
    if settings.get("command") == "sft":
        return "sft"
    return str(settings["config"].get("reward", "identification"))


def _asked(settings: dict[str, Any]) -> dict[str, str]:
    """Facts about the verifier's question, or the teacher's captions."""
    config = settings["config"]
    if _lesson(settings) == "sft":
        return {"Teacher captions": f"`{Path(config['data']).name}`"}
    return {
        "Verifier": f"`{config['verifier']}`",
        "Recipe of the question": f"`{settings['recipe']}`",
        "Prompt version": f"`{settings['prompt_version']}`",
    }


def _results(run: Path, step: int) -> list[str]:
    """Sentences on accuracy, or on a teacher's captions' loss, for what is on record."""
    lines = []
    best = _read(run / "best.json")
    if best is not None:
        what, key = "accuracy", "val/acc"
        if key not in best:
            what, key = "loss in nats a token", "val/loss"
        lines.append(
            f"Best validation {what} of the run: {best[key]:.4f} at step {best['step']}"
            f"{' (this checkpoint)' if best['step'] == step else ''}."
        )
    rows = run / "metrics.jsonl"
    for line in rows.read_text(encoding="utf-8").splitlines() if rows.is_file() else []:
        row = json.loads(line)
        if row["step"] == step and row.get("val/acc") is not None:
            lines.append(
                f"This checkpoint: accuracy {row['val/acc']:.4f}; without a caption "
                f"{row['val/floor']:.4f}."
            )
    final = _read(run / "final.json")
    if final is not None and final["best_step"] == step and "best_acc" in final:
        lines.append(
            f"Second fixed set ({final['n']} series, selected nothing): {final['best_acc']:.4f}; "
            f"the captioner it started from {final['start_acc']:.4f}."
        )
    return lines or ["None on record."]


def _run_of(checkpoint: Path) -> tuple[Path, dict[str, Any]]:
    """The run folder of a checkpoint, and its config.json."""
    run = checkpoint.resolve().parent.parent
    settings = _read(run / "config.json")
    if settings is None or not checkpoint.is_dir() or _step(checkpoint) < 0:
        raise ValueError(
            f"checkpoint: expected RUN/checkpoints/step-NNNNNN of a run, got {checkpoint}"
        )
    return run, settings


def _step(checkpoint: Path) -> int:
    match = re.fullmatch(r"step-(\d+)", checkpoint.resolve().name)
    return int(match[1]) if match else -1


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def _logits(captioner: Any, style: str) -> Any:
    """Logits float32 [P, V] of the prompt of one chart, through the model's own forward."""
    import numpy as np
    import torch

    from lineup_fast import charts

    series = 50 + 40 * np.sin(np.arange(48) / 5)
    prompts = captioner.prompts(charts.render([series], charts.STYLES[style]))
    with torch.no_grad():
        return captioner.model(
            input_ids=prompts.input_ids,
            position_ids=prompts.positions,
            pixel_values=prompts.pixel_values,
            image_grid_thw=prompts.grid,
            use_cache=False,
        ).logits[0]
