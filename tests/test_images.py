from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lineup_fast import _core, charts, reference_images
from lineup_fast.charts import DEFAULT_STYLE, PAPER_STYLE, TINY_STYLE, ChartStyle

RNG = np.random.default_rng(11)


def some_images() -> NDArray[np.uint8]:
    images = charts.render([RNG.uniform(0, 100, 24), RNG.uniform(0, 100, 12)], TINY_STYLE)
    images[1, ::2] = RNG.integers(0, 256, images[1, ::2].shape)  # every colour
    return images


def test_patches_equal_the_image_processor() -> None:
    image_module = pytest.importorskip("PIL.Image")
    processors = pytest.importorskip("transformers.models.qwen2_vl.image_processing_pil_qwen2_vl")
    processor = processors.Qwen2VLImageProcessorPil(min_pixels=28 * 28)
    rng = np.random.default_rng(1)
    for style in (DEFAULT_STYLE, TINY_STYLE):
        images = charts.render([rng.uniform(0, 100, 24), rng.uniform(0, 100, 12)], style)
        images[1, ::2] = rng.integers(0, 256, images[1, ::2].shape)  # every colour
        expected = processor(images=[image_module.fromarray(i) for i in images])
        values, grid = charts.patches(images)
        assert values.dtype == np.float32
        assert np.array_equal(grid, np.asarray(expected["image_grid_thw"]))
        wanted = np.asarray(expected["pixel_values"])
        assert np.abs(values - wanted).max() <= 1e-6
        # Half-way cases aside, rounding what the processor gives and what we give is the same.
        bits, _ = charts.patches(images, dtype="bfloat16")
        assert np.array_equal(bits, reference_images._bfloat16(wanted))


def test_patches_order_by_hand() -> None:
    images = np.arange(2 * 56 * 84 * 3, dtype=np.uint32).astype(np.uint8).reshape(2, 56, 84, 3)
    values, grid = charts.patches(images)
    assert grid.tolist() == [[1, 4, 6], [1, 4, 6]]
    assert values.shape == (48, 3 * 2 * 14 * 14)
    # Second image, block (1, 2), patch (0, 1) in it, channel 1, second frame, row 3, column 5.
    row = 24 + (1 * 3 + 2) * 4 + 1
    pixel = images[1, 28 + 3, 56 + 14 + 5, 1]
    expected = (pixel / 255 - charts.MEAN[1]) / charts.STD[1]
    assert values.reshape(48, 3, 2, 14, 14)[row, 1, 1, 3, 5] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    "images",
    [
        np.zeros((1, 300, 600, 3), dtype=np.uint8),
        np.zeros((28, 28, 3), dtype=np.uint8),
        np.zeros((1, 0, 28, 3), dtype=np.uint8),
        np.zeros((1, 28, 28, 3), dtype=np.float32),
    ],
)
def test_patches_bad_images(images: NDArray[np.uint8]) -> None:
    with pytest.raises(ValueError, match="images: expected"):
        charts.patches(images)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("sizes", [(14, 2, 2), (7, 2, 1), (4, 4, 3), (28, 1, 2)])
def test_patches_equal_the_slow_twin(sizes: tuple[int, int, int], dtype: Any) -> None:
    patch, merge, temporal = sizes
    images = some_images()
    values, _ = charts.patches(images, patch=patch, merge=merge, temporal=temporal, dtype=dtype)
    wanted = np.empty_like(values)
    reference_images.patches(images, wanted, *sizes)
    assert np.array_equal(values, wanted)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("style", [DEFAULT_STYLE, TINY_STYLE], ids=lambda style: style.name)
def test_pixel_values_are_patches_of_charts(style: ChartStyle, dtype: Any) -> None:
    series = [RNG.normal(size=n) * 30 + 50 for n in (1, 2, 24, 96, 3000)]
    values, grid = charts.pixel_values(series, style, dtype=dtype, threads=2)
    wanted, wanted_grid = charts.patches(charts.render(series, style), dtype=dtype)
    assert np.array_equal(values, wanted)
    assert np.array_equal(grid, wanted_grid)
    out = np.zeros_like(values)
    assert charts.pixel_values(series, style, dtype=dtype, out=out)[0] is out
    assert np.array_equal(out, values)
    assert charts.pixel_values([], style, dtype=dtype)[0].shape == (0, 1176)


