"""What others would use for the same charts, patches and files; only the benchmarks import this.

Each chart peer draws what ours does: white ground, frame, grid, tick marks and texts at the same
places, the line and a dot on every point. Places and texts are worked out beforehand and cost the
peers nothing.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lineup_fast import charts, kernels

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
