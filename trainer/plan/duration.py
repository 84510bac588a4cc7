"""Seconds of a training step by stage, from sizes and a device's rates.

Every stage is a sum of matmuls, attention, passes over numbers, and operations (which cost a moment
each, and on a small model are most of it).
"""

from __future__ import annotations

from dataclasses import dataclass

from trainer.plan.memory import HEAD_CHUNK, StepShape, Training
from trainer.plan.rates import Rates
from trainer.plan.shapes import ModelShape, TextShape, VisionShape

# Operations of a layer or block, with the Python around them, in units of one small operation.
# Measured on a model of width 32, where nothing else takes time (medians, one thread of a Xeon).
LAYER_OPS, LAYER_BACK_OPS = 550, 475  # in a pack of groups
BLOCK_OPS, BLOCK_BACK_OPS = 275, 375
PROMPT_OPS, DECODE_OPS = 300, 270  # a layer: the prompt, one token of all rows
PACK_OPS, CALL_OPS, TOKEN_OPS = 1550, 500, 140  # around the layers: a pack, a prompt, a token
TENSOR_OPS = 7  # the optimizer, a weight tensor
HEAD_PASSES, HEAD_BACK_PASSES, SAMPLE_PASSES = 16, 8, 24  # over [tokens, V], in float32 numbers
READ_PASSES = 0.8  # of those of a layer that learns: nothing is saved for a backward pass
OPTIMIZER_PASSES = 10  # norm, clipping and AdamW, over each weight that learns


@dataclass(frozen=True)
class Work:
    """Seconds by what they go into."""

    matmul: float = 0.0
    attention: float = 0.0
    passes: float = 0.0
    operations: float = 0.0

    def seconds(self, rates: Rates) -> float:
        """All of it; where operations are queued ahead, whichever takes longer."""
        busy = self.matmul + self.attention + self.passes
        return max(busy, self.operations) if rates.overlaps else busy + self.operations

    def __add__(self, other: Work) -> Work:
        return Work(
            self.matmul + other.matmul,
            self.attention + other.attention,
            self.passes + other.passes,
            self.operations + other.operations,
        )

    def times(self, n: float) -> Work:
        """As often as n."""
        return Work(self.matmul * n, self.attention * n, self.passes * n, self.operations * n)


def _layer_passes(text: TextShape) -> tuple[float, float]:
    """Numbers a row that elementwise operations of a layer read and write: forward, backward."""
    d, q, kv, f = text.hidden, text.q_width, text.kv_width, text.ffn
    forward = 20.0 * d + 9 * (q + kv) + 20 * q + 6 * kv + 5 * f
    backward = 59.0 * d + 12 * (q + kv) + 30 * q + 9 * f
    return forward, backward


def _block_passes(tower: VisionShape) -> tuple[float, float]:
    d, f = tower.hidden, tower.ffn
    return 20.0 * d + 9 * 2 * d + 14 * d + 5 * f, 59.0 * d + 12 * 2 * d + 20 * d + 9 * f


