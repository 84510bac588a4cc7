// Images as the patches that Qwen2.5-VL reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "chart.hpp"
#include "parallel.hpp"

namespace lineup {

struct PatchShape {
    std::size_t height;  // of an image, in pixels: a multiple of patch x merge
    std::size_t width;
    std::size_t patch = 14;    // pixels
    std::size_t merge = 2;     // patches of a block, each way, which follow each other
    std::size_t temporal = 2;  // times that the frame is repeated

    std::size_t image_bytes() const { return 3 * height * width; }
    std::size_t patch_numbers() const { return 3 * temporal * patch * patch; }
    std::size_t image_numbers() const { return 3 * temporal * height * width; }
};

// A number as bfloat16 bits, rounded half to even.
struct BFloat16 {
    std::uint16_t bits;
};

// Patches of n images, RGB rows from the top: n x (height / patch) x (width / patch) rows of
// patch_numbers(), in blocks of merge x merge; in a row channel, frame, y, x. Numbers are pixels
// scaled with CLIP's mean and deviation.
// Throws std::invalid_argument if the images or `out` do not fit the shape.
void patches(std::span<const std::uint8_t> images, const PatchShape& shape, std::span<float> out,
             int threads = 0, const Poll& poll = {});
void patches(std::span<const std::uint8_t> images, const PatchShape& shape, std::span<BFloat16> out,
             int threads = 0, const Poll& poll = {});

// The same of charts, which are drawn strip by strip and never leave the cache.
void chart_patches(std::span<const std::span<const double>> series, const ChartStyle& style,
                   std::span<float> out, int threads = 0, const Poll& poll = {});
void chart_patches(std::span<const std::span<const double>> series, const ChartStyle& style,
                   std::span<BFloat16> out, int threads = 0, const Poll& poll = {});

}  // namespace lineup
