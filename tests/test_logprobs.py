"""Log-probabilities of chosen tokens: ours in chunks, Liger's where it is installed."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from trainer import head_choice
from trainer.choice import UnfitError
from trainer.head_choice import check_head, choose_head, liger_head
from trainer.logprobs import chosen_logprobs


@pytest.mark.parametrize("chunk", [1, 3, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_chunked_logprobs_equal_full_logits(chunk: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    hidden = torch.randn(7, 6, dtype=dtype, requires_grad=True)
    weight = torch.randn(11, 6, dtype=dtype, requires_grad=True)
    targets = torch.tensor([0, 1, 2, 3, 10, 9, 8])
    banned = torch.tensor([4, 7])
    coefficients = torch.randn(7, dtype=dtype)

    logits = hidden @ weight.T
    logits = logits.index_fill(1, banned, -torch.inf)
    full = logits.log_softmax(-1)
    expected = full.gather(1, targets[:, None])[:, 0]
    entropy = -torch.xlogy(full.exp(), full.exp()).sum(-1)
    wanted = torch.autograd.grad((expected * coefficients).sum(), (hidden, weight))

    got, got_entropy = chosen_logprobs(hidden, weight, targets, banned=banned, chunk=chunk)
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(got_entropy, entropy)
    assert not got_entropy.requires_grad
    for a, b in zip(
        torch.autograd.grad((got * coefficients).sum(), (hidden, weight)), wanted, strict=True
    ):
        torch.testing.assert_close(a, b)


def test_chunked_logprobs_hold_one_chunk_of_logits() -> None:
    widest = 0
    original = torch.Tensor.__matmul__

    def watch(a: Tensor, b: Tensor) -> Tensor:
        nonlocal widest
        out = original(a, b)
        widest = max(widest, out.numel())
        return out

    hidden = torch.randn(64, 4, requires_grad=True)
    weight = torch.randn(500, 4, requires_grad=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "__matmul__", watch)
        logp, _ = chosen_logprobs(hidden, weight, torch.zeros(64, dtype=torch.long), chunk=8)
        logp.sum().backward()
    assert widest == 8 * 500


def test_a_frozen_head_gets_no_gradient() -> None:
    hidden = torch.randn(5, 4, requires_grad=True)
    weight = torch.randn(9, 4)
    targets = torch.arange(5)
    wanted = (hidden @ weight.T).log_softmax(-1).gather(1, targets[:, None]).sum()
    logp, _ = chosen_logprobs(hidden, weight, targets, chunk=2)
    ours, theirs = (torch.autograd.grad(x.sum(), hidden)[0] for x in (logp, wanted))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_ours_passes_the_check_of_heads(dtype: torch.dtype) -> None:
    check_head(chosen_logprobs, "cpu", dtype)


def _without_bans(*tensors: Tensor, banned: Tensor) -> Any:
    del banned
    return chosen_logprobs(*tensors)


def _without_entropy(*tensors: Tensor, banned: Tensor) -> Any:
    logp, entropy = chosen_logprobs(*tensors, banned=banned)
    return logp, torch.zeros_like(entropy)


def _first_chunk_only(hidden: Tensor, weight: Tensor, targets: Tensor, *, banned: Tensor) -> Any:
    """The gradient of the weight lacks the tokens behind the first chunk."""
    first, _ = chosen_logprobs(hidden[:1024], weight, targets[:1024], banned=banned)
    rest, _ = chosen_logprobs(hidden[1024:], weight.detach(), targets[1024:], banned=banned)
    _, entropy = chosen_logprobs(hidden, weight, targets, banned=banned)
    return torch.cat([first, rest]), entropy


@pytest.mark.parametrize(
    ("head", "wrong"),
    [
        (_without_bans, "log-probability"),
        (_without_entropy, "entropy"),
        (_first_chunk_only, "gradient of weight"),
    ],
)
def test_a_wrong_head_fails_its_check(head: Any, wrong: str) -> None:
    with pytest.raises(ValueError, match=f"{wrong}: expected"):
        check_head(head, "cpu", torch.float32)


def test_without_liger_ours_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_choice.util, "find_spec", lambda name: None)
    choice = choose_head.__wrapped__("cpu", torch.float32)
    assert choice.op is chosen_logprobs
    assert choice.passed_over == {"liger": "liger_kernel is not installed"}
    monkeypatch.setitem(sys.modules, "liger_kernel", None)
    with pytest.raises(UnfitError, match="liger_kernel"):
        liger_head()


def test_liger_is_for_hopper_and_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_choice.util, "find_spec", lambda name: name)
    assert (
        "compute capability 9.0"
        in choose_head.__wrapped__("cpu", torch.float32).passed_over["liger"]
    )
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    with pytest.raises(UnfitError, match="takes bfloat16, not float32"):
        head_choice._liger_on(torch.device("cuda"), torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_liger_equals_full_logits(dtype: torch.dtype) -> None:
    """Its sums in plain torch, which it uses off Hopper: the calls around them are the same."""
    pytest.importorskip("liger_kernel")
    pytest.importorskip("triton")
    check_head(liger_head(), "cpu", dtype)


def test_liger_gives_a_banned_token_no_probability() -> None:
    pytest.importorskip("liger_kernel")
    pytest.importorskip("triton")
    hidden, weight = torch.randn(4, 8, requires_grad=True), torch.randn(6, 8)
    targets, banned = torch.tensor([0, 1, 5, 4]), torch.tensor([1, 3])
    found = [
        head(hidden, weight, targets, banned=banned) for head in (liger_head(), chosen_logprobs)
    ]
    torch.testing.assert_close(found[0][0], found[1][0])
    assert found[0][0][1] == -torch.inf
    torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-4, atol=1e-5)
    for head in (liger_head(), chosen_logprobs):
        plain, _ = head(hidden, weight, targets)
        expected = (hidden @ weight.T).log_softmax(-1).gather(1, targets[:, None])[:, 0]
        torch.testing.assert_close(plain, expected)
