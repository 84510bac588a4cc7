"""Settings of ``python -m trainer rloo``: one frozen dataclass, from flags and TOML presets.

Nothing here imports torch, so that ``--help`` answers at once.
"""

from __future__ import annotations

import dataclasses
import math
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar

from lineup_fast.charts import STYLES
from lineup_fast.prompts import CAPTION_PROMPT, Recipe
from trainer.baselines.words import check_reward

if TYPE_CHECKING:
    from trainer.sft_config import SftConfig

Settings = TypeVar("Settings")

PRESETS = Path(__file__).parent / "presets"


@dataclass(frozen=True)
class RlooConfig:
    """RLOO on the identification reward. Defaults are the paper's values.

    Source: the paper's recipe and the reference training script (B 32, G 8, 128 captions an update,
    lr 1e-6, AdamW (0.9, 0.95), warm-up 20, cosine to 10 %, clip norm 1, 1024 tokens, 4 epochs,
    seed 42, validation every 50 steps on 500 items).
    """

    run: Path = Path("runs/rloo")
    """Folder of the run; must be new, unless --resume."""
    corpus: Path = Path("corpus")
    """Folder written by `lineup-fast index`."""
    model: str = "Qwen/Qwen2.5-VL-3B-Instruct"
    """Captioner to start from: folder or hub id of the Qwen2.5-VL family."""
    verifier: str = "Qwen/Qwen2.5-14B-Instruct"
    """Frozen reader that identifies the series: folder or hub id of a causal language model."""
    verifier_url: tuple[str, ...] = ()
    """SGLang servers with the verifier, in place of loading --verifier here."""
    reward_url: tuple[str, ...] = ()
    """Reward servers (`lineup-fast serve`), in place of a verifier; their settings count. A server
    with a token expects it in LINEUP_TOKEN."""
    sleep: bool = False
    """Captioner engine and verifier engine give their memory back while they are idle, so that they
    share a GPU with what learns. Their servers need --enable-memory-saver, the verifier's
    --enable-weights-cpu-backup as well."""
    resume: bool = False
    """Go on from the last checkpoint in the run folder."""
    seed: int = 42
    """Decides order, distractors and sampling; with it everything is a function of counters."""

    epochs: float = 4.0
    """Passes over the training series, unless --steps is given."""
    steps: int | None = None
    """Rollout steps, in place of --epochs."""
    charts: int = 32
    """B, series per rollout step, of all ranks together."""
    group_size: int = 8
    """G, captions per series."""
    captions_per_update: int = 128
    """Captions behind one optimizer step; whole groups, divides charts x group-size."""
    micro_groups: int = 4
    """Groups in one forward and backward pass; memory only, the update does not depend on it."""
    charts_at_once: int = 32
    """Charts decoded together; memory only."""
    max_new_tokens: int = 1024
    """Longest caption in tokens."""
    async_depth: int = 0
    """Rollouts that may be sampled before earlier ones are learned from, so that captioner and
    verifier on different devices work at once; 0 = strictly on-policy."""
    sampler: Literal["transformers", "sglang"] = "transformers"
    """What writes the captions: the captioner itself, or SGLang at --sampler-url, which is given
    the weights after every update."""
    sampler_url: tuple[str, ...] = ()
    """SGLang servers with the captioner, on this machine (they load weights out of --run)."""
    importance_cap: float = 2.0
    """Largest importance weight of a token, where captions come from another engine or from
    earlier weights (--sampler sglang, --async-depth); unused otherwise."""
    caption_prompt: str = CAPTION_PROMPT
    """What stands behind the chart in the captioner's prompt."""
    chart_style: str = "default"
    """How charts are drawn: default, paper or tiny."""

    lr: float = 1e-6
    """Highest learning rate."""
    warmup_updates: int = 20
    """Optimizer steps of linear warm-up."""
    lr_floor_frac: float = 0.1
    """Where the cosine ends, as a fraction of --lr."""
    betas: tuple[float, float] = (0.9, 0.95)
    """AdamW's two decay rates."""
    weight_decay: float = 0.0
    """AdamW's decoupled weight decay."""
    clip_norm: float = 1.0
    """Largest norm of the gradient of an update."""
    optimizer: Literal["adamw", "adamw8bit", "adamw-offload"] = "adamw"
    """Where AdamW's moments live: float32 on the device, 8-bit there (bitsandbytes), or float32 in
    the host's memory."""
    lora_rank: int = 0
    """Rank of low-rank adapters on the language model (peft), the only weights that then learn;
    0 = all weights learn."""
    lora_alpha: float = 32.0
    """Adapters are scaled by this / rank."""
    lora_modules: tuple[str, ...] = (
        "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
    )  # fmt: skip
    """Linear layers of the language model that get adapters."""
    frozen_dtype: Literal["float32", "bfloat16"] = "float32"
    """Weights under the adapters; bfloat16 needs --compute-dtype bfloat16."""
    normaliser: Literal["token_mean", "caption_sum"] = "token_mean"
    """Denominator of the loss: valid tokens of the update (the reported run) or valid captions
    (the paper's formula)."""
    whiten: bool = False
    """Standardise advantages over all tokens of a step, as the reference code does unsaid."""

    k: int = 4
    """K, candidates in every question."""
    layout: Literal["caption_first", "candidates_first"] = "caption_first"
    """What comes first in the verifier's prompt."""
    scoring: Literal["label_logprobs", "generate", "soft"] = "label_logprobs"
    """How the verifier's answer is read."""
    decimals: int | Literal["auto"] = "auto"
    """Decimals of printed values; auto = from the target."""
    positions: Literal[1] | None = None
    """1 = ask one position per group and step while training (validation always asks all)."""
    reward_scale: float = 2.0
    """Reward = this x accuracy over the positions."""
    reward: Literal["identification", "answerability", "judge"] = "identification"
    """What a caption is rewarded for: that the verifier identifies the series by it, that it
    answers the --questions from it, or that it grades it well from 1 to 10. For the judge --scoring
    label_logprobs is the likeliest grade, soft the expected one, generate a parsed reply."""
    questions: Path | None = None
    """Bank written by `python -m trainer questions`. Only series that have questions are trained
    and validated on, under any reward, so that arms to be compared share their series."""
    distractors: Literal["nearest", "random", "shuffle", "reverse", "swap", "synthetic"] = "nearest"
    """Where the K - 1 others come from; all kinds are drawn again at every step."""
    lookalikes: Path | None = None
    """A .npy of your own features [n, d], rows in the order of the corpus' ids: neighbours are
    nearest by these, under the corpus' own length, split and overlap rules."""
    mask_numbers: bool = False
    """The verifier reads "#" in place of every number in digits."""

    eval_every: int = 50
    """Steps between validations; step 0 and the last step are always validated."""
    n_val: int = 500
    """Items of the validation set, split "val"; the checkpoint is selected on it."""
    n_test: int = 500
    """Items of the second fixed set, split "test", scored once at the end; selects nothing."""
    checkpoint_every: int = 50
    """Steps between checkpoints."""
    keep_last: int = 2
    """Latest checkpoints kept besides the best one."""
    keep_every: int = 0
    """Checkpoints of every so many steps are kept for good, 0 = none."""
    trackers: tuple[Literal["tensorboard", "wandb", "trackio"], ...] = ()
    """Where metrics are shown besides metrics.jsonl; each has to be installed."""
    collapse_window: int = 20
    """Steps in a row that must show a sign of collapse before the run is ended; 0 = never."""
    collapse_zero_std: float = 0.98
    """Sign: at least this share of groups without a spread of rewards."""
    collapse_invalid: float = 0.5
    """Sign: at least this share of captions without a valid reward."""
    collapse_openings: float = 0.02
    """Sign: at most this share of captions with different first eight words."""
    sample_every: int = 10
    """Steps between sample captions on a terminal."""

    device: str = "cpu"
    """Device of the captioner; with several ranks cuda is each one's own GPU."""
    compute_dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Matmuls of the captioner; weights and optimizer stay float32."""
    gradient_checkpointing: bool = True
    """Recompute activations in the backward pass: less memory, about a third more time."""
    freeze_vision: bool = False
    """Keep the vision tower as it is. Source: the reference trains it, as far as can be seen."""
    verifier_device: str = "cpu"
    """Device of the verifier; with several ranks each has one, cuda is its own GPU."""
    verifier_dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Weights of the verifier."""
    threads: int = 0
    """CPU threads, 0 = all cores; a resumed run must use the same number to be bit-equal."""

    def __post_init__(self) -> None:
        for name in ("charts", "micro_groups", "charts_at_once", "max_new_tokens", "n_val",
                     "n_test", "eval_every", "checkpoint_every", "keep_last",
                     "sample_every"):  # fmt: skip
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}")
        for name in ("collapse_zero_std", "collapse_invalid", "collapse_openings"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}: expected 0 to 1, got {getattr(self, name)}")
        for name in (
            "threads",
            "async_depth",
            "collapse_window",
            "warmup_updates",
            "weight_decay",
            "lr_floor_frac",
        ):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name}: expected at least 0, got {getattr(self, name)}")
        for name in ("epochs", "lr", "clip_norm", "reward_scale", "importance_cap"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name}: expected a number above 0, got {getattr(self, name)}")
        if self.group_size < 2:
            raise ValueError(f"group_size: expected at least 2, got {self.group_size}")
        if self.steps is not None and self.steps < 1:
            raise ValueError(f"steps: expected at least 1, got {self.steps}")
        total = self.charts * self.group_size
        per_update = self.captions_per_update
        if per_update < 1 or per_update % self.group_size or total % per_update:
            raise ValueError(
                f"captions_per_update: expected a multiple of {self.group_size} that divides "
                f"{total}, got {per_update}"
            )
        self._check_sources()
        check_adapters(self)
        check_reward(self)
        if self.chart_style not in STYLES:
            raise ValueError(f"chart_style: expected {', '.join(STYLES)}, got {self.chart_style!r}")
        self.recipe()  # its own checks

    def _check_sources(self) -> None:
        """Raises ValueError where captions or rewards have no source or two, or cannot sleep."""
        if (self.sampler == "sglang") != bool(self.sampler_url):
            raise ValueError(
                f"sampler_url: expected servers with sampler sglang and none with transformers, "
                f"got {list(self.sampler_url)} with {self.sampler}"
            )
        if self.verifier_url and self.reward_url:
            raise ValueError("reward_url: expected it or verifier_url, got both")
        for name in ("sampler_url", "verifier_url", "reward_url"):
            for url in getattr(self, name):
                if not url.startswith(("http://", "https://")):
                    raise ValueError(f"{name}: expected http:// or https://, got {url!r}")
        if self.sleep and not (self.sampler_url or self.verifier_url):
            raise ValueError("sleep: expected sampler_url or verifier_url, an engine that can")
        if self.sleep and self.async_depth:
            raise ValueError(
                f"sleep: expected async_depth 0, where one engine waits for the other, "
                f"got {self.async_depth}"
            )

    def recipe(self) -> Recipe:
        """The question the verifier is asked."""
        return Recipe(
            k=self.k,
            layout=self.layout,
            scoring=self.scoring,
            decimals=self.decimals,
            positions=self.positions,
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return plain(self)


def check_adapters(config: RlooConfig | SftConfig) -> None:
    """Raises ValueError where the settings of adapters do not go together."""
    if config.lora_rank < 0:
        raise ValueError(f"lora_rank: expected at least 0, got {config.lora_rank}")
    if config.lora_rank and not (config.lora_alpha > 0 and config.lora_modules):
        raise ValueError(
            "lora_alpha, lora_modules: expected a number above 0 and some layers, "
            f"got {config.lora_alpha} and {config.lora_modules}"
        )
    if config.frozen_dtype != "float32" and not (
        config.lora_rank and config.compute_dtype == config.frozen_dtype
    ):
        raise ValueError(
            "frozen_dtype: expected float32, unless --lora-rank is set and --compute-dtype is "
            f"the same, got {config.frozen_dtype}"
        )


def plain(config: Any) -> dict[str, Any]:
    """A settings dataclass as values for JSON."""
    return {
        name: str(value) if isinstance(value, Path) else value
        for name, value in dataclasses.asdict(config).items()
    }


def load_preset(name: str) -> RlooConfig:
    """A preset by name, or any TOML file by path.

    Raises
    ------
    ValueError
        No such preset, or a key that is no setting.
    """
    path = Path(name) if name.endswith(".toml") else PRESETS / f"{name}.toml"
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in PRESETS.glob("*.toml")))
        raise ValueError(f"preset: expected {known} or a TOML file, got {name!r}")
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path.name}: expected TOML in UTF-8, got {error}") from None
    fields = {field.name for field in dataclasses.fields(RlooConfig)}
    unknown = sorted(set(values) - fields)
    if unknown:
        raise ValueError(f"{path.name}: expected settings of RlooConfig, got {', '.join(unknown)}")
    for key in ("run", "corpus", "questions", "lookalikes"):
        if key in values:
            values[key] = Path(values[key])
    for key in ("betas", "trackers", "sampler_url", "verifier_url", "reward_url", "lora_modules"):
        if isinstance(values.get(key), list):
            values[key] = tuple(values[key])
    try:
        return RlooConfig(**values)
    except TypeError as error:  # text where a number belongs
        raise ValueError(
            f"{path.name}: expected values of the settings' types, got {error}"
        ) from None


