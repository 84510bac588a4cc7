"""What others would use for the same work; only the benchmarks import this.

Each chart peer draws what ours does: white ground, frame, grid, tick marks and texts at the same
places, the line and a dot on every point. Places and texts are worked out beforehand and cost the
peers nothing. Each neighbour peer takes float64 points [N, 4], the place of each window (windows
less than ``reach + 1`` apart overlap too much), k, and the queries as rows of the points; it
returns int64 [Q, k]. Each prompt peer takes sets of series float64 [B, K, T] and returns the ids of
the K rotations of each; every value is printed once a set, by Python.
"""

from __future__ import annotations

import io
import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lineup_fast import charts, kernels

Points = NDArray[np.float64]
Rows = NDArray[np.int64]

INK, GRID, FRAME, TEXT = (31, 119, 180), 230, 64, (32, 32, 32)
INSET = 5  # pixels between the frame and the area that shows the data range


@dataclass(frozen=True)
class Plan:
    """Where everything on a default chart goes, in pixels."""

    values: NDArray[np.float64]
    left: int
    right: int
    top: int
    bottom: int
    points: NDArray[np.float64]  # [T, 2]
    x_ticks: list[tuple[int, str]]
    y_ticks: list[tuple[int, str]]


def plan(values: NDArray[np.float64]) -> Plan:
    """Read the frame off our own chart and put points and ticks where we put them."""
    image = charts.render([values], charts.DEFAULT_STYLE)[0]
    frame = (image == FRAME).all(axis=-1)
    left, right = np.flatnonzero(frame.mean(axis=0) > 0.6)[[0, -1]].tolist()
    top, bottom = np.flatnonzero(frame.mean(axis=1) > 0.6)[[0, -1]].tolist()
    n, lo, hi = len(values), float(values.min()), float(values.max())
    pad = 0.08 * ((hi - lo) or abs(hi)) or 1.0
    lo, hi = lo - pad, hi + pad

    def across(value: Any) -> Any:
        return left + 0.5 + INSET + value / (n - 1) * (right - left - 2 * INSET)

    def down(value: Any) -> Any:
        return bottom + 0.5 - INSET - (value - lo) / (hi - lo) * (bottom - top - 2 * INSET)

    xs, ys = kernels.nice_ticks(0, n - 1, 6, integer=True), kernels.nice_ticks(lo, hi, 6)
    return Plan(
        values,
        left,
        right,
        top,
        bottom,
        np.stack([across(np.arange(n)), down(values)], axis=1),
        [(int(across(x)), text) for x, text in zip(*xs, strict=True)],
        [(int(down(y)), text) for y, text in zip(*ys, strict=True)],
    )


class OpenCV:
    """Polyline and circles with LINE_AA on a cached copy of ground and frame."""

    def __init__(self, width: int = 588, height: int = 308, markers: bool = True) -> None:
        import cv2

        cv2.setNumThreads(1)
        self.cv2, self.markers = cv2, markers
        self.white = np.full((height, width, 3), 255, dtype=np.uint8)
        self.grounds: dict[int, NDArray[np.uint8]] = {}

    def _ground(self, p: Plan) -> NDArray[np.uint8]:
        if p.left not in self.grounds:
            ground = self.white.copy()
            corners = (p.left, p.top), (p.right, p.bottom)
            self.cv2.rectangle(ground, *corners, (FRAME,) * 3, 1)
            self.grounds[p.left] = ground
        return self.grounds[p.left]

    def draw(self, p: Plan, out: NDArray[np.uint8]) -> None:
        """One chart into out u8[H, W, 3]."""
        cv2 = self.cv2
        np.copyto(out, self._ground(p))
        for x, text in p.x_ticks:
            out[p.top + 1 : p.bottom, x] = GRID
            out[p.bottom + 1 : p.bottom + 5, x] = FRAME
            at = (x - 4 * len(text), p.bottom + 18)
            cv2.putText(out, text, at, cv2.FONT_HERSHEY_SIMPLEX, 0.36, TEXT, 1, cv2.LINE_AA)
        for y, text in p.y_ticks:
            out[y, p.left + 1 : p.right] = GRID
            out[y, p.left - 4 : p.left] = FRAME
            at = (p.left - 8 - 8 * len(text), y + 4)
            cv2.putText(out, text, at, cv2.FONT_HERSHEY_SIMPLEX, 0.36, TEXT, 1, cv2.LINE_AA)
        points = np.rint((p.points - 0.5) * 16).astype(np.int32)
        cv2.polylines(out, [points], False, INK, 2, cv2.LINE_AA, 4)
        if self.markers:
            for point in points.tolist():
                cv2.circle(out, point, 42, INK, -1, cv2.LINE_AA, 4)


