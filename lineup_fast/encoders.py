"""Tokenizers behind one small interface: template text with offsets, captions as plain text.

No tokenizer library is imported before a tokenizer object is passed in.
"""

from __future__ import annotations

import itertools
import json
import re
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from lineup_fast.prompts import NO_CAPTION, SYSTEM, without_template

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    Ints = npt.NDArray[np.int32]
    Offsets = npt.NDArray[np.int64]


@runtime_checkable
class Encoder(Protocol):
    """What prompts need of a tokenizer."""

    pad_id: int | None

    def prompt_text(self, user: str, system: str = SYSTEM) -> str:
        """The whole prompt around a user turn, up to where the answer begins.

        system: what the model is told first, by default that of the identification reward.
        """
        ...

    def encode(self, text: str) -> tuple[Ints, Offsets]:
        """Ids int32 [n] of a whole prompt text, special tokens parsed, and where each ends.

        ends int64 [n]: characters of ``text`` up to the end of each token.
        """
        ...

    def encode_captions(self, texts: Sequence[str]) -> list[Ints]:
        """Ids of each text as it stands after a newline; never a special token, never empty."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids without special tokens."""
        ...


class ByteEncoder:
    """One id per UTF-8 byte and no template: for verifiers that have no tokenizer."""

    pad_id: int | None = None

    def prompt_text(self, user: str, system: str = SYSTEM) -> str:
        """System text, user text, answer cue."""
        return without_template(user, system)

    def encode(self, text: str) -> tuple[Ints, Offsets]:
        """Bytes as ids."""
        widths = [len(character.encode()) for character in text]
        ends = np.repeat(np.arange(1, len(text) + 1, dtype=np.int64), widths)
        return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int32), ends

    def encode_captions(self, texts: Sequence[str]) -> list[Ints]:
        """Bytes as ids."""
        return [np.frombuffer(text.encode(), np.uint8).astype(np.int32) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of the bytes."""
        return bytes(ids).decode("utf-8", "replace")


class FastEncoder:
    """A Hugging Face fast tokenizer (one with a ``tokenizers`` backend).

    Raises: ValueError when the tokenizer has no such backend, or when its chat template changes or
    drops the user's text.
    """

    def __init__(self, tokenizer: Any) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise ValueError(
                "tokenizer: expected a fast tokenizer with a tokenizers backend, "
                f"got {type(tokenizer).__name__}"
            )
        self._tokenizer = tokenizer
        # Ours, with its model: padding, truncation and special-token settings are the owner's.
        self._backend = _with_added_tokens(backend)
        end = tokenizer.eos_token_id
        self.pad_id: int | None = (
            tokenizer.pad_token_id if tokenizer.pad_token_id is not None else end
        )
        added = tokenizer.added_tokens_decoder
        special = {index: str(token) for index, token in added.items() if token.special}
        special |= dict(zip(tokenizer.all_special_ids, tokenizer.all_special_tokens, strict=True))
        self._is_special = np.zeros(max(len(tokenizer), *special, 0) + 1, dtype=bool)
        self._is_special[list(special)] = True
        literals = sorted({text for text in special.values() if len(text) > 1}, key=len)[::-1]
        self._special_text = re.compile("|".join(map(re.escape, literals)) or r"(?!)")
        self._plain = _plain(backend)
        alone = self._plain.encode("a", add_special_tokens=False).ids
        after = self._plain.encode("\na", add_special_tokens=False).ids
        self._needs_newline = after[-len(alone) :] != alone
        self._lead: list[int] | None = None

    def prompt_text(self, user: str, system: str = SYSTEM) -> str:
        """Chat template around system and user; the system text joins the user's where refused."""
        if not getattr(self._tokenizer, "chat_template", None):
            return without_template(user, system)
        first = {"role": "system", "content": system}
        text = self._template([first, {"role": "user", "content": user}])
        if text is None or system not in text:
            text = self._template([{"role": "user", "content": f"{system}\n\n{user}"}])
        if text is None or text.count(user) != 1:
            raise ValueError(
                "tokenizer: expected a chat template that keeps the user's text as it is"
            )
        return text

    def _template(self, messages: list[dict[str, str]]) -> str | None:
        """The rendered conversation, or None where the template refuses it."""
        from jinja2.exceptions import TemplateError

        try:
            text: str = self._tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True, enable_thinking=False
            )
        except TemplateError:
            return None
        return text

    def encode(self, text: str) -> tuple[Ints, Offsets]:
        """Ids and ends; a prompt without chat template gets what the tokenizer puts in front."""
        encoding = self._backend.encode(text, add_special_tokens=False)
        lead = self._lead_ids()
        ids = np.array(lead + encoding.ids, dtype=np.int32)
        ends = np.array([0] * len(lead) + [end for _, end in encoding.offsets], dtype=np.int64)
        return ids, ends

    def _lead_ids(self) -> list[int]:
        if self._lead is None:
            if getattr(self._tokenizer, "chat_template", None):
                self._lead = []  # the template writes its own beginning
            else:
                bare = self._backend.encode("a", add_special_tokens=False).ids
                full = self._backend.encode("a", add_special_tokens=True).ids
                starts = [at for at in range(len(full)) if full[at : at + len(bare)] == bare]
                self._lead = full[: starts[0]] if starts else []
        return self._lead

    def encode_captions(self, texts: Sequence[str]) -> list[Ints]:
        """Ids of each caption alone, by the copy of the tokenizer that knows no added token."""
        results = []
        for text, ids in zip(texts, self._plain_ids(texts), strict=True):
            if self._is_special[ids].any():
                ids = self._broken_up(text)
            results.append(ids if ids.size else self._plain_ids([NO_CAPTION])[0])
        return results

    def _plain_ids(self, texts: Sequence[str]) -> list[Ints]:
        if not self._needs_newline:
            encodings = self._plain.encode_batch_fast(list(texts), add_special_tokens=False)
            return [np.array(encoding.ids, dtype=np.int32) for encoding in encodings]
        # Families that mark the start of a text: encode behind a newline, then take it away.
        encodings = self._plain.encode_batch(
            [f"\n{text}" for text in texts], add_special_tokens=False
        )
        results = []
        for encoding in encodings:
            own = [end > 1 for _, end in encoding.offsets]
            results.append(np.array(encoding.ids, dtype=np.int32)[np.array(own, dtype=bool)])
        return results

    def _broken_up(self, text: str) -> Ints:
        """Ids of a text whose vocabulary would read special tokens in it: their names are cut."""
        pieces = []
        at = 0
        for found in self._special_text.finditer(text):
            pieces.append(text[at : found.start() + 1])
            at = found.start() + 1
        pieces.append(text[at:])
        ids = np.concatenate(self._plain_ids([piece for piece in pieces if piece]))
        return ids[~self._is_special[ids]]  # what is left is the unknown token

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids without special tokens."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))


