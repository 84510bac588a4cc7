"""Which attention runs: libraries that are here and right, and the reason for each that is not."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests import standin_flash
from tests.random_vlm import byte_tokenizer, random_captioner, random_images, random_model
from trainer.attention import Spans, choice, group_layout
from trainer.attention.choice import CANDIDATES, Heads, check, choose, dense_attention
from trainer.attention.padded import CPU, EFFICIENT, PLAIN
from trainer.attention.segments import Between, Saved
from trainer.attention.shared_prefix import shared_prefix_attention
from trainer.attention.varlen import Varlen, flash2, flash3, flash4, torch_varlen
from trainer.choice import Candidate, UnfitError, first_right, module
from trainer.policy import Captioner

LOADERS = (torch_varlen, flash2, flash3, flash4)
SHAPES = [(4, 4, 8), (4, 2, 16), (6, 1, 8)]
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture
def libraries() -> Iterator[None]:
    with standin_flash.installed():
        yield


def choose_anew(monkeypatch: pytest.MonkeyPatch, *candidates: Any) -> None:
    """These candidates for the CPU, nothing remembered, until the test ends."""
    monkeypatch.setitem(CANDIDATES, "cpu", candidates)
    fresh = choice.functools.cache(choose.__wrapped__)
    monkeypatch.setattr(choice, "choose", fresh)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("op", [CPU, PLAIN])
def test_padded_ops_are_right(op: Any, shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    check(op, Heads("cpu", dtype, *shape))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("load", LOADERS)
def test_libraries_are_called_as_they_want(
    libraries: None, load: Callable[[], Varlen], shape: tuple[int, int, int], dtype: torch.dtype
) -> None:
    check(load(), Heads("cpu", dtype, *shape))


def test_the_stand_in_of_torch_has_its_signatures() -> None:
    from torch.nn.attention import varlen

    ours = inspect.signature(standin_flash._aten_backward).parameters
    theirs = torch.ops.aten._flash_attention_backward.default._schema.arguments
    assert len(ours) == len(theirs)
    names = set(inspect.signature(varlen.varlen_attn).parameters)
    assert {"return_aux", "scale", "window_size", "enable_gqa"} <= names
    backward = torch.ops.torch_attn._varlen_attn_backward.default._schema.arguments
    assert [a.name for a in backward][:10] == [
        *("grad_out", "query", "key", "value", "out", "lse"),
        *("cu_seq_q", "cu_seq_k", "max_q", "max_k"),
    ]
    assert [a.name for a in backward][10:] == ["is_causal", "rng_state", "scale", "window_size"]


def _own_lse(op: Varlen) -> Varlen:
    """Gradients with the log-sum-exp of these keys, not of all."""

    def differentiate(saved: Saved, between: Between[Spans]) -> Any:
        out, lse = op.attend(saved.q, saved.k, saved.v, between)
        return op.differentiate(saved._replace(out=out, lse=lse), between)

    return replace(op, differentiate=differentiate)


def _not_causal(op: Varlen) -> Varlen:
    def attend(q: Tensor, k: Tensor, v: Tensor, between: Between[Spans]) -> Any:
        return op.attend(q, k, v, replace(between, causal=False))

    return replace(op, attend=attend)


def _in_bits(op: Varlen) -> Varlen:
    """Log-sum-exp to the base 2, where that of one prefix needs no merging."""

    def attend(*asked: Any) -> Any:
        out, lse = op.attend(*asked)
        return out, lse * 1.4427

    return replace(op, attend=attend)


@pytest.mark.parametrize(
    ("spoil", "wrong"),
    [(_own_lse, "gradient of q"), (_not_causal, "output"), (_in_bits, "output")],
)
def test_a_wrong_library_is_passed_over(
    libraries: None, monkeypatch: pytest.MonkeyPatch, spoil: Any, wrong: str
) -> None:
    choose_anew(
        monkeypatch,
        ("spoiled", lambda: spoil(flash2()), None),
        ("flash-attn 3", flash3, (torch.bfloat16,)),
        ("flash-attn 4", flash4, None),
    )
    made = choice.choose(Heads("cpu", torch.float32, 4, 2, 8))
    assert made.name == "flash-attn 4"
    assert f"failed its check: ValueError: {wrong}: expected" in made.passed_over["spoiled"]
    assert made.passed_over["flash-attn 3"] == "takes bfloat16, not float32"


def test_nothing_of_cuda_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("flash_attn", "flash_attn_interface"):
        monkeypatch.setitem(standin_flash.sys.modules, name, None)
    choose_anew(monkeypatch, *CANDIDATES["cuda"])
    made = choice.choose(Heads("cpu", torch.bfloat16, 4, 2, 16))
    assert made.op is PLAIN
    assert list(made.passed_over) == [name for name, *_ in CANDIDATES["cuda"]]
    assert made.passed_over["flash-attn 2"].startswith("flash_attn.flash_attn_interface")
    assert "_flash_attention_forward" in made.passed_over["torch.nn.attention.varlen"]
    assert choose(Heads("meta", torch.float32, 1, 1, 8)).name == "the plain formula"


def test_a_choice_keeps_why_others_were_not_made() -> None:
    def fails() -> int:
        raise RuntimeError("no\n  kernel image")

    def broken(op: int) -> None:
        if op == 1:
            raise AssertionError

    found = first_right(
        [Candidate("a", fails), Candidate("b", lambda: 1), Candidate("c", lambda: module("nope"))],
        broken,
        Candidate("d", lambda: 2),
    )
    assert (found.name, found.op) == ("d", 2)
    assert found.passed_over == {
        "a": "failed its check: RuntimeError: no kernel image",
        "b": "failed its check: AssertionError",
        "c": "nope is not installed",
    }
    with pytest.raises(UnfitError, match=r"nope\.deeper is not installed"):
        module("nope.deeper")


def test_the_caller_is_not_disturbed_by_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under checkpointing every tensor saved in between would count."""
    choose_anew(monkeypatch, ("torch's fused attention", lambda: CPU, None))
    seen: list[Tensor] = []
    heads = Heads("cpu", torch.float32, 2, 1, 8)
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda x: seen.append(x) or x, lambda x: x)
    with hooks, torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert choice.choose(heads).passed_over == {}
    assert not seen


