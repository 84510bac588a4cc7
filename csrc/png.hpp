// PNG files of images with long runs of equal pixels, written fast.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace lineup {

struct PngFile {
    std::unique_ptr<std::uint8_t[]> bytes;
    std::size_t size;
};

// The file of an RGB image, rows from the top. Rows are stored as differences from the row above;
// runs with a period of one pixel are the only repetitions looked for, and the codes are deflate's
// fixed ones. So charts come out small, and photographs larger than they were.
// Throws std::invalid_argument if a side is 0, if the pixels are not width x height of three bytes,
// or above 10^9 bytes.
PngFile png(std::span<const std::uint8_t> pixels, std::size_t width, std::size_t height);

}  // namespace lineup
