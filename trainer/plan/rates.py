"""How fast a device is: published figures of GPUs, or a short measurement of this CPU.

A matmul takes as long as its arithmetic or the reading of its weights, whichever is longer; passes
over numbers take their bytes; every operation costs a moment however small it is.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any


@dataclass(frozen=True)
class Rates:
    """Speeds of one device.

    matmul: FLOP/s of matmuls by rows, rising; attention: FLOP/s in fused attention; passes:
    bytes/s of elementwise passes, read and written, by bytes of the tensor, rising; weights:
    bytes/s of reading weights; op_s: seconds of an operation on next to nothing; overlaps: whether
    operations are queued while others run; source: where the figures are from; the factors: how
    much longer than the sum of its parts a stage took on a probe (trainer.plan.probe).
    """

    name: str
    matmul: tuple[tuple[float, float], ...]
    attention: float
    passes: tuple[tuple[float, float], ...]
    weights: float
    op_s: float
    overlaps: bool
    source: str
    update_factor: float = 1.0
    rollout_factor: float = 1.0

    def matmul_s(self, rows: float, weights: float, width: float) -> float:
        """Seconds of rows x (inputs x outputs = `weights` numbers of `width` bytes)."""
        rate = _between(self.matmul, rows)
        return max(2.0 * rows * weights / rate, weights * width / self.weights)

    def passes_s(self, n_bytes: float, tensor: float) -> float:
        """Seconds of reading and writing bytes of tensors of `tensor` bytes each."""
        return n_bytes / _between(self.passes, tensor)


def _between(known: tuple[tuple[float, float], ...], at: float) -> float:
    """Straight in log `at` between what is known, level outside."""
    if at <= known[0][0]:
        return known[0][1]
    for (low, below), (high, above) in itertools.pairwise(known):
        if at <= high:
            return below + math.log(at / low) / math.log(high / low) * (above - below)
    return known[-1][1]


# Dense bfloat16 peak and memory bandwidth. Source: NVIDIA's data sheets of the SXM parts.
_GPUS = {"a100": (312e12, 2.039e12), "h100": (989e12, 3.35e12), "h200": (989e12, 4.8e12)}
GPUS = tuple(_GPUS)
UTILISATION = 0.4  # share of the peak that matmuls of training reach; assumed, see --flops
ATTENTION_SHARE = 0.5  # of the matmul rate, in attention; assumed
BANDWIDTH_SHARE = 0.8  # of the peak bandwidth; assumed
LAUNCH_S = 6e-6  # an operation launched from Python; assumed


def gpu(name: str, flops: float | None = None, bandwidth: float | None = None) -> Rates:
    """A GPU by name; flops and bandwidth, where given, are what is reached, not the peak.

    Raises:
        ValueError: another name.
    """
    if name not in _GPUS:
        raise ValueError(f"device: expected cpu, {', '.join(_GPUS)}, got {name!r}")
    peak, memory = _GPUS[name]
    reached = flops or UTILISATION * peak
    read = bandwidth or BANDWIDTH_SHARE * memory
    source = "as given" if flops and bandwidth else (
        f"data sheet x {UTILISATION:g} (matmul) and {BANDWIDTH_SHARE:g} (memory), assumed"
    )  # fmt: skip
    return Rates(
        name, ((1.0, reached),), ATTENTION_SHARE * reached, ((1.0, read),), read, LAUNCH_S, True,
        source,
    )  # fmt: skip


ROWS = (8, 32, 128, 512, 2048)
TENSORS = (1 << 18, 1 << 21, 1 << 23, 1 << 25)
COLD = 1 << 26  # bytes of weights that no cache holds


def measure_cpu(
    hidden: int,
    ffn: int,
    head_dim: int,
    n_weights: float,
    *,
    rows: Sequence[int] = ROWS,
    clock: Callable[[], float] = time.process_time,
) -> Rates:
    """Rates of this CPU at a model's widths, with torch's present number of threads.

    n_weights: of the model; its matrices are read in turn, from memory if they fill it. clock:
    time.process_time where one thread is used and others work on the machine too.
    """
    import torch

    count = max(1, int(min(4.0 * n_weights, COLD) / (4 * ffn * hidden)))
    matrices = itertools.cycle([torch.randn(ffn, hidden) for _ in range(count)])
    rates = []
    for n in rows:
        x, grad = torch.randn(n, hidden), torch.randn(n, ffn)
        spent = [median_s(partial(_forward, x, matrices), clock)]
        if n >= 128:  # also the two of the backward pass; decoding goes forward only
            spent.append(median_s(partial(_back, grad, matrices), clock))
            spent.append(median_s(partial(torch.mm, grad.T, x), clock))
        rates.append((float(n), 2.0 * n * hidden * ffn * len(spent) / sum(spent)))
    heads = max(1, hidden // head_dim)
    q = torch.randn(2, heads, 256, head_dim)
    fused = torch.nn.functional.scaled_dot_product_attention
    flops = 2 * 2.0 * 2 * heads * 256 * 256 * head_dim
    attention = flops / median_s(lambda: fused(q, q, q), clock)
    one = torch.randn(1, hidden)
    read = 4.0 * hidden * ffn / median_s(partial(_forward, one, matrices), clock)
    passes = tuple((float(n), _passes(n, clock)) for n in TENSORS)
    source = f"measured here with {torch.get_num_threads()} threads"
    return Rates(
        "cpu", tuple(rates), attention, passes, read, _op_s(clock, matrices), False, source
    )


def _forward(x: Any, matrices: Iterator[Any]) -> Any:
    return x @ next(matrices).T


def _back(grad: Any, matrices: Iterator[Any]) -> Any:
    return grad @ next(matrices)


def _passes(n_bytes: int, clock: Callable[[], float]) -> float:
    """Bytes/s of elementwise operations on tensors of a size, results in fresh memory."""
    import torch

    inputs = itertools.cycle([torch.randn(n_bytes // 4) for _ in range(4)])

    def some() -> Any:  # reads and writes 3 + 2 + 2 tensors
        return (next(inputs) * next(inputs)).exp() - 1.0

    return 7.0 * n_bytes / median_s(some, clock)


def _op_s(clock: Callable[[], float], matrices: Iterator[Any]) -> float:
    """Seconds of a small operation between matmuls, which leave nothing of it in the caches."""
    import torch

    x, weight = torch.randn(1, 1, 8), torch.ones(8)
    spent = []
    for _ in range(200):
        matrix = next(matrices)
        torch.ones(8, matrix.shape[1]) @ matrix.T
        started = clock()
        for _ in range(3):  # the kinds of operations a layer consists of, as many as in between
            y = (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)) * weight
            torch.cat((y[..., 4:], y[..., :4]), -1).view(1, 8).transpose(0, 1).contiguous()
        spent.append(clock() - started)
    return sorted(spent)[100] / 36


def median_s(call: Callable[[], Any], clock: Callable[[], float], *, least: float = 0.02) -> float:
    """Median seconds of a call over five rounds of at least `least` seconds each."""
    call()
    rounds = []
    for _ in range(5):
        n, started = 0, clock()
        while True:
            call()
            n += 1
            spent = clock() - started
            if spent >= least:
                break
        rounds.append(spent / n)
    return sorted(rounds)[2]
