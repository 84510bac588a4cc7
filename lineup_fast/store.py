"""The corpus in memory and on disk; `lineup_fast.corpus` makes it and re-exports `Corpus`."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lineup_fast import kernels
from lineup_fast.readers import Channel, Refusal
from lineup_fast.windows import SPLITS, Windows

FORMAT = 1
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ItemMeta:
    """Where an item comes from; `start` is the position of its first value in its source."""

    source: str
    start: int
    length: int
    split: str
    domain: str
    unit: str


@dataclass(frozen=True)
class Group:
    """The items of one length: N rows.

    phi : f64[N,4] mean, std, min, max in the units of the values
    pool : i32[N,P] rows of the nearest admissible items, nearest first, -1 padded
    decimals, max_run : the rounding and the longest shared run of the overlap rule
    """

    ids: list[str]
    windows: Windows
    phi: Floats
    pool: NDArray[np.int32]
    decimals: int
    max_run: int


@dataclass
class Summary:
    """What building found, for the table and for the record.

    lengths : per length the counts named in `COLUMNS`
    refusals : what was not taken and why; held_out : data sets kept whole as test
    """

    lengths: dict[int, dict[str, int]] = field(default_factory=dict)
    refusals: list[Refusal] = field(default_factory=list)
    split_by: dict[str, str] = field(default_factory=dict)

    def table(self) -> str:
        """The counts as an aligned text table, then the refusals."""
        head = ["length", *COLUMNS]
        body = [[str(n), *(str(c[name]) for name in COLUMNS)] for n, c in self.lengths.items()]
        widths = [max(len(row[i]) for row in [head, *body]) for i in range(len(head))]
        lines = [
            "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
            for row in [head, *body]
        ]
        how = [f"{by}: {sum(b == by for b in self.split_by.values())}" for by in ("source", "time")]
        rows = sum(by == "row" for by in self.split_by.values())
        held = sorted(name for name, by in self.split_by.items() if by == "source")
        lines += ["", "data sets split by " + ", ".join([*how, f"row: {rows}"])]
        lines += [f"held out as test: {', '.join(held)}"] if held else []
        refused = sum(refusal.count for refusal in self.refusals)
        lines += [f"refused: {refused} values, rows or columns"]
        lines += [f"  {refusal}" for refusal in self.refusals[:20]]
        if len(self.refusals) > 20:
            lines += [f"  and {len(self.refusals) - 20} more places"]
        return "\n".join(lines)


# windows on the grid; left out as flat after scaling; as equal to another; sampled; constant; with
# a constant stretch longer than the overlap budget; with a full pool; with a short one that still
# fills a question; left out because too few are admissible; items per split.
COLUMNS = (
    "windows",
    "flat",
    "duplicates",
    "series",
    "constant",
    "constant_runs",
    "full_pool",
    "short_pool",
    "left_out",
    *SPLITS,
)


class Corpus:
    """Items of several lengths, addressed by content-hash id. Made by `build` or `Corpus.load`.

    settings : everything that was chosen, JSON types only
    fingerprint : sha256 over settings, ids, values, pools, splits and captions
    """

    def __init__(
        self,
        settings: dict[str, Any],
        channels: Sequence[Channel],
        groups: dict[int, Group],
        captions: dict[str, str],
        summary: Summary,
    ) -> None:
        self.settings = settings
        self.summary = summary
        self._sources = [(c.source, c.domain, c.unit) for c in channels]
        self._groups = dict(sorted(groups.items()))
        self._captions = captions
        self._rows = {
            item: (length, row)
            for length, group in self._groups.items()
            for row, item in enumerate(group.ids)
        }
        self._peers: dict[tuple[int, int], list[str]] = {}
        self.fingerprint = self._hash()

    @property
    def lengths(self) -> tuple[int, ...]:
        """The series lengths, rising."""
        return tuple(self._groups)

    def __len__(self) -> int:
        return len(self.ids())

    def __contains__(self, item: object) -> bool:
        return item in self._rows

    def ids(self, split: str | None = None, *, k: int | None = None) -> list[str]:
        """Items with at least k-1 neighbours (k of the settings), by length, channel and time."""
        if split is not None and split not in SPLITS:
            raise ValueError(f"split: expected one of {', '.join(SPLITS)}, got {split!r}")
        need = (self.settings["k"] if k is None else k) - 1
        found = []
        for group in self._groups.values():
            keep = (group.pool >= 0).sum(axis=1) >= need
            if split is not None:
                keep &= group.windows.split == SPLITS.index(split)
            found += [group.ids[row] for row in np.flatnonzero(keep)]
        return found

    def series(self, item: str) -> Floats:
        """Values f64[T], read-only."""
        group, row = self._find(item)
        values: Floats = group.windows.values[row].view()
        values.flags.writeable = False
        return values

    def meta(self, item: str) -> ItemMeta:
        """Source, start, length, split, domain and unit."""
        group, row = self._find(item)
        source, domain, unit = self._sources[group.windows.channel[row]]
        start, split = int(group.windows.start[row]), SPLITS[group.windows.split[row]]
        return ItemMeta(source, start, group.windows.values.shape[1], split, domain, unit)

    def pool(self, item: str) -> list[str]:
        """Ids of the nearest admissible items of the same length and split, nearest first."""
        group, row = self._find(item)
        return [group.ids[other] for other in group.pool[row] if other >= 0]

    def phi(self, item: str) -> Floats:
        """Features f64[4]: mean, population std, min, max."""
        group, row = self._find(item)
        phi: Floats = group.phi[row].copy()
        return phi

    def caption(self, item: str) -> str | None:
        """The description that came with the data, if any."""
        self._find(item)
        return self._captions.get(item)

    def peers(self, item: str) -> list[str]:
        """Every item of the same length and split, in a fixed order, the item included."""
        group, row = self._find(item)
        key = group.windows.values.shape[1], int(group.windows.split[row])
        if key not in self._peers:
            rows = np.flatnonzero(group.windows.split == key[1])
            self._peers[key] = [group.ids[other] for other in rows]
        return self._peers[key]

    def admissible(self, item: str, other: str) -> bool:
        """Whether `other` may stand beside `item` under the corpus' overlap rule."""
        group, row = self._find(item)
        if item == other or self._rows[other][0] != self._rows[item][0]:
            return False
        at, values = self._rows[other][1], group.windows.values
        if np.array_equal(values[row], values[at]):
            return False
        if self.settings["overlap"] == "window":
            if self._source(group, row) != self._source(group, at):
                return True
            apart = abs(int(group.windows.start[row]) - int(group.windows.start[at]))
            return bool(values.shape[1] - apart <= group.max_run)
        shared = kernels.longest_run(values[row], values[at], decimals=group.decimals)
        return shared <= group.max_run

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write JSON and .npy files, all or nothing; an earlier corpus there is replaced.

        Raises ValueError if the folder holds something else.
        """
        target = Path(folder).resolve()
        check_target(target)
        if target.is_dir() and not (target / "corpus.json").is_file():
            target.rmdir()
        fresh = target.with_name(f"{target.name}.writing-{os.getpid()}")
        fresh.mkdir(parents=True)
        try:
            for length, group in self._groups.items():
                for name, array in _arrays(group).items():
                    np.save(fresh / f"length-{length}.{name}.npy", array, allow_pickle=False)
            document = {
                "fingerprint": self.fingerprint,
                "settings": self.settings,
                "sources": self._sources,
                "groups": {
                    str(length): {"ids": g.ids, "decimals": g.decimals, "max_run": g.max_run}
                    for length, g in self._groups.items()
                },
                "captions": self._captions,
                "summary": asdict(self.summary),
            }
            (fresh / "corpus.json").write_text(json.dumps(document), encoding="utf-8")
            if target.exists():
                old = target.with_name(f"{target.name}.old-{os.getpid()}")
                target.rename(old)
                fresh.rename(target)
                shutil.rmtree(old)
            else:
                fresh.rename(target)
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            raise

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Corpus:
        """Read what `save` wrote. Raises ValueError if it is no corpus or was changed."""
        path = Path(folder)
        if not (path / "corpus.json").is_file():
            raise ValueError(f"folder: expected a corpus made by lineup-fast index, got {path}")
        try:
            corpus, fingerprint = cls._read(path)
        except (KeyError, TypeError, AttributeError, EOFError, OSError, ValueError) as error:
            raise ValueError(f"{path}: expected an undamaged corpus, got {error!r}") from error
        if corpus.fingerprint != fingerprint:
            raise ValueError(
                f"{path}: expected fingerprint {fingerprint}, got {corpus.fingerprint}"
            )
        return corpus

    @classmethod
    def _read(cls, path: Path) -> tuple[Corpus, str]:
        """The corpus in a folder, and the fingerprint that was written with it."""
        document = json.loads((path / "corpus.json").read_text(encoding="utf-8"))
        found = document["settings"].get("format")
        if found != FORMAT:
            raise ValueError(f"expected corpus format {FORMAT}, got {found}")
        groups = {}
        for text, entry in document["groups"].items():
            arrays = {
                name: np.load(path / f"length-{int(text)}.{name}.npy", allow_pickle=False)
                for name in _ARRAYS
            }
            cut = Windows(*(arrays[name] for name in ("values", "channel", "start", "split")))
            group = Group(
                entry["ids"],
                cut,
                arrays["phi"],
                arrays["pool"],
                entry["decimals"],
                entry["max_run"],
            )
            groups[int(text)] = group
        summary = document["summary"]
        corpus = cls(
            document["settings"],
            [
                Channel(source, np.empty(0), domain, unit)
                for source, domain, unit in document["sources"]
            ],
            groups,
            document["captions"],
            Summary(
                {int(length): counts for length, counts in summary["lengths"].items()},
                [Refusal(**refusal) for refusal in summary["refusals"]],
                summary["split_by"],
            ),
        )
        return corpus, document["fingerprint"]

    def _find(self, item: str) -> tuple[Group, int]:
        try:
            length, row = self._rows[item]
        except KeyError:
            raise ValueError(f"id: expected an item of the corpus, got {item!r}") from None
        return self._groups[length], row

    def _source(self, group: Group, row: int) -> str:
        source: str = self._sources[group.windows.channel[row]][0]
        return source

    def _hash(self) -> str:
        digest = hashlib.sha256()
        digest.update(json.dumps([self.settings, self._sources], sort_keys=True).encode())
        digest.update(json.dumps(sorted(self._captions.items())).encode())
        for length, group in self._groups.items():
            digest.update(json.dumps([length, group.decimals, group.max_run, group.ids]).encode())
            for name, array in _arrays(group).items():
                little = array.astype(array.dtype.newbyteorder("<"), copy=False)
                digest.update(f"{name}{array.shape}".encode())
                digest.update(np.ascontiguousarray(little).tobytes())
        return digest.hexdigest()


def check_target(folder: str | os.PathLike[str]) -> None:
    """Raises ValueError where a corpus cannot be written: a file, a folder of other things."""
    target = Path(folder)
    if target.resolve() == Path.cwd():
        raise ValueError(f"folder: expected another than the current one, got {target}")
    if not target.exists() or (target / "corpus.json").is_file():
        return
    if not target.is_dir() or any(target.iterdir()):
        raise ValueError(f"folder: expected a new folder or a corpus, got {target}")


_ARRAYS = ("values", "channel", "start", "split", "phi", "pool")


def _arrays(group: Group) -> dict[str, NDArray[Any]]:
    cut = group.windows
    arrays = (cut.values, cut.channel, cut.start, cut.split, group.phi, group.pool)
    return dict(zip(_ARRAYS, arrays, strict=True))