def _plain(backend: Any) -> Any:
    """A ``tokenizers.Tokenizer`` of the same model that knows no added token."""
    made = type(backend)(backend.model)
    for part in ("normalizer", "pre_tokenizer", "decoder"):
        if getattr(backend, part) is not None:
            setattr(made, part, getattr(backend, part))
    return made


def _with_added_tokens(backend: Any) -> Any:
    """One that encodes as the given one does, without padding and truncation."""
    made = _plain(backend)
    if backend.post_processor is not None:
        made.post_processor = backend.post_processor
    added = backend.get_added_tokens_decoder()
    in_order = [token for _, token in sorted(added.items())]
    for special, tokens in itertools.groupby(in_order, key=lambda token: token.special):
        (made.add_special_tokens if special else made.add_tokens)(list(tokens))
    if made.get_added_tokens_decoder() == added:
        return made
    # Ids with gaps: only a file can say them. Slow, it writes and reads the whole vocabulary.
    state = json.loads(backend.to_str()) | {"padding": None, "truncation": None}
    return type(backend).from_str(json.dumps(state))


def as_encoder(tokenizer: Any) -> Encoder:
    """The tokenizer as an encoder: encoders pass through, fast tokenizers are wrapped."""
    return tokenizer if isinstance(tokenizer, Encoder) else FastEncoder(tokenizer)
