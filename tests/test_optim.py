"""Optimizers: the same steps wherever the moments live, and gradient checkpointing."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.random_vlm import byte_tokenizer, random_captioner, random_images, random_model
from tests.scripted_run import FewSeries, ScriptedReward, settings, vowels
from trainer import checkpoint, optim
from trainer.checkpoint import Counters
from trainer.optim import apply_update, make_optimizer
from trainer.policy import Captioner
from trainer.record.console import Console
from trainer.rloo import train

HAS_8BIT = importlib.util.find_spec("bitsandbytes") is not None
needs_8bit = pytest.mark.skipif(not HAS_8BIT, reason="bitsandbytes is not installed")
KINDS = [pytest.param("adamw"), pytest.param("adamw-offload"),
         pytest.param("adamw8bit", marks=needs_8bit)]  # fmt: skip


def weights(*shapes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]


def steps(kind: str, n: int, clip_norm: float = 1.0) -> tuple[list[Tensor], list[float]]:
    """Weights after n updates with the same gradients, and the norms."""
    parameters = weights((96, 64), (64,), (7, 3))  # 6,144 numbers: enough for 8-bit moments
    optimizer = make_optimizer(kind, parameters, (0.9, 0.95), 0.01)
    generator = torch.Generator().manual_seed(1)
    norms = []
    for step in range(n):
        for parameter in parameters[: 3 if step else 2]:  # one without a gradient at first
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        norms.append(apply_update(optimizer, parameters, 1e-3, clip_norm))
        assert all(parameter.grad is None for parameter in parameters)
    return parameters, norms


def test_offloaded_steps_are_the_same() -> None:
    (one, norms), (other, others) = steps("adamw", 5), steps("adamw-offload", 5)
    assert norms == others
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    loose, _ = steps("adamw-offload", 5, clip_norm=1e9)  # clipping reaches the host's gradients:
    assert not torch.equal(loose[0], other[0])  # weights would be the same had it not


def test_offloaded_weights_narrower_than_their_copy() -> None:
    narrow = [torch.nn.Parameter(torch.ones(4, 4, dtype=torch.bfloat16))]
    optimizer = make_optimizer("adamw-offload", narrow, (0.9, 0.95), 0.0)
    for _ in range(64):  # each step is below what bfloat16 can show
        narrow[0].grad = torch.ones(4, 4, dtype=torch.bfloat16)
        apply_update(optimizer, narrow, 2e-4, 1e9)
    assert abs(float(narrow[0].detach()[0, 0]) - (1 - 64 * 2e-4)) < 0.004


@needs_8bit
def test_eight_bit_steps_are_close() -> None:
    start = weights((96, 64), (64,), (7, 3))
    (one, _), (other, _) = steps("adamw", 20), steps("adamw8bit", 20)
    moved = [torch.cat([(b - a).flatten() for a, b in zip(start, after, strict=True)])
             for after in (one, other)]  # fmt: skip
    moved = [one.detach() for one in moved]
    assert torch.nn.functional.cosine_similarity(*moved, dim=0) > 0.99
    assert float((moved[0] - moved[1]).norm() / moved[0].norm()) < 0.1
    assert torch.allclose(one[1], other[1], atol=1e-6)  # small tensors keep float32 moments


@needs_8bit
def test_eight_bit_moments_are_small() -> None:
    parameters = weights((256, 256))
    optimizer = make_optimizer("adamw8bit", parameters, (0.9, 0.95), 0.0)
    parameters[0].grad = torch.ones_like(parameters[0])
    apply_update(optimizer, parameters, 1e-3, 1.0)
    state = optim.state_of(optimizer, parameters[0])
    n_bytes = sum(x.numel() * x.element_size() for k, x in state.items() if "qmap" not in k)
    assert n_bytes < 2.1 * parameters[0].numel()


@pytest.mark.parametrize("kind", KINDS)
def test_moments_survive_a_checkpoint(kind: str, tmp_path: Path) -> None:
    captioner = Captioner(random_model(), byte_tokenizer(), caption_prompt="Describe.")
    # wide enough for 8-bit moments, which small tensors do not get
    wide = torch.nn.Parameter(torch.randn(80, 64))
    captioner.model.register_parameter("wide", wide)
    optimizer = make_optimizer(kind, captioner.model.parameters(), (0.9, 0.95), 0.0)
    fill(captioner, 1.0)
    apply_update(optimizer, list(captioner.model.parameters()), 1e-3, 1.0)
    path = checkpoint.save(tmp_path, captioner, optimizer, Counters(step=7, update=1, tokens=5))

    again = Captioner(random_model(seed=1), byte_tokenizer(), caption_prompt="Describe.")
    again.model.register_parameter("wide", torch.nn.Parameter(wide.detach().clone()))
    again.model.load_state_dict(captioner.model.state_dict())
    fresh = make_optimizer(kind, again.model.parameters(), (0.9, 0.95), 0.0)
    assert checkpoint.load(path, again, fresh) == Counters(step=7, update=1, tokens=5)
    for _ in range(2):
        for one, opt in ((captioner, optimizer), (again, fresh)):
            fill(one, 0.5)
            apply_update(opt, list(one.model.parameters()), 1e-3, 1.0)
    for a, b in zip(captioner.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(a, b)
    state = optim.state_of(optimizer, wide)
    assert ("absmax1" in state) == (kind == "adamw8bit")


def fill(captioner: Captioner, scale: float) -> None:
    for row, parameter in enumerate(captioner.model.parameters()):
        generator = torch.Generator().manual_seed(row)
        parameter.grad = scale * torch.randn(parameter.shape, generator=generator)


def test_a_run_cannot_change_its_optimizer(tmp_path: Path) -> None:
    random_model().save_pretrained(tmp_path / "model")
    byte_tokenizer().save_pretrained(tmp_path / "model")
    reward, quiet = ScriptedReward(vowels), Console("", 2, enabled=False)
    run = tmp_path / "run"
    frozen = {"steps": 2, "freeze_vision": True}  # has no moments to be saved
    config = settings(tmp_path / "model", run, **frozen, optimizer="adamw-offload")
    assert train(config, FewSeries(), reward, console=quiet)
    changed = settings(tmp_path / "model", run, **frozen, resume=True)
    with pytest.raises(ValueError, match="got other optimizer"):
        train(changed, FewSeries(), reward, console=quiet)
    same = settings(tmp_path / "model", tmp_path / "plain", **frozen)
    assert train(same, FewSeries(), reward, console=quiet)
    rows = [(folder / "best.json").read_text() for folder in (run, tmp_path / "plain")]
    assert rows[0] == rows[1]


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise optim.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(optim.metadata, "version", missing)
    assert optim.usable("adamw") == (True, f"torch {torch.__version__}")
    assert optim.usable("adamw8bit") == (False, "pip install 'bitsandbytes>=0.50'")
    with pytest.raises(ValueError, match="pip install 'bitsandbytes"):
        make_optimizer("adamw8bit", weights((2, 2)), (0.9, 0.95), 0.0)
    with pytest.raises(ValueError, match="optimizer: expected adamw, adamw8bit"):
        make_optimizer("sgd", weights((2, 2)), (0.9, 0.95), 0.0)


def test_recomputed_activations_leave_gradients_equal() -> None:
    grads = []
    for recompute in (False, True):
        captioner = random_captioner()
        if recompute:
            captioner.model.gradient_checkpointing_enable({"use_reentrant": False})
            captioner.model.train()
        prompts = captioner.prompts(random_images(2))
        captions = [[torch.arange(40, 47), torch.arange(60, 63)], [torch.arange(90, 95)]]
        captioner.token_logps(prompts, captions)[0].sum().backward()
        grads.append([p.grad for p in captioner.model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


def kept_for_backward(captioner: Captioner) -> int:
    """Bytes of activations that the graph of a loss holds, without the weights."""
    weights = {p.untyped_storage().data_ptr() for p in captioner.model.parameters()}
    held: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        held[tensor.untyped_storage().data_ptr()] = tensor  # alive, so that no address comes twice
        return tensor

    captions = [[torch.arange(40, 48).repeat(50)] * 8] * 2
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = captioner.token_logps(captioner.prompts(random_images(2)), captions)[0].sum()
    loss.backward()
    return sum(t.untyped_storage().nbytes() for at, t in held.items() if at not in weights)


def test_recomputed_activations_are_not_kept() -> None:
    kept = []
    for recompute in (False, True):
        captioner = random_captioner()
        if recompute:
            captioner.model.gradient_checkpointing_enable({"use_reentrant": False})
            captioner.model.train()
        kept.append(kept_for_backward(captioner))
    assert kept[1] < 0.3 * kept[0], kept
