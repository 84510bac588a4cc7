"""The kernels: coercion and checks of arguments, then one call into the chosen implementation.

The only module that imports the native ``_core``. ``LINEUP_IMPL=native`` (default) or
``LINEUP_IMPL=reference`` chooses the implementation when this module is imported; there is never a
fallback from one to the other. The native kernels use the widest instruction set that the machine
has; ``LINEUP_ISA=plain``, ``avx2`` or ``avx512``, read at every call, asks for a narrower one, with
the same results to the last bit (``build_info()["isa"]`` tells). Errors are ``ValueError``
"name: expected …, got …".

``device="cuda"`` has the current GPU do it instead: arrays are copied there once and results back,
since corpora live in numpy. It needs a build with ``LINEUP_CUDA=ON`` and a device (``RuntimeError``
otherwise, never a fallback), and its results are those of the CPU to the last bit.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

import lineup_fast
from lineup_fast.arguments import floats as _floats
from lineup_fast.arguments import integers as _integers
from lineup_fast.arguments import number as _number
from lineup_fast.arguments import ragged as _ragged
from lineup_fast.arguments import thread_count as _threads
from lineup_fast.arguments import writable as _writable
from lineup_fast.sliding import SlidingWindows, bare, series_or_windows

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]
    Ints = npt.NDArray[np.int32]
    Longs = npt.NDArray[np.int64]
    Ragged = tuple[Ints, Longs]
    RaggedLike = tuple[npt.ArrayLike, npt.ArrayLike]
    Device = Literal["cpu", "cuda"]
    from lineup_fast.charts import ChartStyle

LAYOUTS = ("candidates_first", "caption_first")
RULES = ("run", "window")
DEVICES = ("cpu", "cuda")
N_FEATURES = 4
MAX_DECIMALS = 12  # of printed numbers; rounding before comparison may go further
MAX_ROUNDING = 308


def _load(name: str) -> tuple[Any, Any]:
    """The modules that hold the kernels and the chart kernels."""
    if name == "native":
        try:
            from lineup_fast import _core
        except ImportError as error:
            msg = (
                "lineup_fast._core: expected the built extension, got an import error "
                f"({error}). Build it with `pip install --no-build-isolation -e .`, "
                "or set LINEUP_IMPL=reference for the slow numpy implementation."
            )
            raise ImportError(msg) from error
        return _core, _core
    if name == "reference":
        from lineup_fast import reference, reference_images

        return reference, reference_images
    raise ValueError(f"LINEUP_IMPL: expected native or reference, got {name!r}")


IMPLEMENTATION: str = os.environ.get("LINEUP_IMPL", "native")
_impl, chart_kernels = _load(IMPLEMENTATION)


@dataclass(frozen=True)
class PromptTree:
    """All prompts of a group as a tree of shared prefixes.

    Node i holds ``ids[offsets[i]:offsets[i + 1]]`` and continues the prompt of node ``parent[i]``
    (-1: the root); parents come before children. ``questions[g, p]`` is the node that ends the
    prompt of caption g with the target at position p.
    """

    ids: Ints
    offsets: Longs
    parent: Ints
    questions: Ints

    def node(self, index: int) -> Ints:
        """Ids of one node, int32."""
        return self.ids[self.offsets[index] : self.offsets[index + 1]]

    def prompt(self, caption: int, position: int) -> Ints:
        """Ids of the whole prompt of a caption with the target at the position, int32."""
        pieces = []
        at = int(self.questions[caption, position])
        while at >= 0:
            pieces.append(self.node(at))
            at = int(self.parent[at])
        return np.concatenate(pieces[::-1])


def require_device(device: str) -> None:
    """Return if kernels can run on the device.

    Raises: ValueError on another name than cpu and cuda; RuntimeError that says why no CUDA device
    can be used: not built, no driver, no GPU.
    """
    if device not in DEVICES:
        raise ValueError(f"device: expected cpu or cuda, got {device!r}")
    if device == "cuda":
        if IMPLEMENTATION != "native":
            raise RuntimeError(f"device: expected cpu with LINEUP_IMPL={IMPLEMENTATION}, got cuda")
        _impl.require_cuda()


def features(
    series: npt.ArrayLike | SlidingWindows,
    *,
    out: npt.NDArray[np.float64] | None = None,
    threads: int = 0,
    device: Device = "cpu",
) -> Floats:
    """φ of every series: mean, population standard deviation, minimum, maximum.

    Args: series float64 [N, T], or windows, not copied where they overlap; out float64 [N, 4] to
    write to; device "cuda": on the GPU, where copying the series takes longer than their features.
    Returns: float64 [N, 4], computed in two passes.
    Raises: ValueError on NaN, infinities, magnitudes above 1e150, or an empty side; RuntimeError
    where there is no such device.
    Source: paper, "feature space"; threads 0 = all cores.
    """
    values = series_or_windows("series", series)
    if out is not None:
        _writable("out", out, np.float64, (len(values), N_FEATURES))
    n_threads = _threads(threads)
    require_device(device)
    phi: Floats
    if device == "cuda":
        phi = _impl.cuda_features(bare(values), out)
    else:
        phi = _impl.features(bare(values), n_threads, out)
    return phi


def longest_run(a: npt.ArrayLike, b: npt.ArrayLike, *, decimals: int) -> int:
    """Length of the longest contiguous run that two series share, at any relative offset.

    Args: a, b float64 [T] of any lengths; values are compared after rounding to ``decimals``.
    Returns: a number of steps. Raises: ValueError on NaN, infinities or empty series.
    """
    run: int = _impl.longest_run(
        _floats("a", a, "T"), _floats("b", b, "T"), _number("decimals", decimals, 0, MAX_ROUNDING)
    )
    return run


def placed_series(
    z: npt.ArrayLike,
    series: npt.ArrayLike | SlidingWindows,
    rule: str,
    source: npt.ArrayLike | None,
    start: npt.ArrayLike | None,
    group: npt.ArrayLike | None,
) -> tuple[Floats, Floats | SlidingWindows, Ints, Longs, Ints]:
    """Points, series, source, start and group, checked against each other."""
    points, values = _floats("z", z, "N, D"), series_or_windows("series", series)
    n = len(values)
    if isinstance(values, SlidingWindows):
        source = values.source if source is None else source
        start = values.start if start is None else start
    if len(points) != n:
        raise ValueError(f"z: expected {n} rows as in series, got {len(points)}")
    if rule == "window" and (source is None or start is None):
        raise ValueError("source, start: expected with rule 'window', got None")
    where: list[Any] = []
    for name, given, dtype in (
        ("source", source, np.int32),
        ("start", start, np.int64),
        ("group", group, np.int32),
    ):
        array = np.zeros(n, dtype) if given is None else _integers(name, given, "N", dtype)
        if len(array) != n:
            raise ValueError(f"{name}: expected {n} entries as in series, got {len(array)}")
        where.append(array)
    return points, values, where[0], where[1], where[2]


def overlap_rule(max_run: int, decimals: int, rule: str) -> tuple[int, int, str]:
    """The three, checked."""
    if rule not in RULES:
        raise ValueError(f"rule: expected run or window, got {rule!r}")
    longest = _number("max_run", max_run, 0, 2**31 - 1)
    return longest, _number("decimals", decimals, 0, MAX_ROUNDING), rule


def neighbours(
    z: npt.ArrayLike,
    series: npt.ArrayLike | SlidingWindows,
    *,
    k: int,
    max_run: int,
    decimals: int,
    rule: Literal["run", "window"] = "run",
    source: npt.ArrayLike | None = None,
    start: npt.ArrayLike | None = None,
    group: npt.ArrayLike | None = None,
    threads: int = 0,
    device: Device = "cpu",
) -> Ints:
    """Exact k nearest series in the feature space among the admissible ones.

    Args: z float64 [N, D], the points; series float64 [N, T], their values, or windows, which
    bring their source and start (no copy of these, nor of rows that overlap in memory); max_run in
    steps; group int32 [N], neighbours come from the same group only (None: one group). Rule "run":
    two series share at most ``max_run`` consecutive values, compared at ``decimals``. Rule
    "window": two windows of the same ``source`` (int32 [N]), placed at ``start`` (int64 [N],
    steps), overlap by at most ``max_run`` steps. A series itself and equal-valued duplicates never
    count. Device "cuda": all pairs are compared on the GPU, after work linear in the values on
    ``threads`` of the CPU.
    Returns: int32 [N, k], nearest first, ties to the lower index, -1 where there are no more.
    Raises: ValueError on bad shapes, NaN, infinities, or a window rule without source and start;
    RuntimeError where there is no such device.
    """
    points, values, *where = placed_series(z, series, rule, source, start, group)
    require_device(device)
    search = _impl.cuda_neighbours if device == "cuda" else _impl.neighbours
    out: Ints = search(
        points,
        bare(values),
        _number("k", k, 1, 2**20),
        *overlap_rule(max_run, decimals, rule),
        *where,
        _threads(threads),
    )
    return out


def format_numbers(values: npt.ArrayLike, decimals: int, separator: str = ", ") -> str:
    """The values as text, each as Python's ``f"{value:.{decimals}f}"``, joined by the separator.

    Args: values float64 [T]; decimals 0 to 12. Raises: ValueError on NaN, infinities, empty.
    """
    text: str = _impl.format_numbers(
        _floats("values", values, "T"), _number("decimals", decimals, 0, MAX_DECIMALS), separator
    )
    return text


def prompt_tree(
    layout: int | str,
    head: npt.ArrayLike,
    middle: npt.ArrayLike,
    tail: npt.ArrayLike,
    labels: RaggedLike,
    blocks: RaggedLike,
    block_end: npt.ArrayLike,
    captions: RaggedLike,
) -> PromptTree:
    """The K rotations × G captions of a group as one tree in which each shared prefix occurs once.

    Args: layout "candidates_first" (0) or "caption_first" (1); all ids int32. labels: (ids,
    offsets [K+1]); blocks: (ids, offsets [K+1]), row 0 the target; captions: (ids, offsets [G+1]).
    A candidate at position i is ``label i + numbers + block_end``; the target is inserted at p
    among the distractors in their order. A prompt is head + candidates + middle + caption + tail,
    or head + caption + middle + candidates + tail.
    Raises: ValueError on malformed offsets, fewer than two candidates, no caption, an empty head.
    """
    label_ids, caption_ids = labels_and_captions(labels, captions)
    block_ids = _ragged("blocks", blocks, "K")
    n_candidates, n_blocks = len(label_ids[1]) - 1, len(block_ids[1]) - 1
    if n_blocks != n_candidates:
        raise ValueError(f"blocks: expected {n_candidates} rows as in labels, got {n_blocks}")
    head_ids = _integers("head", head, "n", np.int32)
    if not head_ids.size:
        raise ValueError("head: expected at least 1 id, got 0")
    return PromptTree(
        *_impl.prompt_tree(
            layout_number(layout),
            head_ids,
            _integers("middle", middle, "n", np.int32),
            _integers("tail", tail, "n", np.int32),
            label_ids,
            block_ids,
            _integers("block_end", block_end, "n", np.int32),
            caption_ids,
        )
    )


def layout_number(layout: int | str) -> int:
    """Place of a layout among LAYOUTS."""
    if isinstance(layout, str):
        if layout not in LAYOUTS:
            raise ValueError(f"layout: expected {' or '.join(LAYOUTS)}, got {layout!r}")
        layout = LAYOUTS.index(layout)
    return _number("layout", layout, 0, len(LAYOUTS) - 1)


def labels_and_captions(labels: RaggedLike, captions: RaggedLike) -> tuple[Ragged, Ragged]:
    """What opens the candidates, K ≥ 2 rows, and captions, at least one."""
    label_ids, caption_ids = _ragged("labels", labels, "K"), _ragged("captions", captions, "G")
    if len(label_ids[1]) < 3:
        raise ValueError(f"labels: expected at least 2 candidates, got {len(label_ids[1]) - 1}")
    if len(caption_ids[1]) < 2:
        raise ValueError("captions: expected at least 1 caption, got 0")
    return label_ids, caption_ids


def nice_ticks(lo: float, hi: float, n: int, *, integer: bool = False) -> tuple[Floats, list[str]]:
    """Ticks of an axis: multiples of the smallest step of 1, 2, 2.5, 5 × 10^e that needs at most
    n intervals from lo to hi, whole steps only if ``integer``. If no multiple lies in the range:
    lo and hi themselves (nothing if ``integer``).

    Returns: positions float64 [m] rising, and texts with ``float(text) == position``: plain
    decimals, as many as the step needs, or like 2.5e-13 where plain ones need more than 10
    characters and that is shorter. Raises: ValueError unless -1e300 ≤ lo < hi ≤ 1e300 and
    1 ≤ n ≤ 1000.
    """
    positions, texts = chart_kernels.nice_ticks(
        float(lo), float(hi), _number("n", n, 1, 1000), integer
    )
    return positions, texts


def chart_series(series: Sequence[npt.ArrayLike]) -> list[Floats]:
    """The series as float64 [T_i] each, as the chart kernels take them."""
    return [_floats(f"series[{i}]", values, "T") for i, values in enumerate(series)]


def render_charts(
    series: Sequence[npt.ArrayLike],
    style: ChartStyle,
    *,
    out: npt.NDArray[np.uint8] | None = None,
    threads: int = 0,
) -> npt.NDArray[np.uint8]:
    """Charts uint8 [N, H, W, 3] of series float64 [T_i]; see :func:`lineup_fast.charts.render`."""
    arrays = chart_series(series)
    shape = (len(arrays), style.height, style.width, 3)
    if out is None:
        out = np.empty(shape, np.uint8)
    else:
        _writable("out", out, np.uint8, shape)
    chart_kernels.render_charts(arrays, style, out, _threads(threads))
    return out


def build_info() -> dict[str, str | int | None]:
    """What runs: version, implementation, compiler, isa, cairo version and threads (all cores).

    cuda: "not built", or the toolkit, the architectures, and the devices or why there is none (to
    find out wakes the driver, which a process forked later cannot use).
    """
    info: dict[str, str | int | None] = {
        "version": lineup_fast.__version__,
        "implementation": IMPLEMENTATION,
        "compiler": None,
        "isa": None,
        "cairo": None,
        "cuda": None,
        "threads": len(os.sched_getaffinity(0)),
    }
    if IMPLEMENTATION == "native":
        info |= _impl.build_info()
    return info