def _refuse(command: str, error: Exception) -> NoReturn:
    print(f"python -m trainer {command}: {error}", file=sys.stderr)
    raise SystemExit(2)


def parse(arguments: list[str]) -> RlooConfig:
    """Settings of `rloo` from the command line: preset first, flags over it."""
    default, rest = RlooConfig(), list(arguments)
    for i, word in enumerate(rest):
        if word.split("=")[0] == "--preset":
            value = word.partition("=")[2] or (rest[i + 1] if i + 1 < len(rest) else "")
            del rest[i : i + (1 if "=" in word else 2)]
            try:
                default = load_preset(value)
            except ValueError as error:
                _refuse("rloo", error)
            break
    names = ", ".join(sorted(p.stem for p in PRESETS.glob("*.toml")))
    description = (
        "Train a captioner with the identification reward (RLOO).\n\n"
        f"--preset NAME sets other defaults: {names}, or a TOML file."
    )
    return flags(RlooConfig, rest, "rloo", description, default)


def flags(
    kind: type[Settings],
    arguments: list[str],
    command: str,
    description: str,
    default: Settings | None = None,
) -> Settings:
    """Settings of a kind with flags over their defaults; exits with 2 on values that do not fit."""
    import tyro

    options: dict[str, Any] = {} if default is None else {"default": default}
    try:
        return tyro.cli(
            kind, args=arguments, prog=f"python -m trainer {command}", description=description,
            **options,
        )  # fmt: skip
    except ValueError as error:
        _refuse(command, error)
