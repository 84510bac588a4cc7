"""The captions to be measured: what `python -m trainer caption` wrote, and nothing else."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.evaluate.table import checked_name

if TYPE_CHECKING:
    from trainer.evaluate.benchmark import Benchmark


@dataclass(frozen=True)
class CaptionFile:
    """One captions.jsonl.

    texts: by id. settings: those in NAME.json beside it, {} without one. unfinished: captions cut
    off at the captioner's limit.
    """

    path: Path
    texts: dict[str, str]
    settings: dict[str, Any]
    sha256: str
    unfinished: int = 0


@dataclass
class Captioner:
    """What one captioner wrote, maybe in several files."""

    label: str
    files: list[CaptionFile] = field(default_factory=list)
    run: Path | None = None

    def of(self, benchmark: Benchmark) -> tuple[dict[str, str], CaptionFile]:
        """The caption of every series of the benchmark, and the file that most of them are in.

        Raises:
            ValueError: a series without a caption, or with two.
        """
        texts: dict[str, str] = {}
        used: dict[int, int] = {}
        for id_ in benchmark.ids:
            having = [n for n, file in enumerate(self.files) if id_ in file.texts]
            if len({self.files[n].texts[id_] for n in having}) > 1:
                names = " and ".join(str(self.files[n].path) for n in having)
                raise ValueError(f"{self.label}: expected one caption of {id_}, got two in {names}")
            if having:
                texts[id_] = self.files[having[0]].texts[id_]
                used[having[0]] = used.get(having[0], 0) + 1
        lacking = [id_ for id_ in benchmark.ids if id_ not in texts]
        if lacking:
            raise ValueError(
                f"{self.label}: expected captions of all {len(benchmark.ids)} series of "
                f"{benchmark.name}, got none of {len(lacking)} ({lacking[0]}, …); write them with "
                "`python -m trainer caption --split all --data` and the benchmark's folder"
            )
        return texts, self.files[max(used, key=lambda n: used[n])]


def read_captions(path: Path) -> CaptionFile:
    """A file of captions.

    Raises:
        ValueError: no such file, a line without "id" and "caption", an id with two captions.
    """
    if not path.is_file():
        raise ValueError(f"captions: expected a JSONL file or a run folder, got {path}")
    raw = path.read_bytes()
    texts: dict[str, str] = {}
    unfinished = 0
    for number, line in enumerate(raw.decode("utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            id_, text = row["id"], row["caption"]
        except (ValueError, KeyError, TypeError):
            raise ValueError(
                f'captions: expected "id" and "caption" in {path}, line {number}, got {line[:60]}'
            ) from None
        if not isinstance(text, str) or texts.get(id_, text) != text:
            raise ValueError(f"captions: expected one text of {id_} in {path}, got {text!r:.60}")
        texts[id_] = text
        unfinished += row.get("finished") is False
    beside = path.with_suffix(".json")
    settings = json.loads(beside.read_text(encoding="utf-8")) if beside.is_file() else {}
    return CaptionFile(path, texts, settings, hashlib.sha256(raw).hexdigest(), unfinished)


def captioners(words: list[str]) -> list[Captioner]:
    """Captioners named by "[LABEL=]PATH", in order; the same label again adds files to it.

    A path is a JSONL file, or a folder: then every JSONL file in it or in its folder `captions`
    that has its settings beside it.

    Raises:
        ValueError: nothing there, or a label that cannot stand in a file name.
    """
    found: dict[str, Captioner] = {}
    for word in words:
        label, _, rest = word.rpartition("=")
        path = Path(rest)
        if not label:
            label = path.resolve().name if path.is_dir() else path.stem
            if not path.is_dir() and label in ("captions", "caption"):
                label = path.resolve().parent.name
        one = found.setdefault(checked_name("captions", label), Captioner(label))
        if path.is_dir():
            one.run = path
            files = sorted((*path.glob("*.jsonl"), *path.glob("captions/*.jsonl")))
            files = [file for file in files if _has_settings(file)]
            if not files:
                raise ValueError(
                    f"captions: expected files of `python -m trainer caption` in {path}, got none"
                )
        else:
            files = [path]
        one.files += [read_captions(file) for file in files]
    return list(found.values())


def _has_settings(file: Path) -> bool:
    beside = file.with_suffix(".json")
    try:
        return "corpus_fingerprint" in json.loads(beside.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False


def trained_on(captioner: Captioner) -> Path | None:
    """The corpus folder that the captioner's run recorded, where it can be found.

    The run is the folder that was given, or the one that the captions' checkpoint lies in.
    """
    runs = [captioner.run] if captioner.run else []
    for file in captioner.files:
        checkpoint = Path(str(file.settings.get("checkpoint", "")))
        if checkpoint.parent.name == "checkpoints":
            runs.append(checkpoint.parent.parent)
    for run in runs:
        try:
            recorded = json.loads((run / "config.json").read_text(encoding="utf-8"))["config"]
            corpus = Path(recorded["corpus"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
        for folder in (corpus, run / corpus):
            if (folder / "corpus.json").is_file():
                return folder
    return None