class Matplotlib:
    """Agg with everything reused: one figure, one line, fixed ticks; draw and read the buffer."""

    def __init__(self, width: int = 588, height: int = 308, markers: bool = True) -> None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        self.size = width, height
        self.figure = Figure(figsize=(width / 100, height / 100), dpi=100)
        self.canvas = FigureCanvasAgg(self.figure)
        self.axes = self.figure.add_axes((0.1, 0.1, 0.8, 0.8))
        self.axes.grid(color=(GRID / 255,) * 3, linewidth=0.72)
        self.axes.set_axisbelow(True)
        self.axes.tick_params(labelsize=7.5, length=2.9, width=0.72)
        color = tuple(level / 255 for level in INK)
        style = {"marker": "o", "markersize": 3.74, "markeredgewidth": 0} if markers else {}
        (self.line,) = self.axes.plot([], [], color=color, linewidth=1.44, **style)

    def draw(self, p: Plan) -> NDArray[np.uint8]:
        """One chart as RGBA u8[H, W, 4], the canvas's own memory."""
        width, height = self.size
        axes = self.axes
        across, down = p.right - p.left, p.bottom - p.top
        box = (p.left + 0.5) / width, 1 - (p.bottom + 0.5) / height, across / width, down / height
        axes.set_position(box)
        axes.set(xlim=(p.left + 0.5, p.right + 0.5), ylim=(p.bottom + 0.5, p.top + 0.5))
        axes.set_xticks([x + 0.5 for x, _ in p.x_ticks], [text for _, text in p.x_ticks])
        axes.set_yticks([y + 0.5 for y, _ in p.y_ticks], [text for _, text in p.y_ticks])
        self.line.set_data(p.points[:, 0], p.points[:, 1])
        self.canvas.draw()
        return np.asarray(self.canvas.buffer_rgba())


