"""A natural-language-inference model: how sure it is that one text follows from another."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lineup_fast import hub

DEFAULT = "tasksource/deberta-base-long-nli"
Floats = NDArray[np.float64]
Pair = tuple[str, str]  # premise, hypothesis
# Their positions start behind the padding id, which costs that many of the table.
_OFFSET_POSITIONS = ("roberta", "xlm-roberta", "camembert", "longformer", "mpnet")


def entailment_label(id2label: dict[Any, str]) -> int:
    """Which output stands for "entailment".

    Raises:
        ValueError: fewer than two labels, or not exactly one that says so ("LABEL_0" does not).
    """
    names = {int(index): name.strip().lower() for index, name in id2label.items()}
    found = [index for index, name in names.items() if name in ("entailment", "entail", "entails")]
    if len(names) < 2 or len(found) != 1:
        raise ValueError(
            "id2label: expected two labels or more, exactly one of them entailment, in the "
            f"configuration of the model, got {sorted(id2label.values())}"
        )
    return found[0]


def read_limit(config: Any, tokenizer: Any) -> int | None:
    """The longest input in tokens by the model's configuration and its tokenizer, None unknown."""
    positions = getattr(config, "max_position_embeddings", None)
    if positions and config.model_type in _OFFSET_POSITIONS:
        positions -= (config.pad_token_id or 0) + 1
    known = [int(tokenizer.model_max_length)] if tokenizer.model_max_length < 1e9 else []
    return min([*known, *([int(positions)] if positions and positions > 0 else [])], default=None)


@dataclass
class NliModel:
    """A frozen sequence classifier over pairs of texts.

    name: hub id or folder; label: the output that stands for entailment; max_tokens: of a pair,
    separators included; batch_tokens: of one forward pass, padding included.
    """

    name: str
    model: Any
    tokenizer: Any
    label: int
    max_tokens: int | None
    batch_tokens: int = 8192

    @classmethod
    def load(
        cls,
        name: str | Path = DEFAULT,
        *,
        device: str = "cpu",
        dtype: str = "float32",
        max_tokens: int | None = None,
        batch_tokens: int = 8192,
    ) -> NliModel:
        """The model of a hub id or folder.

        max_tokens: a limit below the model's own.

        Raises:
            ValueError: no such model, no entailment among its labels, a limit above its own.
        """
        from transformers import AutoModelForSequenceClassification

        model = hub.from_pretrained(
            AutoModelForSequenceClassification, name, role="nli model", dtype=getattr(torch, dtype)
        )
        tokenizer = hub.load_tokenizer(name, role="nli model")
        return cls.of(model.to(device), tokenizer, str(name), max_tokens, batch_tokens)

    @classmethod
    def of(
        cls,
        model: Any,
        tokenizer: Any,
        name: str,
        max_tokens: int | None = None,
        batch_tokens: int = 8192,
    ) -> NliModel:
        """A loaded model; raises as `load`."""
        label = entailment_label(model.config.id2label)
        limit = read_limit(model.config, tokenizer)
        if max_tokens is not None and limit is not None and max_tokens > limit:
            raise ValueError(f"max_tokens: expected at most {limit} for {name}, got {max_tokens}")
        model.eval().requires_grad_(False)
        return cls(name, model, tokenizer, label, max_tokens or limit, batch_tokens)

    def fingerprint(self) -> str:
        """Hash of the configuration and of the head of every parameter."""
        digest = hashlib.sha256(self.model.config.to_json_string().encode())
        for name, tensor in sorted(self.model.state_dict().items()):
            head = tensor.detach().flatten()[:64].float().cpu().numpy()
            digest.update(f"{name}{tuple(tensor.shape)}".encode() + head.tobytes())
        return digest.hexdigest()[:16]

    def encode(self, pairs: Sequence[Pair]) -> list[dict[str, list[int]]]:
        """Model inputs of each pair, never cut; a text cannot spell a special token."""
        if not pairs:
            return []
        special = sorted({str(t) for t in self.tokenizer.all_special_tokens if len(str(t)) > 1})

        def plain(text: str) -> str:
            text = text.replace("\0", "").encode("utf-8", "ignore").decode("utf-8")
            for name in special:
                text = text.replace(name, f"{name[0]} {name[1:]}")
            return text

        columns = self.tokenizer(
            [plain(premise) for premise, _ in pairs],
            [plain(hypothesis) for _, hypothesis in pairs],
            truncation=False,
            padding=False,
            verbose=False,
        )
        return [{key: columns[key][row] for key in columns} for row in range(len(pairs))]

    def lengths(self, pairs: Sequence[Pair]) -> list[int]:
        """Tokens of each pair, separators included."""
        return [len(row["input_ids"]) for row in self.encode(pairs)]

    def probabilities(
        self, pairs: Sequence[Pair], progress: Callable[[int, int], None] = lambda *_: None
    ) -> Floats:
        """q that the second text of each pair follows from the first, f64[n], in batches of
        similar length; equal pairs are read once.

        progress: called with (pairs done, pairs in all) before every batch.

        Raises:
            ValueError: a pair of more tokens than the model reads; nothing is cut.
        """
        distinct = list(dict.fromkeys(pairs))
        rows = self.encode(distinct)
        lengths = [len(row["input_ids"]) for row in rows]
        longest = max(lengths, default=0)
        if self.max_tokens is not None and longest > self.max_tokens:
            premise, hypothesis = distinct[lengths.index(longest)]
            raise ValueError(
                f"pairs: expected at most {self.max_tokens} tokens, what {self.name} reads, got "
                f"{longest} from {premise[:40]!r}… and {hypothesis[:40]!r}…"
            )
        found = np.empty(len(distinct))
        done = 0
        for batch in self._batches(lengths):
            progress(done, len(distinct))
            inputs = self.tokenizer.pad(
                [rows[row] for row in batch], return_tensors="pt", verbose=False
            )
            with torch.inference_mode():
                logits = self.model(**inputs.to(self.model.device)).logits
            found[batch] = logits.double().softmax(-1)[:, self.label].cpu().numpy()
            done += len(batch)
        progress(done, len(distinct))
        if not np.isfinite(found).all():
            raise ValueError(f"pairs: expected finite probabilities from {self.name}, got others")
        place = {pair: row for row, pair in enumerate(distinct)}
        return found[[place[pair] for pair in pairs]]

    def _batches(self, lengths: Sequence[int]) -> Iterator[list[int]]:
        """Rows from long to short, as many at once as `batch_tokens` allows, at least one."""
        batch: list[int] = []
        for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
            if batch and (len(batch) + 1) * lengths[batch[0]] > self.batch_tokens:
                yield batch
                batch = []
            batch.append(row)
        if batch:
            yield batch
