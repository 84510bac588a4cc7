"""Sets of runs: which arms there are, what they may differ in, and running or resuming them.

An arm is one run folder, trained by one subprocess: a run of rloo, or of sft where it says
``command = "sft"``. Arms of a grid are meant to be compared, so runs of one command may differ in
the reward (or the teacher's captions) and in nothing that decides how it is learned: same series,
same number of updates, same learning rates. Both commands start from one captioner.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainer.baselines.words import reward_name
from trainer.config import RlooConfig, load_preset, parse
from trainer.config import flags as parse_flags
from trainer.record import MAY_CHANGE
from trainer.sft_config import SftConfig

Arm = RlooConfig | SftConfig

ROOT = Path(__file__).parents[2]
# Words that would change an arm's training beside its reward: alike in all arms.
ALIKE = (
    "corpus", "questions", "model", "seed", "epochs", "steps", "charts", "group_size",
    "captions_per_update", "max_new_tokens", "async_depth", "sampler", "importance_cap",
    "caption_prompt", "chart_style", "lr", "warmup_updates", "lr_floor_frac", "betas",
    "weight_decay", "clip_norm", "normaliser", "whiten", "reward_scale", "layout", "decimals",
    "positions", "eval_every", "n_val", "n_test", "compute_dtype", "freeze_vision",
    "optimizer", "lora_rank", "lora_alpha", "lora_modules", "frozen_dtype",
    "updates", "warmup_frac", "max_tokens", "min_characters",
)  # fmt: skip
# What runs of sft share with those of rloo: words of [common] and the preset that hold for both.
SHARED = (
    "corpus", "model", "caption_prompt", "chart_style", "compute_dtype", "freeze_vision",
    "gradient_checkpointing", "device", "threads", "seed",
)  # fmt: skip
SHARED_ALIKE = ("corpus", "model", "caption_prompt", "chart_style", "compute_dtype",
                "freeze_vision")  # fmt: skip
_KEYS = {"out", "preset", "differ", "common", "arms", "reading"}
_READING = {"corpus", "k", "n", "split", "arms", "readers", "captions", "recipe", "device", "dtype"}


@dataclass(frozen=True)
class Grid:
    """A grid.toml, checked.

    arms: settings of each run by name. reading: the words of [reading], empty where there is none.
    """

    out: Path
    arms: dict[str, Arm] = field(default_factory=dict)
    reading: dict[str, Any] = field(default_factory=dict)


def read_grid(path: Path) -> Grid:
    """The grid of a TOML file.

    Raises:
        ValueError: unknown words, settings that do not fit, or arms that differ in more than their
            rewards and are not allowed to by `differ`.
    """
    try:
        words = tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path.name}: expected TOML in UTF-8, got {error}") from None
    unknown = sorted(set(words) - _KEYS)
    if unknown:
        raise ValueError(f"{path.name}: expected {', '.join(sorted(_KEYS))}, got {unknown}")
    if not isinstance(words.get("out"), str):
        raise ValueError(f"out: expected a folder, got {words.get('out')!r}")
    out = Path(words["out"])
    base = load_preset(words["preset"]) if "preset" in words else RlooConfig()
    arms = {}
    for name, own in words.get("arms", {}).items():
        if not name.replace("-", "").replace("_", "").isalnum():
            raise ValueError(f"arms: expected names of letters, digits, - and _, got {name!r}")
        arms[name] = _arm(name, base, words.get("common", {}), own, out / name)
    reading = words.get("reading", {})
    unknown = sorted(set(reading) - _READING)
    if unknown:
        raise ValueError(f"reading: expected {', '.join(sorted(_READING))}, got {unknown}")
    if not arms and not reading:
        raise ValueError(f"{path.name}: expected [arms.NAME] or [reading], got neither")
    _check_alike(arms, set(words.get("differ", ())))
    return Grid(out, arms, reading)


def _arm(
    name: str, base: RlooConfig, common: dict[str, Any], own: dict[str, Any], run: Path
) -> Arm:
    """Settings of an arm: its own words over those of [common] over the preset's.

    An arm of sft takes from the latter two what both commands share, and the length of captions.
    """
    command = own.get("command", "rloo")
    own = {key: value for key, value in own.items() if key != "command"}
    if command not in ("rloo", "sft"):
        raise ValueError(f"arms.{name}: expected command rloo or sft, got {command!r}")
    start = _replaced(name, "rloo", base, common, run)
    if command == "rloo":
        config = _replaced(name, command, start, own, run)
    else:
        shared = {word: getattr(start, word) for word in SHARED}
        plain = SftConfig(**shared, max_tokens=start.max_new_tokens, run=run)
        config = _replaced(name, command, plain, own, run)
    try:
        words = flags(config)
        same = config == (
            parse(words) if command == "rloo" else parse_flags(SftConfig, words, "sft", "")
        )
    except SystemExit:
        same = False  # it has said why
    if not same:
        raise ValueError(f"arms.{name}: expected values that {command} takes, got {common | own}")
    return config


def _replaced(name: str, command: str, base: Any, words: dict[str, Any], run: Path) -> Any:
    """Settings with words of the grid over them."""
    unknown = sorted(set(words) - ({f.name for f in dataclasses.fields(base)} - {"run", "resume"}))
    if unknown:
        raise ValueError(f"arms.{name}: expected settings of {command}, got {', '.join(unknown)}")
    values: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else
        Path(value) if key in ("corpus", "questions", "lookalikes", "data") else value
        for key, value in words.items()
    }  # fmt: skip
    try:
        return dataclasses.replace(base, **values, run=run, resume=False)
    except (ValueError, TypeError) as error:
        raise ValueError(f"arms.{name}: {error}") from None


def _check_alike(arms: dict[str, Arm], may_differ: set[str]) -> None:
    """Raises ValueError where arms could not be compared."""
    unknown = sorted(may_differ - set(ALIKE))
    if unknown:
        raise ValueError(f"differ: expected some of {', '.join(ALIKE)}, got {', '.join(unknown)}")
    firsts: dict[type, str] = {}
    for name, config in arms.items():
        if isinstance(config, RlooConfig) and config.positions is not None:
            raise ValueError(
                f"arms.{name}: expected all positions asked in a grid, got positions "
                f"{config.positions}"
            )
        first = firsts.setdefault(type(config), name)
        _check_pair(name, config, first, arms[first], ALIKE, may_differ)
        anyone = next(iter(arms))
        _check_pair(name, config, anyone, arms[anyone], SHARED_ALIKE, may_differ)


def _check_pair(
    name: str, config: Arm, first_name: str, first: Arm, words: Sequence[str], may_differ: set[str]
) -> None:
    """Raises ValueError where two arms differ in one of the words that both have."""
    for word in words:
        mine, its = getattr(config, word, None), getattr(first, word, None)
        if mine != its and word not in may_differ:
            raise ValueError(
                f"arms.{name}: expected {word} {its!r} as in {first_name}, so that only the "
                f"reward differs (or differ = [{word!r}]), got {mine!r}"
            )


def command_of(config: Arm) -> str:
    """rloo or sft."""
    return "rloo" if isinstance(config, RlooConfig) else "sft"


def flags(config: Arm) -> list[str]:
    """The command line that says what settings say, as far as they are not the defaults."""
    words: list[str] = []
    for item in dataclasses.fields(config):
        value = getattr(config, item.name)
        name = "--" + item.name.replace("_", "-")
        if value == item.default or item.name == "resume":
            continue
        if isinstance(value, bool):
            words.append(name if value else f"--no-{name[2:]}")
        elif isinstance(value, tuple):
            words += [name, *map(str, value)]
        else:
            words += [name, str(value)]
    return words


def status(config: Arm) -> str:
    """new, started or finished.

    Raises:
        ValueError: the run folder was started with other settings.
    """
    path = config.run / "config.json"
    if not path.is_file():
        return "new"
    started = json.loads(path.read_text(encoding="utf-8"))["config"]
    wanted = json.loads(json.dumps(config.as_dict()))
    changed = sorted(
        key for key in wanted if key not in MAY_CHANGE and started.get(key) != wanted[key]
    )
    if changed:
        raise ValueError(
            f"{config.run}: expected the settings the run was started with, got other "
            f"{', '.join(changed)}"
        )
    return "finished" if (config.run / "final.json").is_file() else "started"


def run_arm(config: Arm) -> int:
    """Trains an arm to its end in a process of its own, from its last checkpoint if it has one.

    Returns the exit status; what it says goes to RUN.log. Ctrl+C reaches the run, which saves a
    checkpoint, and is raised again when it has ended.
    """
    command = [sys.executable, "-m", "trainer", command_of(config), *flags(config)]
    if status(config) == "started":
        command.append("--resume")
    return run_process(command, config.run.with_suffix(".log"))


def run_process(command: list[str], log: Path) -> int:
    """Runs a command of the trainer to its end; output is added to a log. Returns its status."""
    log.parent.mkdir(parents=True, exist_ok=True)
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    with log.open("a", encoding="utf-8") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, env=os.environ | {"PYTHONPATH": path}
        )
        try:
            return process.wait()
        except KeyboardInterrupt:
            process.wait()
            raise


def row(config: Arm, code: int | None = None) -> dict[str, Any]:
    """What the table says of an arm: its reward, and how its captions did on the second fixed set.

    code: exit status, where it was run just now. corrected: accuracy above chance, for the
    identification reward; accuracies of different rewards or K are no measure of one another.
    """
    state = status(config)
    if code:
        state = "interrupted" if code == 130 else f"failed ({code})"
    found: dict[str, Any] = {"status": state, "run": str(config.run)}
    if isinstance(config, SftConfig):
        found |= {"reward": "sft", "k": None, "data": str(config.data)}
    else:
        k = config.k if config.reward == "identification" else None
        found |= {"reward": reward_name(config), "k": k, "verifier": config.verifier}
    path = config.run / "final.json"
    if not path.is_file():
        return found
    final = json.loads(path.read_text(encoding="utf-8"))
    found |= {key: final.get(key) for key in ("start_acc", "best_acc", "best_step", "floor", "n")}
    if found["k"] is not None and final.get("best_acc") is not None:
        chance = 1 / found["k"]
        found["corrected"] = (final["best_acc"] - chance) / (1 - chance)
    return found


def different_data(arms: dict[str, Arm]) -> str | None:
    """In words, what files have changed between the starts of arms; None where none has."""
    for key, what in (("corpus_fingerprint", "corpora"), ("bank_fingerprint", "banks")):
        found: dict[str, str] = {}
        for name, config in arms.items():
            path = config.run / "config.json"
            told = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
            if key in told:
                found.setdefault(told[key], name)
        if len(found) > 1:
            return f"arms were started on different {what} of one path: {', '.join(found.values())}"
    return None


def last_words(log: Path, n: int = 3) -> str:
    """The end of a log, for the terminal."""
    if not log.is_file():
        return ""
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-n:])
