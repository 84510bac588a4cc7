"""Settings of the bottleneck. Nothing here imports torch."""

from __future__ import annotations

from dataclasses import dataclass

ENCODER = "google/embeddinggemma-300m"
SEEDS = (2020, 2021, 2022, 2023, 2024)


@dataclass(frozen=True)
class Lora:
    """Low-rank updates of the encoder's linear layers. Source: reference, ts_downstream."""

    r: int = 16
    alpha: int = 32
    dropout: float = 0.05


@dataclass(frozen=True)
class Decoder:
    """How the decoder learns; the defaults are the paper's, without LoRA.

    hidden: width of the head. batch: windows behind an optimizer step. micro_batch: texts in one
    pass where the encoder learns too (memory only). patience: epochs without a better validation.
    lora: None leaves the encoder as it is, and every caption is encoded once.
    """

    hidden: int = 256
    dropout: float = 0.1
    lr: float = 3e-4
    weight_decay: float = 1e-4
    batch: int = 32
    micro_batch: int = 8
    epochs: int = 30
    patience: int = 6
    seeds: tuple[int, ...] = SEEDS
    lora: Lora | None = None

    def __post_init__(self) -> None:
        for name in ("hidden", "batch", "micro_batch", "epochs", "patience"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}")
        if not self.seeds or len(set(self.seeds)) != len(self.seeds):
            raise ValueError(f"seeds: expected different numbers, got {list(self.seeds)}")


@dataclass(frozen=True)
class BottleneckConfig:
    """Decode numbers from captions alone; benchmarks that are windows of a long channel only."""

    encoder: str = ENCODER
    """Text encoder: folder or hub id."""
    lora: bool = True
    """Learn low-rank updates of the encoder (needs peft); without, every caption is encoded once,
    which a CPU can do."""
    horizon: int | None = None
    """Steps to forecast; None = those the benchmark kept room for."""
    seeds: tuple[int, ...] = SEEDS
    """A decoder is trained with each, and errors are averaged."""
    epochs: int = 30
    """Most passes over the train windows; ends earlier where validation gets no better."""

    def __post_init__(self) -> None:
        if self.horizon is not None and self.horizon < 1:
            raise ValueError(f"horizon: expected at least 1, got {self.horizon}")
        self.decoder()

    def decoder(self) -> Decoder:
        """How the decoder learns under these settings."""
        return Decoder(epochs=self.epochs, seeds=self.seeds, lora=Lora() if self.lora else None)
