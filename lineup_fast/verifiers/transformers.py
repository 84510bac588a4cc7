"""Verifier on Hugging Face transformers: any causal language model, each distinct prefix once."""

from __future__ import annotations

import hashlib
import logging
import threading
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch

from lineup_fast import hub
from lineup_fast.kernels import prompt_tree
from lineup_fast.verifiers.base import (
    MAX_REPLY_TOKENS,
    LabelTokens,
    TreeReplies,
    TreeScores,
    admit,
    prompt_lengths,
    tree_replies,
    tree_scores,
)
from lineup_fast.verifiers.prefix_engine import PrefixEngine
from lineup_fast.verifiers.prefix_plan import batches

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from lineup_fast.kernels import PromptTree
    from lineup_fast.verifiers.base import QuestionGroup

T = TypeVar("T")
log = logging.getLogger(__name__)

# Plain rotary attention in every layer: what the packed rows of prefix_attention reproduce.
SHARED_ARCHITECTURES = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "Gemma3ForCausalLM",
)
# Rotary angles that depend on the length of the batch cannot be shared between prompts.
LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")
CHECK_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3}  # of label logits, start-up check
HALF_TOLERANCE = 1.0  # half precision is not batch invariant: only gross errors show


class TransformersVerifier:
    """Label log-probabilities from a causal language model, frozen.

    model: folder, hub id, or a loaded model; tokenizer: a fast tokenizer (default: the model's).
    shared=False asks one prompt at a time with stock attention: the oracle, and the path of every
    architecture that cannot share. chunk_tokens: rows of one forward pass; kv_bytes: keys and
    values kept for the prefixes of one batch. threads: of torch, for the whole process, if given.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        device: str = "cpu",
        dtype: str = "float32",
        shared: bool = True,
        threads: int | None = None,
        chunk_tokens: int = 4096,
        kv_bytes: int = 1 << 30,
    ) -> None:
        from lineup_fast.encoders import as_encoder

        if threads is not None:
            if threads < 1:
                raise ValueError(f"threads: expected at least 1, got {threads}")
            torch.set_num_threads(threads)
        self.name = str(model) if not hasattr(model, "config") else type(model).__name__
        self.model = _load_model(model, device, dtype)
        if tokenizer is None:
            if hasattr(model, "config"):
                raise ValueError(
                    "tokenizer: expected a fast tokenizer beside a loaded model, got None"
                )
            tokenizer = hub.load_tokenizer(model)
        self.encoder = as_encoder(tokenizer)
        config = self.model.config.get_text_config()
        self.max_prompt_tokens: int | None = getattr(config, "max_position_embeddings", None)
        self.n_vocabulary = int(self.model.get_input_embeddings().weight.shape[0])
        self._config = config
        self._device = self.model.get_input_embeddings().weight.device
        self._softcap: float | None = getattr(config, "final_logit_softcapping", None)
        self._window = _sliding_window(config)
        self._engine = PrefixEngine(self.model, self._logits, self._device, chunk_tokens)
        self._kept_tokens = max(1, kv_bytes // _kv_bytes_per_token(self.model))
        self._lock = threading.Lock()  # the attention implementation is a field of the model
        self._warned_window = False
        self.shared = shared and self._can_share()

    def fingerprint(self) -> str:
        """Hash of the configuration and of the head of every parameter."""
        digest = hashlib.sha256(self.model.config.to_json_string().encode())
        for name, tensor in sorted(self.model.state_dict().items()):
            head = tensor.detach().flatten()[:64].float().cpu().numpy()
            digest.update(f"{name}{tuple(tensor.shape)}".encode() + head.tobytes())
        return digest.hexdigest()[:16]

    def score(
        self,
        trees: Sequence[PromptTree],
        labels: LabelTokens,
        *,
        groups: Sequence[QuestionGroup] | None = None,
    ) -> list[TreeScores]:
        """Log-probabilities of the labels at the answer position of every question.

        Captions whose prompts exceed the context get a reason instead of an answer. Raises:
        ValueError on ids outside the vocabulary, torch's RuntimeError when the model fails.
        """
        del groups
        kept, reasons = admit(trees, self.max_prompt_tokens, n_vocabulary=self.n_vocabulary)
        table = torch.from_numpy(labels.ids.astype(np.int64)).to(self._device)
        found = self._computed(
            kept,
            lambda part: self._shared_labels(part, table),
            lambda part: self._plain_labels(part, table),
        )
        return [
            tree_scores(tree, answer, why, computed)
            for tree, why, (answer, computed) in zip(kept, reasons, found, strict=True)
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
        found = self._computed(
            kept,
            lambda part: self._engine.greedy(part, max_new_tokens, self._ends()),
            lambda part: self._plain_replies(part, max_new_tokens),
            max_new_tokens,
        )
        results = []
        for tree, why, (rows, computed) in zip(kept, reasons, found, strict=True):
            texts = [[self.encoder.decode(ids) if ids else None for ids in row] for row in rows]
            results.append(tree_replies(tree, texts, why, computed))
        return results

    def _computed(
        self,
        trees: Sequence[PromptTree],
        shared: Callable[[Sequence[PromptTree]], tuple[list[T], list[int]]],
        plain: Callable[[Sequence[PromptTree]], tuple[list[T], list[int]]],
        new_tokens: int = 0,
    ) -> list[tuple[T, int]]:
        """Of every tree the answer and the tokens computed for it, a batch of trees at a time."""
        found: list[tuple[T, int]] = []
        with self._lock, torch.inference_mode():
            for run in batches(trees, self._kept_tokens):
                part = [trees[number] for number in run]
                share = self.shared and self._fits_window(part, new_tokens)
                found += zip(*(shared if share else plain)(part), strict=True)
        return found

    def _fits_window(self, trees: Sequence[PromptTree], new_tokens: int = 0) -> bool:
        """Whether no sliding window bites: only then are shared prefixes exact."""
        longest = max(int(prompt_lengths(tree).max()) for tree in trees) + new_tokens
        if self._window is None or longest <= self._window:
            return True
        if not self._warned_window:
            self._warned_window = True
            log.warning(
                "%s: prompts of %d tokens exceed its sliding window of %d; "
                "they are asked one at a time",
                self.name,
                longest,
                self._window,
            )
        return False

    def _logits(self, hidden: Tensor) -> Tensor:
        """Logits [n, vocabulary] at hidden states [n, H]."""
        logits: Tensor = self.model.get_output_embeddings()(hidden)
        if self._softcap is None:
            return logits
        return torch.tanh(logits / self._softcap) * self._softcap

    def _shared_labels(
        self, trees: Sequence[PromptTree], table: Tensor
    ) -> tuple[list[np.ndarray], list[int]]:
        """[G, K, K] per tree, every distinct prefix of all trees computed once."""
        return self._engine.at_ends(trees, lambda logits: _of_labels(logits, table), len(table))

    def _plain_labels(
        self, trees: Sequence[PromptTree], table: Tensor
    ) -> tuple[list[np.ndarray], list[int]]:
        """[G, K, K] per tree, one whole prompt at a time with stock attention and no cache."""
        answers = []
        for tree in trees:
            answer = np.full((*tree.questions.shape, len(table)), np.nan, dtype=np.float32)
            for caption, position in np.argwhere(tree.questions >= 0).tolist():
                ids = torch.from_numpy(tree.prompt(caption, position).astype(np.int64))
                logits = self.model(
                    input_ids=ids[None].to(self._device), use_cache=False, logits_to_keep=1
                ).logits[0, -1:]
                answer[caption, position] = _of_labels(logits, table)[0].cpu().numpy()
            answers.append(answer)
        return answers, [int(prompt_lengths(tree).sum()) for tree in trees]

    def _plain_replies(
        self, trees: Sequence[PromptTree], max_new_tokens: int
    ) -> tuple[list[list[list[list[int]]]], list[int]]:
        """Greedy ids [tree][G][K][n], one prompt after the other with the model's own loop."""
        replies = []
        for tree in trees:
            rows: list[list[list[int]]] = [[[] for _ in row] for row in tree.questions]
            for caption, position in np.argwhere(tree.questions >= 0).tolist():
                ids = torch.from_numpy(tree.prompt(caption, position).astype(np.int64))
                ids = ids[None].to(self._device)
                out = self.model.generate(
                    input_ids=ids,
                    attention_mask=torch.ones_like(ids),
                    max_new_tokens=max_new_tokens,
                    do_sample=False,
                    pad_token_id=self.encoder.pad_id,
                )
                rows[caption][position] = out[0, ids.shape[1] :].tolist()
            replies.append(rows)
        return replies, [int(prompt_lengths(tree).sum()) for tree in trees]

    def _ends(self) -> set[int]:
        """Ids that end a reply."""
        ends = self.model.generation_config.eos_token_id
        return {int(end) for end in np.atleast_1d([] if ends is None else ends)}

    def _can_share(self) -> bool:
        """Whether the shared path gives this model's own logits; says why not in a log line."""
        architecture = type(self.model).__name__
        parameters = getattr(self._config, "rope_parameters", None) or {}
        flat = [parameters, *(value for value in parameters.values() if isinstance(value, dict))]
        kinds = {entry.get("rope_type", "default") for entry in flat}
        reason = None
        if architecture not in SHARED_ARCHITECTURES:
            reason = f"{architecture} is not on the list of architectures that can share"
        elif getattr(self._config, "attn_logit_softcapping", None) is not None:
            reason = "its attention scores are capped"
        elif getattr(self._config, "use_bidirectional_attention", False):
            reason = "its attention is bidirectional"
        elif kinds & set(LENGTH_DEPENDENT_ROPE):
            reason = "its rotary angles depend on the length"
        else:
            gap = self._check_shared()
            weight = self.model.get_input_embeddings().weight
            if not gap <= CHECK_TOLERANCE.get(weight.dtype, HALF_TOLERANCE):
                reason = f"shared and plain logits differ by {gap:.2g}"
        if reason is not None:
            log.warning("%s: prompts are asked one at a time: %s", self.name, reason)
        return reason is None

    def _check_shared(self) -> float:
        """Largest |Δ| between shared and plain log-probabilities on a small random tree."""
        rng = np.random.default_rng(0)
        size = self.n_vocabulary
        tree = prompt_tree(
            "candidates_first",
            rng.integers(0, size, 5),
            rng.integers(0, size, 3),
            rng.integers(0, size, 4),
            _ragged([rng.integers(0, size, 3) for _ in range(3)]),
            _ragged([rng.integers(0, size, n) for n in (7, 6, 7)]),
            rng.integers(0, size, 2),
            _ragged([rng.integers(0, size, n) for n in (9, 2)]),
        )
        if self._window is not None and int(prompt_lengths(tree).max()) > self._window:
            return 0.0  # this window is smaller than any prompt: never shared
        table = torch.arange(min(8, size), device=self._device)[:, None]
        with torch.inference_mode():
            shared, _ = self._shared_labels([tree], table)
            plain, _ = self._plain_labels([tree], table)
        return float(np.abs(shared[0] - plain[0]).max())


