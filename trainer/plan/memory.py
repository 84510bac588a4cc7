"""Peak memory of a training step, itemised, from sizes alone.

Counts the tensors that the code keeps: what autograd saves in one decoder layer and one vision
block, the chunk of the head, keys and values of the rollout, the ladder of the sampler. Allocator
overhead, CUDA context (0.5 to 1 GB) and library workspaces are not in it.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainer.plan.shapes import ModelShape, TextShape, VisionShape

HEAD_CHUNK = 1024  # trainer.logprobs.CHUNK
FIRST_ROOM = 64  # rollouts.decoding: caption tokens the own cache holds before it first grows
SAMPLER_BYTES = 24  # a token and id: log-probabilities, probabilities, and two ladders in float64
VERIFIER_KV, VERIFIER_ROWS, VERIFIER_HEAD = 1 << 30, 4096, 64  # TransformersVerifier, PrefixEngine
MATH_SCORES = 1 << 27  # scores the verifier's attention holds at once off the CPU
SMALL = 4096  # bitsandbytes keeps float32 moments of tensors with fewer numbers


@dataclass(frozen=True)
class StepShape:
    """What one step works on.

    prompt_tokens: P, chart included; patches and chart_pixels of one chart; caption_tokens: mean
    length L; longest: of the rollout; the rest as in RlooConfig.
    """

    prompt_tokens: int
    patches: int
    chart_pixels: int
    caption_tokens: float
    longest: int
    charts: int
    group_size: int
    captions_per_update: int
    micro_groups: int
    charts_at_once: int
    max_new_tokens: int
    ahead: int = 1

    @property
    def updates(self) -> int:
        """Optimizer steps of a rollout step."""
        return self.charts * self.group_size // self.captions_per_update

    @property
    def groups_per_update(self) -> int:
        """Groups behind one optimizer step."""
        return self.captions_per_update // self.group_size

    @property
    def micro(self) -> int:
        """Groups in one forward and backward pass."""
        return min(self.micro_groups, self.groups_per_update)

    @property
    def packed_rows(self) -> float:
        """T, rows of one packed forward pass."""
        behind = self.group_size * (self.caption_tokens - 1)
        return self.micro * (self.prompt_tokens + behind)

    @property
    def scored_tokens(self) -> float:
        """N, caption tokens of one packed forward pass."""
        return self.micro * self.group_size * self.caption_tokens


@dataclass(frozen=True)
class Training:
    """How weights are held. narrow: matmuls in bfloat16; lora_rank 0: all weights learn."""

    narrow: bool = False
    checkpointing: bool = False
    optimizer: str = "adamw"
    lora_rank: int = 0
    lora_modules: tuple[str, ...] = ()
    frozen_bytes: int = 4
    freeze_vision: bool = False

    @property
    def width(self) -> int:
        """Bytes of a matmul's result."""
        return 2 if self.narrow else 4

    def trainable(self, model: ModelShape) -> int:
        """Weights that learn."""
        if self.lora_rank:
            return model.text.adapter_weights(self.lora_rank, self.lora_modules)
        frozen = model.vision.parameters if model.vision and self.freeze_vision else 0
        return model.parameters - frozen


def weights(model: ModelShape, training: Training) -> float:
    """Bytes of all weights: float32 where they learn."""
    if not training.lora_rank:
        return 4.0 * model.parameters
    return 4.0 * training.trainable(model) + training.frozen_bytes * model.parameters


def narrow_copies(model: ModelShape, training: Training) -> float:
    """bfloat16 copies of the learning matrices, which autocast keeps within one pass."""
    if not training.narrow:
        return 0.0
    if training.lora_rank:
        return 2.0 * training.trainable(model)
    tower = model.vision
    learning = 0 if tower is None or training.freeze_vision else tower.depth * tower.block_weights
    return 2.0 * (model.text.linear_weights + learning)


def optimizer_state(model: ModelShape, training: Training) -> float:
    """Bytes of AdamW's moments on the device."""
    n = training.trainable(model)
    if training.optimizer == "adamw-offload":
        return 0.0
    if training.optimizer == "adamw8bit":
        return n * (2 + 2 * 4 / 256)
    return 8.0 * n


def layer_saved(text: TextShape, training: Training) -> float:
    """Bytes a row that autograd keeps in one decoder layer.

    In float32: two residuals, two norms and their outputs, q, k, v and attention's output, and the
    four products of the feed-forward part. Under autocast each matmul keeps a narrow copy of its
    own input, and the rest stays float32.
    """
    d, q, kv, f = text.hidden, text.q_width, text.kv_width, text.ffn
    if training.narrow:
        return 26.0 * d + 4 * q + 4 * kv + 8 * f
    return 4.0 * (6 * d + 2 * q + 2 * kv + 4 * f)


def block_saved(tower: VisionShape, training: Training) -> float:
    """Bytes a patch that autograd keeps in one vision block."""
    if training.narrow:
        return 28.0 * tower.hidden + 8 * tower.ffn
    return 4.0 * (10 * tower.hidden + 4 * tower.ffn)