def _flat(layout: Any, heads: int, kv_heads: int) -> list[Tensor]:
    random = torch.Generator().manual_seed(0)
    shapes = [(layout.n_rows, n, 8) for n in (heads, kv_heads, kv_heads, heads)]
    return [torch.randn(shape, generator=random, dtype=torch.float64) for shape in shapes]


@pytest.mark.parametrize("captions", [[[1]], [[1, 1], [1]], [[5, 1], [1]], [[3], [1, 1], [2, 4]]])
@pytest.mark.parametrize("load", [torch_varlen, lambda: CPU, lambda: PLAIN])
def test_groups_without_rows(libraries: None, captions: list[list[int]], load: Any) -> None:
    layout = group_layout(3, captions)
    *parts, grad = _flat(layout, 4, 2)
    for x in parts:
        x.requires_grad_()
    out = shared_prefix_attention(*parts, layout, 0.3, load())
    dense, _ = dense_attention(*parts, layout, 0.3)
    torch.testing.assert_close(out, dense)
    found, right = (torch.autograd.grad(x, parts, grad) for x in (out, dense))
    for a, b in zip(found, right, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (2, 1)])
def test_a_model_gives_the_same_on_packed_rows(
    libraries: None, monkeypatch: pytest.MonkeyPatch, heads: int, kv_heads: int
) -> None:
    """Vision windows, training on packed groups, prompts of different lengths in decoding."""
    images = random_images(2)
    captions = [[torch.arange(5), torch.arange(1)], [torch.arange(3), torch.arange(4)]]

    def everything() -> tuple[Tensor, list[Tensor], list[Tensor]]:
        captioner = random_captioner(double=True, heads=heads, kv_heads=kv_heads)
        prompts = captioner.prompts(images)
        logps, _ = captioner.token_logps(prompts, captions)
        logps.sin().sum().backward()
        wider = captioner.prompts(random_images(1, width=84))
        decoded = captioner.generate(
            captioner.join([prompts, wider]), group_size=2, max_new_tokens=4
        )
        return logps, [p.grad for p in captioner.model.parameters()], decoded.token_logps

    padded = everything()
    used: list[bool] = []

    def watched() -> Varlen:
        op = torch_varlen()

        def attend(q: Tensor, k: Tensor, v: Tensor, between: Between[Spans]) -> Any:
            used.append(between.causal)
            return op.attend(q, k, v, between)

        return replace(op, attend=attend)

    choose_anew(monkeypatch, ("torch.nn.attention.varlen", watched, None))
    packed = everything()
    assert used.count(True) > 6
    assert used.count(False) > 6
    for ours, theirs in zip(packed[1], padded[1], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-12)
    torch.testing.assert_close(packed[0], padded[0], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(packed[2], padded[2])


def test_the_memory_efficient_op_takes_what_it_is_given() -> None:
    """Shapes alone: torch has it for CUDA only."""
    q, k, v = (torch.empty(2, 4, 10, 16, device="meta") for _ in range(3))
    out, lse = EFFICIENT.attend(q, k, v, causal=True, scale=0.25)
    assert (out.shape, lse.shape) == ((2, 4, 10, 16), (2, 4, 10))
    gradients = EFFICIENT.differentiate(Saved(out, q, k, v, out, lse), causal=True, scale=0.25)
    assert [x.shape for x in gradients] == [q.shape, k.shape, v.shape]


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("shape", [(16, 2, 128), (16, 16, 80), (5, 5, 32)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("name", "load", "dtypes"), CANDIDATES["cuda"])
def test_on_a_gpu_every_library_that_is_here_is_right(
    name: str, load: Any, dtypes: Any, dtype: torch.dtype, shape: tuple[int, int, int]
) -> None:
    if dtype not in dtypes:
        pytest.skip(f"{name} takes no {dtype}")
    try:
        op = load()
    except UnfitError as reason:
        pytest.skip(str(reason))
    check(op, Heads("cuda:0", dtype, *shape))


@pytest.mark.gpu
@needs_gpu
def test_on_a_gpu_a_model_gives_what_it_gives_on_a_cpu() -> None:
    captions = [[torch.arange(5), torch.arange(1)], [torch.arange(3), torch.arange(4)]]
    found = []
    for device in ("cpu", "cuda"):
        model = random_model(heads=4, kv_heads=2).to(device)
        captioner = Captioner(
            model, byte_tokenizer(), caption_prompt="Describe.", compute_dtype=torch.bfloat16
        )
        there = [[ids.to(captioner.device) for ids in group] for group in captions]
        logps, _ = captioner.token_logps(captioner.prompts(random_images(2)), there)
        logps.sum().backward()
        found.append((logps.detach().cpu(), model.lm_head.weight.grad.cpu()))
        names = {made.name for made in captioner.attention.values()}
        assert "the plain formula" not in names
    for on_cpu, on_gpu in zip(*found, strict=True):
        assert (on_cpu - on_gpu).norm() < 0.05 * on_cpu.norm()
