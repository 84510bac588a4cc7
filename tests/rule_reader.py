"""A reader that answers by rules over text, behind the stand-in for an SGLang server.

It judges a caption by the values it names, and answers questions by the steps it names: enough to
pass the judge's self-test, to be worth training against, and to be computed beside in plain Python.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerFast

from tests.random_vlm import byte_tokenizer
from tests.standin_sglang import VOCABULARY, StandIn

NUMBER = r"-?\d+(?:\.\d+)?"
CUE = "Answer:"
NEAR = 2.0  # what still counts as the value, on a scale of 0 to 100


def letters(folder: Path) -> PreTrainedTokenizerFast:
    """A tokenizer of one token a byte and no template, saved in the folder."""
    words = byte_tokenizer()
    words.chat_template = None
    words.save_pretrained(folder)
    return words


def claims(caption: str) -> list[tuple[str | int, float]]:
    """Places (a step, "starts" or "ends") and the values that a caption gives them."""
    found: list[tuple[str | int, float]] = [
        (int(step), float(value))
        for value, step in re.findall(rf"({NUMBER}) at step (\d+)", caption)
    ]
    for end, value in re.findall(rf"(starts|ends) at ({NUMBER})", caption.lower()):
        found.append((end, float(value)))
    return found


def grade(values: Sequence[float], caption: str) -> int:
    """5 where nothing is claimed, else 1 to 9 by the share of the claims that are true."""
    made = claims(caption)
    if not made:
        return 5
    places = {"starts": 0, "ends": len(values) - 1}
    steps = [places.get(place, place) if isinstance(place, str) else place for place, _ in made]
    right = [
        int(step) < len(values) and abs(values[int(step)] - value) <= NEAR
        for step, (_, value) in zip(steps, made, strict=True)
    ]
    return 1 + round(8 * sum(right) / len(right))


def choice(stem: str, options: Sequence[str], caption: str) -> int:
    """The option whose steps hold the highest value that is named (the lowest, where the stem asks
    for that), the first option where no step of theirs is named."""
    low = re.search(r"lowest|minimum|fall|decrease", stem) is not None
    named = [(-value if low else value, place) for place, value in claims(caption)
             if isinstance(place, int)]  # fmt: skip
    for _, step in sorted(named, reverse=True):
        for at, option in enumerate(options):
            ends = [int(number) for number in re.findall(r"\d+", option)]
            if len(ends) == 2 and ends[0] <= step <= ends[1]:
                return at
    return 0


def answer(prompt: str) -> str | None:
    """The next character behind a prompt of the judge or of answerability; None for other text."""
    quoted = re.search(r'"""\n(.*?)\n"""', prompt, re.DOTALL)
    if quoted is None or CUE not in prompt:
        return None
    caption = quoted[1]
    if "multiple-choice" in prompt:
        _, _, rest = prompt.partition("Steps are counted from 0.\n\n")
        stem, *lines = rest.splitlines()
        options = [line[3:] for line in lines if re.match(r"[A-Z]\) ", line)]
        return "ABCDEFGHIJKL"[choice(stem, options, caption)]
    printed = re.search(r"\[(.*)\]", prompt)
    assert printed is not None
    values = [float(text) for text in printed[1].split(",")]
    return str(grade(values, caption)) if prompt.endswith(CUE) else "."  # "1" is no ten


class RuleReader(StandIn):
    """The stand-in server, with the rules above in place of a model."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.words, self._folder = letters(folder), folder
        super().__init__(**options)

    def get(self, path: str) -> tuple[int, Any]:
        """Answer a GET request."""
        status, body = super().get(path)
        if path == "/model_info":
            body["tokenizer_path"] = str(self._folder)
        return status, body

    def log_probs(self, ids: Sequence[int]) -> np.ndarray:
        """Nearly all probability on the answer of the rules."""
        said = answer(self.words.decode(list(ids), skip_special_tokens=False))
        if said is None:
            return super().log_probs(ids)
        logits = np.full(VOCABULARY, -8.0)
        logits[self.words.convert_tokens_to_ids(said)] = 0.0
        return np.asarray(logits - np.logaddexp.reduce(logits))


class RuleEngine:
    """The rules as an ``sglang.Engine`` of this process; ``sizes`` tells the prompts of each call.

    Prefixes are cached from one call to the next.
    """

    def __init__(self, folder: Path) -> None:
        self._server = RuleReader(folder)
        self._server._server.server_close()  # nobody connects
        self.sizes: list[int] = []

    def get_model_info(self) -> dict[str, Any]:
        return dict(self._server.get("/model_info")[1])

    def get_server_info(self) -> dict[str, Any]:
        return dict(self._server.get("/server_info")[1])

    def generate(self, *, input_ids: list[list[int]], **options: Any) -> Any:
        self.sizes.append(len(input_ids))
        status, rows = self._server.post("/generate", {"input_ids": input_ids, **options})
        if status != 200:
            raise ValueError(str(rows))
        return rows
