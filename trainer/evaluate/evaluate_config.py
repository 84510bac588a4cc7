"""Settings of ``python -m trainer evaluate``."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from trainer.evaluate.bottleneck.config import BottleneckConfig

if TYPE_CHECKING:
    Words = tuple[str, ...]
else:
    from typing import Annotated

    import tyro

    Words = Annotated[tuple[str, ...], tyro.conf.Positional]


@dataclass(frozen=True)
class EvaluateConfig:
    """Measure captions on benchmarks: results.json, a value per series, tables side by side."""

    captions: Words
    """[LABEL=]FILE or [LABEL=]FOLDER: captions.jsonl of `trainer caption`, or a run folder that
    holds such files. The same label again adds files."""
    benchmarks: tuple[str, ...] = ()
    """Folders made by `trainer benchmark`."""
    metrics: tuple[str, ...] = ()
    """Which ones; none given = all."""
    nli: str = "tasksource/deberta-base-long-nli"
    """entailment: the NLI model, a folder or hub id."""
    tau: float = 0.5
    """entailment: a reference counts as entailed from this probability on."""
    too_long: Literal["refuse", "leave out"] = "refuse"
    """entailment: what becomes of texts longer than the model reads; they are never cut."""
    verifiers: tuple[str, ...] = ()
    """identify_series, identify_caption: [NAME=]MODEL of each frozen reader, a folder, a hub id or
    the http address of an SGLang server; the figure is their mean. None given = not measured."""
    k: int = 4
    """identify: candidates of a question, 2 to 12."""
    layout: Literal["caption_first", "candidates_first"] = "caption_first"
    """identify_series: what comes first in the prompt."""
    decimals: int | None = None
    """identify: digits after the point of the numbers a reader sees; None = four significant ones,
    at most three after the point. Readers of whole numbers, such as the tiny one, need 0."""
    bottleneck: BottleneckConfig = field(default_factory=BottleneckConfig)
    device: str = "cpu"
    """Device of the models that measure."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Their weights and matmuls."""
    threads: int = 0
    """CPU threads, 0 = all cores."""
    out: Path | None = None
    """Folder of results.json; None = the run folder, where exactly one is given."""
    against: str | None = None
    """The captioner that the others are compared with; None = the first one."""
    earlier: tuple[Path, ...] = ()
    """Folders of earlier results to show and compare beside the new ones."""
    trained_on: tuple[str, ...] = ()
    """[LABEL=]FOLDER: corpus a captioner was trained on; None given = as its run recorded."""
    resume: bool = False
    """Keep what an evaluation that was cut off left in --out, of the same settings, captions and
    benchmarks."""
    allow: bool = False
    """Measure series that a captioner was trained on, and report them."""

    def __post_init__(self) -> None:
        for name in ("benchmarks", "metrics", "verifiers"):
            told = tuple(part for word in getattr(self, name) for part in word.split(",") if part)
            object.__setattr__(self, name, told)
        if not 0 < self.tau < 1:
            raise ValueError(f"tau: expected between 0 and 1, got {self.tau}")
        if self.decimals is not None and not 0 <= self.decimals <= 12:
            raise ValueError(f"decimals: expected 0 to 12, got {self.decimals}")
        if self.threads < 0:
            raise ValueError(f"threads: expected at least 0, got {self.threads}")
        for name in ("captions", "benchmarks"):
            if not getattr(self, name):
                raise ValueError(f"{name}: expected at least one, got none")

    def settings(self) -> dict[str, Any]:
        """What decides the figures besides captions and benchmarks; plain values for JSON."""
        told = asdict(self)
        return {name: value for name, value in told.items() if name not in _NOT_OF_FIGURES}


_NOT_OF_FIGURES = frozenset(
    ("captions", "benchmarks", "metrics", "out", "against", "earlier", "trained_on", "allow")
) | {"resume", "threads", "device"}
