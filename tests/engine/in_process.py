"""Scores a few questions with ``sglang.Engine`` in this process; run by test_engine.py."""

from __future__ import annotations

import sys

import numpy as np

from lineup_fast.encoders import ByteEncoder
from lineup_fast.prompt_tokens import PromptBuilder
from lineup_fast.prompts import Recipe
from lineup_fast.verifiers.sglang import SGLangVerifier


def main(folder: str) -> None:
    """The questions that ``Side.questions`` makes, answered by the model in ``folder``."""
    import sglang

    engine = sglang.Engine(
        model_path=folder,
        device="cpu",
        attention_backend="torch_native",
        dtype="float32",
        max_total_tokens=32768,
        context_length=2048,
        skip_tokenizer_init=True,
        sleep_on_idle=True,
    )
    with SGLangVerifier(engine=engine, tokenizer=ByteEncoder()) as verifier:
        builder = PromptBuilder(ByteEncoder(), Recipe(k=4, layout="candidates_first", decimals=0))
        rng = np.random.default_rng(2)
        trees = []
        for _ in range(2):
            series = rng.integers(0, 101, (4, 12)).astype(float)
            spots = rng.integers(0, 12, 8)
            texts = [f"{series[0, at]:.0f} at step {at}, then it moves on." for at in spots]
            trees.append(builder.tree(series, 0, builder.caption_ids(texts)))
        answers = verifier.score(trees, builder.labels)
    assert all(reason is None for answer in answers for reason in answer.reason)
    values = np.stack([answer.label_logprobs for answer in answers]).ravel()
    sys.stdout.write("ANSWERS " + " ".join(map(repr, map(float, values))) + "\n")
    asked = sum(answer.prompt_tokens for answer in answers)
    computed = sum(answer.prefilled_tokens for answer in answers)
    sys.stdout.write(f"CACHED {1 - computed / asked}\n")
    engine.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