def test_torch_shares_the_memory() -> None:
    torch = pytest.importorskip("torch")
    series = [RNG.normal(size=n) for n in (24, 96)]
    pixels = torch.empty((2, 308, 588, 3), dtype=torch.uint8)
    images = charts.render(series, out=pixels.numpy())
    assert images.ctypes.data == pixels.data_ptr()
    assert torch.equal(pixels, torch.from_numpy(charts.render(series)))
    floats = torch.empty((2 * 22 * 42, 1176))
    halves = torch.empty_like(floats, dtype=torch.bfloat16)
    charts.pixel_values(series, dtype="float32", out=floats.numpy())
    charts.pixel_values(series, out=halves.view(torch.uint16).numpy())
    assert torch.equal(halves, floats.to(torch.bfloat16))
    values, _ = charts.pixel_values(series)
    shared = torch.from_numpy(values).view(torch.bfloat16)
    assert shared.data_ptr() == values.ctypes.data
    assert torch.equal(shared, halves)


def test_unaligned_numbers_are_the_same() -> None:
    images = some_images()
    aligned, _ = charts.patches(images)
    out = np.empty(aligned.size + 1, dtype=np.float32)[1:].reshape(aligned.shape)
    _core.patches(images, out, 14, 2, 2)
    assert np.array_equal(out, aligned)


def test_bad_arguments_of_patches() -> None:
    images = np.zeros((1, 28, 28, 3), dtype=np.uint8)
    with pytest.raises(ValueError, match="dtype: expected float32 or bfloat16, got 'float16'"):
        charts.patches(images, dtype="float16")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="out: expected writable, C-contiguous float32"):
        charts.patches(images, out=np.empty((4, 1176)))
    with pytest.raises(ValueError, match="merge: expected 1 to 1024, got 0"):
        charts.patches(images, merge=0)
    with pytest.raises(ValueError, match="style: expected sides that are multiples of 28"):
        charts.pixel_values([[1.0, 2.0]], PAPER_STYLE)
    with pytest.raises(ValueError, match=r"series\[0\]: expected finite values"):
        charts.pixel_values([[np.nan]], TINY_STYLE)
    with pytest.raises(ValueError, match="out: expected 4704 numbers, got 7"):
        _core.patches(images, np.empty(7, dtype=np.float32), 14, 2, 2)
    with pytest.raises(ValueError, match="out: expected float32 or uint16"):
        _core.patches(images, np.empty(4704), 14, 2, 2)  # type: ignore[arg-type]


def decoded(data: bytes) -> NDArray[np.uint8]:
    """Pixels of a PNG file whose rows are plain or differences from the row above."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, at = {}, 8
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + size]
        assert zlib.crc32(kind + body) == int.from_bytes(
            data[at + 8 + size : at + 12 + size], "big"
        )
        chunks[kind] = body
        at += 12 + size
    assert list(chunks) == [b"IHDR", b"IDAT", b"IEND"]
    width, height, *rest = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    assert rest == [8, 2, 0, 0, 0]
    stream = zlib.decompress(chunks[b"IDAT"])  # checks the sum, too
    rows = np.frombuffer(stream, dtype=np.uint8).reshape(height, 1 + 3 * width)
    image = rows[:, 1:].copy()
    for y in range(1, height):
        if rows[y, 0] == 2:
            image[y] += image[y - 1]
    return image.reshape(height, width, 3)


@pytest.mark.parametrize("png", [charts.png, reference_images.png])
def test_png_holds_the_pixels(png: Any) -> None:
    images = [RNG.integers(0, 256, shape) for shape in ((1, 1, 3), (1, 700, 3), (40, 2, 3))]
    images += [np.full((3, n, 3), 7) for n in range(1, 350)]  # runs of every length
    images += [np.repeat(RNG.integers(0, 256, (5, 40, 3)), n, axis=1) for n in (2, 3, 87, 88)]
    images += list(charts.render([RNG.normal(size=n) for n in (1, 24, 3000)]))
    for image in images:
        pixels = image.astype(np.uint8)
        assert np.array_equal(decoded(png(pixels)), pixels)


def test_png_opens_elsewhere() -> None:
    image_module = pytest.importorskip("PIL.Image")
    image = charts.render([np.arange(12.0) * 8], TINY_STYLE)[0]
    data = charts.png(image)
    assert np.array_equal(np.asarray(image_module.open(io.BytesIO(data))), image)
    assert len(data) < image.nbytes / 8
    assert charts.png(image[::-1, ::2]) == charts.png(image[::-1, ::2].copy())


@pytest.mark.parametrize(
    "image",
    [np.zeros((4, 4), np.uint8), np.zeros((0, 4, 3), np.uint8), np.zeros((4, 4, 3), np.float32)],
)
def test_png_bad_image(image: NDArray[Any]) -> None:
    with pytest.raises(ValueError, match="image: expected u8"):
        charts.png(image)
