"""What packing a group saves in an update, and what the loss holds in memory, on a CPU.

pytest bench/bench_train.py        CPU time, one thread, float32; gradients compared first

The shape is the paper's: one chart with its prompt is about 380 tokens, captions are 150 to 300
tokens, 8 to a chart; the model is the tiny captioner. Memory is that of a head with the vocabulary
of Qwen2.5-VL over a narrow hidden state, each side in a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.record import race, row

torch = pytest.importorskip("torch")

ROOT = Path(__file__).parents[1]
CAPTIONER = ROOT / "trainer" / "tiny" / "captioner"
G, CAPTION_TOKENS = 8, (150, 301)
WIDTH, HEIGHT = 784, 364  # 28 x 13 image tokens

pytestmark = pytest.mark.timeout(1800)


def _group(captioner: Any, lengths: tuple[int, int]) -> tuple[Any, list[Any]]:
    """Prompt of one chart, and G captions of random ids."""
    from lineup_fast import charts

    style = replace(charts.STYLES["default"], width=WIDTH, height=HEIGHT)
    walk = np.random.default_rng(0).normal(size=(1, 96)).cumsum(axis=1)
    random = torch.Generator().manual_seed(0)
    sizes = torch.randint(*lengths, (G,), generator=random).tolist()
    captions = [torch.randint(10, 1000, (size,), generator=random) for size in sizes]
    return captioner.prompts(charts.render(walk, style=style)), captions


def _update(model: Any, logps: Callable[[], Any]) -> dict[str, Any]:
    """Gradients of one update: each token with a weight of its own."""
    model.zero_grad()
    found = logps()
    (found * torch.linspace(-1, 1, len(found))).sum().backward()
    return {name: p.grad for name, p in model.named_parameters()}


@pytest.mark.parametrize("at_once", [G, 1])
def test_packed_update(benchmark: Any, at_once: int) -> None:
    """Against all captions of the group in one padded batch, and against one at a time."""
    from transformers import Qwen2_5_VLForConditionalGeneration

    from bench.unpacked import unpacked_logps
    from trainer.policy import Captioner

    torch.set_num_threads(1)
    captioner = Captioner.load(CAPTIONER, caption_prompt="Describe the chart.")
    stock = Qwen2_5_VLForConditionalGeneration.from_pretrained(CAPTIONER, dtype=torch.float32)
    prompt, captions = _group(captioner, (15, 31) if benchmark.disabled else CAPTION_TOKENS)
    n_prompt = prompt.input_ids.shape[1]
    assert 370 <= n_prompt <= 390

    def ours() -> dict[str, Any]:
        return _update(captioner.model, lambda: captioner.token_logps(prompt, [captions])[0])

    def peer() -> dict[str, Any]:
        options = {"banned": captioner.banned, "at_once": at_once}
        return _update(stock, lambda: unpacked_logps(stock, prompt, captions, **options))

    packed, separate = ours(), peer()
    assert packed.keys() == separate.keys()
    for name, gradient in separate.items():
        assert gradient.norm() > 0, name
        assert (packed[name] - gradient).norm() <= 1e-4 * gradient.norm(), name
    tokens = sum(map(len, captions))
    fewer = (G * n_prompt + tokens) / (n_prompt + tokens)
    size = f"prompt {n_prompt}, captions {tokens // G} on average, G {G}"
    name = "padded batch" if at_once == G else "one caption at a time"
    got = race(benchmark, ours, peer, rounds=5)
    row("packed update", size, name, got, 2.0, 2.5, f"gradients; tokens {fewer:.2f}x fewer")


HEAD = """
import ctypes, re, sys
import torch
sys.path.insert(0, {root!r})
from trainer.logprobs import chosen_logprobs

def megabytes(name):
    with open("/proc/self/status") as file:
        return int(re.search(name + r":\\s+(\\d+) kB", file.read())[1]) / 1024

def ours(hidden, weight, targets):
    return chosen_logprobs(hidden, weight, targets, chunk={chunk})[0]

def full(hidden, weight, targets):
    return (hidden @ weight.T).log_softmax(-1).gather(1, targets[:, None])[:, 0]

def gradients(head):
    logp = head(*inputs)
    return [logp.detach(), *torch.autograd.grad((logp * scales).sum(), inputs[:2])]

torch.set_num_threads(1)
random = torch.Generator().manual_seed(0)
hidden, weight, scales = (torch.randn(*shape, generator=random, requires_grad=True)
                          for shape in (({n}, 32), ({vocabulary}, 32), ({n},)))
inputs = (hidden, weight, torch.randint({vocabulary}, ({n},), generator=random))
scales = scales.detach()
if {side!r} == "both":
    for a, b in zip(gradients(ours), gradients(full), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    sys.exit(print(0))
head = {{"ours": ours, "full": full}}[{side!r}]
whole, inputs = inputs, (hidden[:2], weight[:50], inputs[2][:2] % 50)
scales, whole_scales = scales[:2], scales
gradients(head)  # what is loaded on first use
inputs, scales = whole, whole_scales
ctypes.CDLL("libc.so.6").malloc_trim(0)
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # the peak begins anew at what is in use now
before = megabytes("VmRSS")
gradients(head)
print(megabytes("VmHWM") - before)
"""
VOCABULARY = 151_936
MEGABYTES_A_ROW = VOCABULARY * 4 / 2**20


def _peak(side: str, n: int, chunk: int, vocabulary: int = VOCABULARY) -> float:
    """Peak MB above the inputs in one forward and backward pass of a head over n tokens."""
    code = HEAD.format(root=str(ROOT), side=side, n=n, chunk=chunk, vocabulary=vocabulary)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT,
        env=os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"},  # what is freed is given back
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


def test_memory_of_the_head(benchmark: Any) -> None:
    """Grows with the chunk, not with the tokens; full logits grow with the tokens."""
    benchmark.pedantic(lambda: None)
    chunk = 32
    if benchmark.disabled:
        assert _peak("both", 64, chunk, 5000) == 0
        return
    _peak("both", 512, chunk)
    ours = {(n, c): _peak("ours", n, c) for n, c in ((512, chunk), (1024, chunk), (512, 4 * chunk))}
    full = {n: _peak("full", n, chunk) for n in (512, 1024)}
    shown = {f"ours, {n} tokens, chunk {c}": round(mb) for (n, c), mb in ours.items()}
    print(json.dumps(shown | {f"full, {n} tokens": round(mb) for n, mb in full.items()}, indent=1))
    assert ours[1024, chunk] < ours[512, chunk] + 0.25 * chunk * MEGABYTES_A_ROW
    assert ours[512, 4 * chunk] > ours[512, chunk] + 3 * chunk * MEGABYTES_A_ROW
    assert full[1024] > full[512] + 512 * MEGABYTES_A_ROW
    size = f"1,024 tokens, chunk {chunk}, V {VOCABULARY:,}"
    got = full[1024] / ours[1024, chunk]
    row("memory of the head", size, "full logits", got, 10.0, None, "log-probs, gradients")