def pil_png(image: NDArray[np.uint8]) -> bytes:
    """PNG bytes with PIL's defaults."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG")
    return file.getvalue()


class QwenProcessor:
    """The image processor of transformers, on PIL images or arrays, and its bfloat16 values."""

    def __init__(self) -> None:
        import torch
        from transformers.models.qwen2_vl import image_processing_pil_qwen2_vl as module

        torch.set_num_threads(1)
        self.torch = torch
        self.processor = module.Qwen2VLImageProcessorPil(min_pixels=28 * 28)

    def __call__(self, images: list[NDArray[np.uint8]]) -> NDArray[np.uint16]:
        """Bits of pixel_values in bfloat16."""
        from PIL import Image

        values = self.processor(images=[Image.fromarray(image) for image in images])
        floats = self.torch.from_numpy(np.asarray(values["pixel_values"]))
        return floats.to(self.torch.bfloat16).view(self.torch.uint16).numpy()


def numpy_features(series: Points, out: Points) -> None:
    """Mean, standard deviation, minimum and maximum of each row into out [4, N]."""
    series.mean(axis=1, out=out[0])
    series.std(axis=1, out=out[1])
    series.min(axis=1, out=out[2])
    series.max(axis=1, out=out[3])


def ett_like(n: int, steps: int, channels: int = 7, seed: int = 0) -> list[Points]:
    """Channels that hold n windows at stride 1: a reverting level, a day, a week, and noise.

    Steps are quarters of an hour. The day and the noise grow and fade, so that features spread as
    those of measured channels do: a query costs scipy's tree about what it costs among ETTm1's.
    """
    rng = np.random.default_rng(seed)
    cut = []
    for channel in range(channels):
        length = n // channels + (channel < n % channels) + steps - 1
        quarter = np.arange(length)  # of an hour, as ETTm1 is sampled
        day = np.exp(0.5 * _autoregressive(rng, length, 0.9995)) * rng.uniform(1, 4)
        loud = np.exp(0.5 * _autoregressive(rng, length, 0.9995))
        values = 10 + 4 * _autoregressive(rng, length, 0.9995)
        values += day * np.sin(quarter * 2 * np.pi / 96 + channel)
        values += rng.uniform(0.5, 2) * np.sin(quarter * 2 * np.pi / 672)
        values += loud * _autoregressive(rng, length, 0.9)
        cut.append(values)
    return cut


def _autoregressive(rng: np.random.Generator, length: int, keep: float) -> Points:
    from scipy.signal import lfilter

    values: Points = lfilter([np.sqrt(1 - keep**2)], [1, -keep], rng.normal(size=length))
    return values


def _filtered(found: Rows, place: Rows, queries: Rows, reach: int, k: int) -> tuple[Rows, Any]:
    """The first k admissible of each row of candidates, nearest first, and whether there are k."""
    free = np.abs(place[found] - place[queries][:, None]) > reach
    rank = free.cumsum(axis=1)
    enough = rank[:, -1] >= k
    chosen = free & (rank <= k)
    out = np.full((len(queries), k), -1, dtype=np.int64)
    out[enough] = found[enough][chosen[enough]].reshape(-1, k)
    return out, enough


def ckdtree(points: Points, place: Rows, reach: int, k: int, queries: Rows) -> Rows:
    """scipy's tree; twice as many candidates for the queries that have too few admissible ones."""
    from scipy.spatial import cKDTree

    tree = cKDTree(points)
    out = np.full((len(queries), k), -1, dtype=np.int64)
    for begin in range(0, len(queries), 20_000):
        left = np.arange(begin, min(begin + 20_000, len(queries)))
        size = 4 * k
        while len(left):
            size = min(size, len(points))
            found = tree.query(points[queries[left]], k=size)[1]
            pools, enough = _filtered(found, place, queries[left], reach, k)
            out[left] = pools
            left = left[~enough] if size < len(points) else left[:0]
            size *= 2
    return out


def ckdtree_all(points: Points, place: Rows, reach: int, k: int, queries: Rows) -> Rows:
    """scipy's tree with as many candidates as can be inadmissible, in one call."""
    from scipy.spatial import cKDTree

    size = min(2 * reach + 1 + k, len(points))
    found = cKDTree(points).query(points[queries], k=size)[1]
    return _filtered(found, place, queries, reach, k)[0]


def sklearn_kdtree(points: Points, place: Rows, reach: int, k: int, queries: Rows) -> Rows:
    """scikit-learn's tree with as many candidates as can be inadmissible."""
    from sklearn.neighbors import KDTree

    size = min(2 * reach + 1 + k, len(points))
    found = KDTree(points).query(points[queries], k=size)[1]
    return _filtered(found, place, queries, reach, k)[0]


def faiss_flat(points: Points, place: Rows, reach: int, k: int, queries: Rows) -> Rows:
    """faiss, all pairs in float32, with as many candidates as can be inadmissible."""
    import faiss

    faiss.omp_set_num_threads(1)
    index = faiss.IndexFlatL2(points.shape[1])
    index.add(points.astype(np.float32))
    size = min(2 * reach + 1 + k, len(points))
    found = index.search(points[queries].astype(np.float32), size)[1]
    return _filtered(found, place, queries, reach, k)[0]


def hnsw(points: Points, place: Rows, reach: int, k: int, queries: Rows) -> Rows:
    """hnswlib (approximate) with as many candidates as can be inadmissible."""
    import hnswlib

    size = min(2 * reach + 1 + k, len(points))
    index = hnswlib.Index(space="l2", dim=points.shape[1])
    index.init_index(max_elements=len(points), ef_construction=100, M=16)
    index.set_num_threads(1)
    index.add_items(points.astype(np.float32))
    index.set_ef(2 * size)
    found = index.knn_query(points[queries].astype(np.float32), k=size)[0].astype(np.int64)
    return _filtered(found, place, queries, reach, k)[0]


