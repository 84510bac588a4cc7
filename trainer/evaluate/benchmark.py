"""A benchmark: series with neighbours, and what people said about them where anybody did.

In memory a `Benchmark`; on disk the folder of a corpus, so that `python -m trainer caption --data
FOLDER --split all` captions it, with benchmark.json and, where windows were cut out of longer
channels, channels.npz beside it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lineup_fast.corpus import Corpus
from trainer.evaluate.table import checked_name

Floats = NDArray[np.float64]
_DOCUMENT, _CHANNELS = "benchmark.json", "channels.npz"


@dataclass(frozen=True, eq=False)
class Benchmark:
    """Series to be captioned and judged by.

    name: of the benchmark, in tables and files.
    corpus: the series with their source, start and evaluation neighbours (`corpus.pool`, nearest
        first). All of one split, so that neighbours come from the whole benchmark.
    references: by id, what people said of the series; ids without references are not in it.
    not_asked: by id, why identification asks no question about a series (too long, too few
        neighbours, a neighbour that prints alike); the other metrics still cover it.
    channels: by source, the whole channel f64[L] that windows were cut from, on the scale of the
        windows: series(id) equals channels[source][start : start + T]. Empty where the series came
        as they are.
    meta: how it was made (files, filters and what they cost, neighbour rule), JSON types only.
    """

    name: str
    corpus: Corpus
    references: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    not_asked: Mapping[str, str] = field(default_factory=dict)
    channels: Mapping[str, Floats] = field(default_factory=dict)
    meta: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        checked_name("name", self.name)
        known = set(self.ids)
        for what, by_id in (("references", self.references), ("not_asked", self.not_asked)):
            strange = sorted(by_id.keys() - known)
            if strange:
                raise ValueError(f"{what}: expected ids of the corpus, got {strange[0]!r}")
        empty = sorted(i for i, texts in self.references.items() if not texts)
        if empty:
            raise ValueError(f"references: expected at least one text, got none for {empty[0]}")

    @property
    def ids(self) -> list[str]:
        """Every series, in a fixed order."""
        return self.corpus.ids(k=1)

    @property
    def asked_ids(self) -> list[str]:
        """The series that identification asks about: all that are not in `not_asked`."""
        return [id_ for id_ in self.ids if id_ not in self.not_asked]

    def series(self, id_: str) -> Floats:
        """Values f64[T], read-only."""
        return self.corpus.series(id_)

    def source(self, id_: str) -> str:
        """The channel the series comes from, "data set/variable"."""
        return self.corpus.meta(id_).source

    def start(self, id_: str) -> int:
        """Position of its first value in the source."""
        return self.corpus.meta(id_).start

    def neighbours(self, id_: str) -> list[str]:
        """Ids of its evaluation neighbours, nearest first."""
        return self.corpus.pool(id_)

    def after(self, id_: str, n_steps: int) -> Floats:
        """The n values that follow the series in its channel, f64[n].

        Raises:
            ValueError: the benchmark has no channels, or this one ends before that.
        """
        source, start = self.source(id_), self.start(id_)
        if source not in self.channels:
            raise ValueError(f"{self.name}: expected a channel {source!r}, got none")
        first = start + len(self.series(id_))
        values = self.channels[source][first : first + n_steps]
        if len(values) < n_steps:
            raise ValueError(
                f"n_steps: expected at most {len(values)} values behind {id_}, got {n_steps}"
            )
        return values

    @property
    def fingerprint(self) -> str:
        """sha256 over everything that decides a result: corpus, references, questions left out."""
        digest = hashlib.sha256(self.corpus.fingerprint.encode())
        told = [self.name, sorted(self.references.items()), sorted(self.not_asked.items())]
        digest.update(json.dumps(told).encode())
        for source, values in sorted(self.channels.items()):
            digest.update(source.encode() + np.ascontiguousarray(values, dtype="<f8").tobytes())
        return digest.hexdigest()

    def save(self, folder: Path) -> None:
        """Writes the folder; an earlier benchmark there is replaced.

        Raises:
            ValueError: the folder holds something else.
        """
        self.corpus.save(folder)
        named = {f"c{number}": values for number, values in enumerate(self.channels.values())}
        np.savez(folder / _CHANNELS, **named)  # type: ignore[arg-type]
        document = {
            "name": self.name,
            "fingerprint": self.fingerprint,
            "references": {i: list(texts) for i, texts in self.references.items()},
            "not_asked": dict(self.not_asked),
            "channels": list(self.channels),
            "meta": dict(self.meta),
        }
        fresh = folder / f"{_DOCUMENT}.writing-{os.getpid()}"
        fresh.write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")
        fresh.replace(folder / _DOCUMENT)

    @classmethod
    def load(cls, folder: Path) -> Benchmark:
        """What `save` wrote.

        Raises:
            ValueError: no benchmark there, or it was changed.
        """
        if not (folder / _DOCUMENT).is_file():
            raise ValueError(
                f"benchmark: expected a folder made by `python -m trainer benchmark`, got {folder}"
            )
        corpus = Corpus.load(folder)
        try:
            document = json.loads((folder / _DOCUMENT).read_text(encoding="utf-8"))
            with np.load(folder / _CHANNELS, allow_pickle=False) as arrays:
                channels = {
                    source: arrays[f"c{number}"]
                    for number, source in enumerate(document["channels"])
                }
            found = cls(
                document["name"],
                corpus,
                {i: tuple(texts) for i, texts in document["references"].items()},
                document["not_asked"],
                channels,
                document["meta"],
            )
            fingerprint = document["fingerprint"]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{folder}: expected an undamaged benchmark, got {error!r}") from error
        if found.fingerprint != fingerprint:
            raise ValueError(
                f"{folder}: expected fingerprint {fingerprint}, got {found.fingerprint}"
            )
        return found