def update(model: ModelShape, training: Training, step: StepShape, rates: Rates) -> Work:
    """All optimizer steps of one rollout step."""
    n_micro = -(-step.groups_per_update // step.micro)
    one = _packed(model, training, step, rates).times(n_micro)
    learns = training.trainable(model)
    passes = OPTIMIZER_PASSES + 3 * (n_micro - 1)
    tensors = 12 * model.text.layers + 12 * (model.vision.depth if model.vision else 0)
    optimizer = Work(
        passes=rates.passes_s(4.0 * passes * learns, 4.0 * learns / tensors),
        operations=tensors * TENSOR_OPS * rates.op_s,
    )
    return (one + optimizer).times(step.updates)


def _packed(model: ModelShape, training: Training, step: StepShape, rates: Rates) -> Work:
    """Forward and backward pass of one pack of groups."""
    text, rows, width = model.text, step.packed_rows, training.width
    forward = Work(
        matmul=text.layers * _linears_s(text, rows, width, rates),
        attention=text.layers * _packed_attention(text, step) / rates.attention,
        passes=text.layers * _passes_s(text, rows, width, rates, 0),
        operations=text.layers * LAYER_OPS * rates.op_s,
    )
    # gradients of inputs and, where they learn, of weights; scores are computed again
    linears = forward.matmul * (1.0 if training.lora_rank else 2.0)
    backward = Work(
        matmul=linears,
        attention=2.5 * forward.attention,
        passes=text.layers * _passes_s(text, rows, width, rates, 1),
        operations=text.layers * LAYER_BACK_OPS * rates.op_s,
    )
    work = forward + backward
    if training.checkpointing:
        work += forward
    tokens = step.scored_tokens
    heads = 3 if training.lora_rank else 4  # logits twice, gradients of hidden states and of head
    work += Work(
        matmul=heads * rates.matmul_s(tokens, text.embedding, width),
        passes=rates.passes_s(
            4.0 * (HEAD_PASSES + HEAD_BACK_PASSES) * tokens * text.vocabulary,
            4.0 * min(HEAD_CHUNK, tokens) * text.vocabulary,
        ),
        operations=PACK_OPS * rates.op_s,
    )
    if model.vision is not None:
        once = _tower(model.vision, step.micro, step.patches, width, rates)
        work += once
        if not (training.lora_rank or training.freeze_vision):
            work += Work(
                matmul=2 * once.matmul,
                attention=2.5 * once.attention,
                passes=once.passes * _block_passes(model.vision)[1]
                / _block_passes(model.vision)[0],
                operations=once.operations * BLOCK_BACK_OPS / BLOCK_OPS,
            )  # fmt: skip
            if training.checkpointing:
                work += once
    return work


def _linears_s(text: TextShape, rows: float, width: int, rates: Rates) -> float:
    """All linear layers of one decoder layer."""
    return sum(rates.matmul_s(rows, a * b, width) for a, b in text.linears().values())


def _passes_s(text: TextShape, rows: float, width: int, rates: Rates, way: int) -> float:
    """Elementwise operations of one decoder layer, forward (0) or backward (1)."""
    return rates.passes_s(rows * width * _layer_passes(text)[way], rows * text.ffn * width)


def _packed_attention(text: TextShape, step: StepShape) -> float:
    """FLOPs of shared-prefix attention in one layer, forward: prefix, cross and own parts."""
    p, length = step.prompt_tokens, max(0.0, step.caption_tokens - 1)
    captions = step.micro * step.group_size
    pairs = step.micro * p * p / 2 + captions * length * p + captions * length**2 / 2
    return 4.0 * text.q_width * pairs


def _tower(tower: VisionShape, charts: int, patches: int, width: int, rates: Rates) -> Work:
    """Forward pass of the vision tower."""
    rows = charts * patches
    d, f = tower.hidden, tower.ffn
    block = sum(
        rates.matmul_s(rows, size, width) for size in (3 * d * d, d * d, d * f, d * f, d * f)
    )
    wide = d * tower.merge**2
    merged = rows / tower.merge**2
    ends = rates.matmul_s(rows, tower.patch_values * d, width)
    ends += rates.matmul_s(merged, wide * wide, width)
    ends += rates.matmul_s(merged, wide * tower.out, width)
    window = min(patches, (tower.window // tower.patch) ** 2)
    seen = tower.full * patches + (tower.depth - tower.full) * window
    return Work(
        matmul=tower.depth * block + ends,
        attention=4.0 * d * rows * seen / rates.attention,
        passes=rates.passes_s(
            (tower.depth * _block_passes(tower)[0] + 2 * tower.patch_values) * rows * width,
            rows * f * width,
        ),
        operations=tower.depth * BLOCK_OPS * rates.op_s,
    )  # fmt: skip


def rollout(model: ModelShape, training: Training, step: StepShape, rates: Rates) -> Work:
    """G captions of every chart; all rows of a batch are fed until its longest has ended."""
    batches = -(-step.charts // step.charts_at_once)
    charts = step.charts / batches
    width, text = training.width, model.text
    prompts = charts * step.prompt_tokens
    work = Work(
        matmul=text.layers * _linears_s(text, prompts, width, rates),
        attention=text.layers * 2.0 * text.q_width * prompts * step.prompt_tokens / rates.attention,
        passes=text.layers * _passes_s(text, prompts, width, rates, 0),
        operations=(text.layers * PROMPT_OPS + CALL_OPS) * rates.op_s,
    )
    if model.vision is not None:
        work += _tower(model.vision, round(charts), step.patches, width, rates)
    work += _decoding(text, charts, width, step, rates)
    return work.times(batches)


def _decoding(
    text: TextShape, charts: float, width: int, step: StepShape, rates: Rates
) -> Work:  # fmt: skip
    rows, longest = charts * step.group_size, step.longest
    fed = max(0, longest - 1)
    layers = text.layers
    keys = charts * step.prompt_tokens + rows * longest / 2  # read a step, on average
    scores = rows * text.heads * (step.prompt_tokens + longest / 2)
    per_step = Work(
        matmul=layers * _linears_s(text, rows, width, rates),
        attention=layers * 2.0 * keys * text.kv_width * width / rates.weights,
        passes=layers
        * (_passes_s(text, rows, width, rates, 0) + rates.passes_s(24.0 * scores, 4 * scores)),
        operations=layers * DECODE_OPS * rates.op_s,
    )  # fmt: skip
    logits = rows * text.vocabulary
    a_token = Work(
        matmul=rates.matmul_s(rows, text.embedding, width),
        passes=rates.passes_s(4.0 * SAMPLE_PASSES * logits, 4.0 * logits),
        operations=TOKEN_OPS * rates.op_s,
    )
    return per_step.times(fed) + a_token.times(longest)


def prefill(text: TextShape, tokens: float, context: float, questions: int, width: int,
            rates: Rates) -> Work:  # fmt: skip
    """The verifier reads `tokens` distinct tokens, each with `context` others before it."""
    waves = max(1.0, tokens / 4096)
    return Work(
        matmul=text.layers * _linears_s(text, tokens, width, rates)
        + rates.matmul_s(questions, text.embedding, width),
        attention=text.layers * 4.0 * text.q_width * tokens * context / rates.attention,
        passes=READ_PASSES * text.layers * _passes_s(text, tokens, width, rates, 0),
        operations=waves * text.layers * LAYER_OPS * rates.op_s,
    )