def all_pairs(points: Points, place: Rows, reach: int, k: int, queries: Rows) -> Rows:
    """Every pair in float64, ties to the lower row: what is right."""
    out = []
    for query in queries:
        distance = np.zeros(len(points))
        for column in range(points.shape[1]):
            distance += (points[:, column] - points[query, column]) ** 2
        distance[np.abs(place - place[query]) <= reach] = np.inf
        out.append(np.lexsort((np.arange(len(points)), distance))[:k])
    return np.array(out)


def python_longest_run(a: list[float], b: list[float]) -> int:
    """Longest common run of two lists, O(T²) in plain Python."""
    best = 0
    ending = [0] * (len(b) + 1)
    for value in a:
        grown = [0] * (len(b) + 1)
        for j, other in enumerate(b):
            if value == other:
                run = ending[j] + 1
                grown[j + 1] = run
                if run > best:
                    best = run
        ending = grown
    return best


@dataclass(frozen=True)
class PromptText:
    """What stands in a prompt around the numbers; the caption is part of it."""

    before: str
    after: str
    decimals: int

    def rows(self, series: Points) -> list[str]:
        """Each series [K, T] printed and joined."""
        form = f"%.{self.decimals}f"
        return [", ".join([form % value for value in row]) for row in series.tolist()]

    def prompts(self, sets: Points) -> list[str]:
        """The K rotations of every set, the target inserted among the others."""
        texts = []
        for series in sets:
            target, *others = self.rows(series)
            for place in range(len(series)):
                order = [*others[:place], target, *others[place:]]
                lines = [f"{x}) [{row}]\n" for x, row in zip("ABCDEFGHIJKL", order, strict=False)]
                texts.append(self.before + "".join(lines) + self.after)
        return texts


def hf_batch(tokenizer: Any, text: PromptText, sets: Points) -> list[list[int]]:
    """tokenizers' fast batch call (no offsets) on whole prompts."""
    found = tokenizer.encode_batch_fast(text.prompts(sets), add_special_tokens=False)
    return [encoding.ids for encoding in found]


class HFOnce:
    """tokenizers' fast batch call on each series once; ids joined with those that stand around."""

    def __init__(self, tokenizer: Any, text: PromptText, sample: Points) -> None:
        self.tokenizer, self.text = tokenizer, text
        self.around: list[list[int]] = []  # found in a prompt of the sample [K, T]
        prompt, at = hf_batch(tokenizer, text, sample[None])[0], 0
        for row in self._rows(sample[None]):
            starts = range(at, len(prompt))
            begin = next(i for i in starts if prompt[i : i + len(row)] == row)
            self.around.append(prompt[at:begin])
            at = begin + len(row)
        self.around.append(prompt[at:])

    def _rows(self, sets: Points) -> list[list[int]]:
        texts = [f" [{row}" for series in sets for row in self.text.rows(series)]
        found = self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [encoding.ids for encoding in found]

    def __call__(self, sets: Points) -> list[list[int]]:
        ids, k = self._rows(sets), sets.shape[1]
        prompts = []
        for begin in range(0, len(ids), k):
            target, *others = ids[begin : begin + k]
            for place in range(k):
                prompt = list(self.around[0])
                order = [*others[:place], target, *others[place:]]
                for row, after in zip(order, self.around[1:], strict=True):
                    prompt += row
                    prompt += after
                prompts.append(prompt)
        return prompts


def gigatoken_arrays(tokenizer: Any, text: PromptText, sets: Points) -> list[NDArray[np.uint32]]:
    """gigatoken, one array for each prompt."""
    return [tokenizer.encode(prompt) for prompt in text.prompts(sets)]


def gigatoken_batch(tokenizer: Any, text: PromptText, sets: Points) -> Any:
    """gigatoken's batch call: one ragged array."""
    return tokenizer.encode_batch(text.prompts(sets), parallel=False)


def flat_arrays(tokenizer: Any, text: PromptText, sets: Points) -> list[NDArray[np.uint32]]:
    """The batch call of fastokens and splintr into one buffer."""
    ids, offsets = tokenizer.encode_batch_flat(text.prompts(sets))
    flat, ends = np.frombuffer(ids, np.uint32), np.frombuffer(offsets, np.uint64)
    return [flat[a:b] for a, b in itertools.pairwise(ends.tolist())]