def _ragged(rows: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    return np.concatenate(rows), np.cumsum([0] + [len(row) for row in rows])


def _load_model(model: Any, device: str, dtype: str) -> Any:
    if not hasattr(model, "config"):
        from transformers import AutoModelForCausalLM

        kind = getattr(torch, dtype, None)
        if not isinstance(kind, torch.dtype) or not kind.is_floating_point:
            raise ValueError(f"dtype: expected a torch dtype such as float32, got {dtype!r}")
        model = hub.from_pretrained(AutoModelForCausalLM, model, dtype=getattr(torch, dtype))
        try:
            model = model.to(device)
        except (RuntimeError, AssertionError) as error:  # no such device, or no memory on it
            raise ValueError(
                f"device: expected one that torch has, got {device!r} ({error})"
            ) from error
    return model.eval().requires_grad_(False)


def _sliding_window(config: Any) -> int | None:
    """Smallest window of any layer in tokens, or None where every layer sees everything."""
    kinds = getattr(config, "layer_types", None)
    window = getattr(config, "sliding_window", None)
    if window is None or (kinds is not None and "sliding_attention" not in kinds):
        return None
    if kinds is None and not getattr(config, "use_sliding_window", True):
        return None
    return int(window)


def _kv_bytes_per_token(model: Any) -> int:
    config = model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    width = model.get_input_embeddings().weight.element_size()
    return int(2 * config.num_hidden_layers * heads * size * width)


def _of_labels(logits: Tensor, table: Tensor) -> Tensor:
    """Log-probabilities [n, K] of labels whose variants are ids [K, V], from logits [n, vocab]."""
    exact = logits.float()
    variants = exact[:, table.clamp(min=0)].masked_fill(table < 0, float("-inf"))
    return torch.logsumexp(variants, dim=-1) - torch.logsumexp(exact, dim=-1, keepdim=True)
