"""Verifier on SGLang: a running server, several of them, or an engine of this process."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from lineup_fast.encoders import as_encoder
from lineup_fast.hub import load_tokenizer
from lineup_fast.verifiers.base import (
    MAX_REPLY_TOKENS,
    BackendError,
    LabelTokens,
    TreeReplies,
    TreeScores,
    admit,
    check_ids,
    tree_replies,
    tree_scores,
)
from lineup_fast.verifiers.prefix_plan import Forest, build_forest
from lineup_fast.verifiers.sglang_model import SGLangModel
from lineup_fast.verifiers.sglang_wire import (
    PromptWriter,
    RefusedError,
    Reply,
    UnavailableError,
    label_options,
    reply_options,
)
from lineup_fast.verifiers.wave_runner import run_waves
from lineup_fast.verifiers.waves import MIN_SAVING, plan

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from lineup_fast.kernels import PromptTree
    from lineup_fast.verifiers.base import QuestionGroup
    from lineup_fast.verifiers.fleet import Fleet

    Floats = npt.NDArray[np.float32]
    Ints = npt.NDArray[np.int32]

T = TypeVar("T")
log = logging.getLogger(__name__)

CANARY_TEXT = "Rises from 12 at the start to 40 at step 7, dips once, and ends at 31."
CANARY_GAP = 0.2  # nats between log-probabilities of the same weights, half precision included
NO_TOKEN = 2**31 - 1  # in no vocabulary


@dataclass(frozen=True)
class Canary:
    """What a model makes of a fixed text: log-probabilities float64 [3, n] of ids of the text
    behind three of its beginnings, and the most likely next ids [3]."""

    logprobs: npt.NDArray[np.float64]
    greedy: list[int]


class SGLangVerifier(SGLangModel):
    """Label log-probabilities from SGLang, every shared prefix computed once by its cache.

    urls: where servers of one model answer, one or several; or engine: an ``sglang.Engine``.
    tokenizer: a fast tokenizer, an encoder, or a folder or hub id (default: the one that the server
    was started with); max_prompt_tokens, n_vocabulary: asked of the server where not given.
    deadline_s: of one call, further attempts included; retries: further attempts of a request that
    got no answer; connections: at once, per server; min_saving: see :func:`waves.plan`.
    A request that fails for good makes those captions invalid whose questions it held, no others.
    Raises: BackendError when no server answers, ValueError when they serve different models.
    """

    def __init__(
        self,
        urls: str | Sequence[str] | None = None,
        *,
        engine: Any = None,
        tokenizer: Any = None,
        max_prompt_tokens: int | None = None,
        n_vocabulary: int | None = None,
        deadline_s: float = 600.0,
        retries: int = 4,
        connections: int = 64,
        api_key: str | None = None,
        min_saving: int = MIN_SAVING,
    ) -> None:
        self._min_saving = min_saving
        super().__init__(
            urls,
            engine=engine,
            deadline_s=deadline_s,
            retries=retries,
            connections=connections,
            api_key=api_key,
        )
        try:
            limits = self._read_infos()
            self.name = str(self._model.get("served_model_name") or self._model["model_path"])
            if tokenizer is None:
                tokenizer = self._model.get("tokenizer_path") or self._model["model_path"]
            if isinstance(tokenizer, str | Path):
                tokenizer = load_tokenizer(tokenizer)
            self.encoder = as_encoder(tokenizer)
            self.max_prompt_tokens: int | None = max_prompt_tokens or limits
            self.n_vocabulary: int = n_vocabulary or self._fleet.run(self._ask_vocabulary)
            self._canary = self._read_canary()
        except BaseException:
            self.close()
            raise

    def fingerprint(self) -> str:
        """Hash of the model's name and weight version and of what it makes of a fixed text."""
        words = [
            Path(str(self._model["model_path"])).name,
            self._model.get("architectures"),
            self._model.get("weight_version"),
            self.n_vocabulary,
            self._canary.greedy,
        ]
        return hashlib.sha256(json.dumps(words).encode()).hexdigest()[:16]

    def score(
        self,
        trees: Sequence[PromptTree],
        labels: LabelTokens,
        *,
        groups: Sequence[QuestionGroup] | None = None,
    ) -> list[TreeScores]:
        """Log-probabilities of the labels at the answer position of every question.

        Captions without an answer, for whatever reason, get that reason. Raises: ValueError on ids
        outside the vocabulary, which would end the server; BackendError while asleep.
        """
        del groups
        wanted = np.unique(labels.ids[labels.ids >= 0])
        check_ids("labels", wanted, self.n_vocabulary)
        kept, reasons = admit(trees, self.max_prompt_tokens, n_vocabulary=self.n_vocabulary)
        forest = build_forest(kept)
        found = self._ask(forest, label_options(wanted.tolist()))
        logprobs = np.full((len(forest.ids) + 1, len(wanted)), np.nan)  # the last one stands for -1
        for node, reply in found.items():
            if isinstance(reply, Reply):
                logprobs[node] = [reply.logprobs.get(token, np.nan) for token in wanted.tolist()]
        answers = _of_labels(logprobs, wanted, labels.ids)
        computed = _computed(forest, found, len(kept))
        return [
            tree_scores(tree, answers[nodes], _reasons(nodes, found, why), tokens)
            for tree, nodes, why, tokens in zip(
                kept, forest.questions, reasons, computed, strict=True
            )
        ]

    def generate(
        self,
        trees: Sequence[PromptTree],
        *,
        max_new_tokens: int = MAX_REPLY_TOKENS,
        groups: Sequence[QuestionGroup] | None = None,
    ) -> list[TreeReplies]:
        """Greedy replies to every question, special tokens removed."""
        del groups
        kept, reasons = admit(
            trees,
            self.max_prompt_tokens,
            n_vocabulary=self.n_vocabulary,
            new_tokens=max_new_tokens,
        )
        forest = build_forest(kept)
        found = self._ask(forest, reply_options(max_new_tokens))
        texts: dict[int, str] = {
            node: self.encoder.decode(reply.output_ids) if reply.output_ids else ""
            for node, reply in found.items()
            if isinstance(reply, Reply)
        }
        computed = _computed(forest, found, len(kept))
        return [
            tree_replies(
                tree,
                [[texts.get(node) for node in row] for row in nodes.tolist()],
                _reasons(nodes, found, why),
                tokens,
            )
            for tree, nodes, why, tokens in zip(
                kept, forest.questions, reasons, computed, strict=True
            )
        ]

    def wake(self, *tags: str) -> None:
        """Take the memory again. Raises: BackendError when the weights did not come back."""
        super().wake(*tags)
        self.asleep = True
        self._read_canary(self._canary)
        self.asleep = False

    def update_weights(self, path: str | Path, *, version: str | None = None) -> None:
        """Load other weights of the same architecture from a folder that the servers see.

        version: their name in fingerprints (default: the folder's). Calls under way end first.
        Raises: BackendError when a server refuses them.
        """
        version = version or Path(path).name
        self._command("update_weights_from_disk", model_path=str(path), weight_version=version)
        self._read_infos()
        self._model["weight_version"] = version  # an engine of this process does not keep it
        self._canary = self._read_canary()

    def _ask(self, forest: Forest, options: dict[str, Any]) -> dict[int, Reply | str]:
        """Of every question's node, the reply, or in words why there is none."""
        if self.asleep:
            raise BackendError("the engine is asleep: expected wake() before the next question")
        order = plan(forest, min_saving=self._min_saving)
        found = self._fleet.run(
            lambda fleet: run_waves(fleet, forest, order, options, self.deadline_s)
        )
        replies = [reply for reply in found.values() if isinstance(reply, Reply)]
        tokens = sum(reply.tokens for reply in replies)
        asked = sum(prompt.tokens for unit in order.units for prompt in unit.prompts())
        log.info(
            "%s: %d of %d prompts answered, %.1f %% of their %d tokens cached (repeated: %.1f %%)",
            self.name,
            len(replies),
            len(found),
            100.0 * sum(reply.cached for reply in replies) / max(1, tokens),
            tokens,
            100.0 * (1.0 - sum(map(len, forest.ids)) / max(1, asked)),
        )
        return found

    async def _ask_vocabulary(self, fleet: Fleet) -> int:
        """Size of the vocabulary, which engines tell when asked about an id outside of it."""
        writer = _writer([np.zeros(1, dtype=np.int32)])
        try:
            await fleet.replicas[0].generate(writer, [0], label_options([NO_TOKEN]))
        except RefusedError as error:
            told = re.search(r"(?:\[0, |Vocabulary size: )(\d+)", str(error))
            if told:
                return int(told[1])
        except UnavailableError as error:
            raise BackendError(str(error)) from error
        raise ValueError("n_vocabulary: expected a number, as this server does not tell, got None")

    def _read_canary(self, expected: Canary | None = None) -> Canary:
        """Every replica's reading of the canary, all the same and as expected."""
        ids = self.encoder.encode_captions([CANARY_TEXT])[0]
        check_ids("tokenizer", ids, self.n_vocabulary)
        wanted = np.unique(ids).tolist()
        writer = _writer([ids[: max(1, len(ids) * part // 3)] for part in (1, 2, 3)])

        async def ask(fleet: Fleet) -> list[Canary]:
            found = []
            for replica in fleet.replicas:
                rows = [
                    (await self._answered(replica.generate(writer, [n], label_options(wanted))))[0]
                    for n in range(3)
                ]
                logprobs = [[row.logprobs.get(i, np.nan) for i in wanted] for row in rows]
                found.append(Canary(np.array(logprobs), [row.output_ids[0] for row in rows]))
            return found

        canaries = self._fleet.run(ask)
        for canary in canaries:
            gap = float(np.abs(canary.logprobs - (expected or canaries[0]).logprobs).max())
            if expected is not None and not gap <= CANARY_GAP:
                raise BackendError(
                    f"{self.name}: the weights are not what they were: log-probabilities of a "
                    f"fixed text differ by {gap:.2g}"
                )
            if not gap <= CANARY_GAP:
                raise ValueError(
                    f"urls: expected servers of one model, got log-probabilities {gap:.2g} apart"
                )
        return canaries[0]


def _writer(prompts: list[Ints]) -> PromptWriter:
    """Prompts that share nothing, as nodes 0, 1, …"""
    n = len(prompts)
    return PromptWriter(Forest(prompts, [-1] * n, [0] * n, [0] * n, []))


def _of_labels(
    logprobs: npt.NDArray[np.float64], ids: npt.NDArray[np.int32], table: Ints
) -> Floats:
    """Log-probabilities float32 [n, K] of labels whose variants are ids [K, V], from those [n, m]
    of the sorted ids [m]."""
    variants = logprobs[:, np.searchsorted(ids, np.maximum(table, ids[0]))]
    variants = np.where(table >= 0, variants, -np.inf)
    with np.errstate(invalid="ignore"):  # what was not answered is NaN
        summed: Floats = np.logaddexp.reduce(variants, axis=2).astype(np.float32)
    return summed


def _computed(forest: Forest, found: dict[int, Reply | str], n_trees: int) -> list[int]:
    """Tokens computed anew, [n_trees]; a question of several trees counts for the first."""
    totals = [0] * n_trees
    for node, reply in found.items():
        if isinstance(reply, Reply):
            totals[forest.tree[node]] += reply.tokens - reply.cached
    return totals


def _reasons(
    nodes: Ints, found: dict[int, Reply | str], reasons: Sequence[str | None]
) -> list[str | None]:
    """Why captions [G] have no answer: the reasons so far, then those of their questions' nodes."""
    result = list(reasons)
    for caption, row in enumerate(nodes.tolist()):
        for node in row:
            answer = found.get(node)
            if result[caption] is None and isinstance(answer, str):
                result[caption] = answer
    return result