def activations(model: ModelShape, training: Training, step: StepShape) -> dict[str, float]:
    """Bytes alive at the end of the packed forward pass, and what one layer's backward adds."""
    text, rows = model.text, step.packed_rows
    layer = rows * layer_saved(text, training)
    kept = 4.0 * rows * text.hidden  # a layer's input, all that checkpointing keeps of it
    items = {
        "activations, decoder": text.layers * (kept if training.checkpointing else layer)
        + text.hidden
        * ((4 if training.lora_rank else 8) * rows + training.width * step.scored_tokens)
    }
    tower, learns = model.vision, not (training.lora_rank or training.freeze_vision)
    if tower is not None and learns:
        patches = step.micro * step.patches
        block = patches * block_saved(tower, training)
        kept = training.width * patches * tower.hidden
        items["activations, vision"] = tower.depth * (
            kept if training.checkpointing else block
        ) + training.width * patches * (2 * tower.hidden + tower.patch_values)
    backward = rows * training.width * (3 * text.ffn + 4 * text.q_width + 2 * text.hidden)
    items["one layer's backward"] = backward + (layer if training.checkpointing else 0.0)
    return items


def head(text: TextShape, training: Training, step: StepShape) -> dict[str, float]:
    """Bytes of the head's chunk in the forward and in the backward pass."""
    chunk = min(HEAD_CHUNK, step.scored_tokens)
    learns = not training.lora_rank
    narrow = 2.0 * text.embedding if training.narrow else 0.0
    forward = 12.0 * chunk * text.vocabulary + narrow
    backward = (10.0 if training.narrow else 8.0) * chunk * text.vocabulary + 2 * narrow
    backward += text.embedding * (4.0 + training.width) * learns
    return {"forward": forward, "backward": backward}


def update(model: ModelShape, training: Training, step: StepShape) -> dict[str, float]:
    """Items alive at the peak of the update, beside weights and moments.

    With several micro-batches the gradients of the first lie beside the activations of the next;
    with one, gradients grow as activations go, and the larger end counts.
    """
    gradients = 4.0 * training.trainable(model)
    saved = activations(model, training, step)
    backward = saved.pop("one layer's backward")
    top = head(model.text, training, step)
    embedding = 0.0 if training.lora_rank else 4.0 * model.text.embedding
    at_top = {"head": max(top.values())}
    if backward > at_top["head"]:
        at_top = {"one layer's backward": backward}
    full = saved | at_top | {"narrow copies": narrow_copies(model, training)}
    several = step.groups_per_update > step.micro
    if several:
        return {"gradients": gradients} | full
    end = {"gradients": gradients, "embedding's gradient": embedding}
    return full if sum(full.values()) > sum(end.values()) else end


def kv_bytes(text: TextShape, width: int) -> float:
    """Keys and values of one token in all layers."""
    return 2.0 * text.layers * text.kv_width * width


def own_room(longest: int, limit: int) -> int:
    """Caption tokens the cache of a row has grown to."""
    room = min(FIRST_ROOM, limit)
    while room < min(longest - 1, limit):
        room = min(2 * room, limit)
    return room


def rollout(model: ModelShape, training: Training, step: StepShape) -> dict[str, float]:
    """Items alive at the peak of the rollout, beside weights and moments."""
    text, width = model.text, training.width
    charts = min(step.charts_at_once, step.charts)
    rows = charts * step.group_size
    prompts = charts * step.prompt_tokens
    room = own_room(step.longest, step.max_new_tokens)
    items = {
        "narrow copies": narrow_copies(model, training),
        "keys and values, prompts": prompts * kv_bytes(text, width),
    }
    late = items | {
        "keys and values, captions": rows * room * kv_bytes(text, width),
        "logits and sampling": float(SAMPLER_BYTES) * rows * text.vocabulary,
    }
    early = items | {
        "prompt's forward": prompts
        * (width * (3.0 * text.ffn + 3 * text.q_width) + 4.0 * 4 * text.hidden)
    }
    return max((late, early), key=lambda found: sum(found.values()))


def inputs(model: ModelShape, step: StepShape) -> float:
    """Charts and patches of the step at work and of those prepared or waiting."""
    if model.vision is None:
        return 0.0
    numbers = step.patches * model.vision.patch_values
    one = step.charts * (4.0 * numbers + 3 * step.chart_pixels)
    return (1 + step.ahead) * one


def verifier(
    model: ModelShape, width: int, tokens: float, kept: float, *, on_cpu: bool
) -> tuple[dict[str, float], dict[str, float]]:
    """Items of the verifier: what stays between questions, and what a call adds.

    tokens, kept: of one call, see `ReadTokens`; kept with the copies. The forward pass is largest
    in its feed-forward part.
    """
    text = model.text
    rows = min(VERIFIER_ROWS, tokens)
    forward = rows * width * (3.0 * text.ffn + 5 * text.hidden + 2 * text.head_dim)
    forward += VERIFIER_HEAD * text.vocabulary * (width + 4.0)
    call = {
        "verifier: keys and values": min(kept * kv_bytes(text, width), VERIFIER_KV * kept / tokens),
        "verifier: forward": forward,
    }
    if not on_cpu:
        call["verifier: attention scores"] = 3.0 * 4 * MATH_SCORES
    return {"verifier: weights": float(width) * model.parameters}, call
