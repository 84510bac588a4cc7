#include "patches.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "streams.hpp"

namespace lineup {
namespace {

// Of CLIP, which Qwen2.5-VL uses; per channel, of values in [0, 1].
constexpr std::array<double, 3> kMean{0.48145466, 0.4578275, 0.40821073};
constexpr std::array<double, 3> kDeviation{0.26862954, 0.26130258, 0.27577711};

void assign(float& to, float value) {
    to = value;
}

void assign(BFloat16& to, float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    to.bits = static_cast<std::uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

// Cuts images of one shape into patches of numbers T.
template <class T>
class Cutter {
  public:
    explicit Cutter(const PatchShape& shape) : shape_(shape), white_(shape.patch_numbers()) {
        for (std::size_t channel = 0; channel < 3; ++channel) {
            const auto scale = static_cast<float>(1.0 / (255.0 * kDeviation[channel]));
            const auto shift = static_cast<float>(kMean[channel] / kDeviation[channel]);
            for (std::size_t level = 0; level < 256; ++level) {
                assign(numbers_[channel][level], static_cast<float>(level) * scale - shift);
            }
            const std::size_t size = white_.size() / 3;
            std::fill_n(white_.data() + channel * size, size, numbers_[channel][255]);
        }
    }

    void cut(const std::uint8_t* image, T* out) const {
        const std::size_t block = shape_.patch * shape_.merge;
        for (std::size_t y = 0; y < shape_.height; y += block) {
            cut_strip(image + 3 * y * shape_.width, out + 3 * shape_.temporal * y * shape_.width);
        }
    }

    // Cuts the patch x merge rows of one row of blocks.
    void cut_strip(const std::uint8_t* strip, T* out) const {
        const std::size_t block = shape_.patch * shape_.merge;
        const std::size_t size = white_.size();
        const auto one = std::make_unique_for_overwrite<T[]>(size);
        for (std::size_t x = 0; x < shape_.width; x += block) {
            for (std::size_t i = 0; i < shape_.merge * shape_.merge; ++i) {
                const std::size_t row = i / shape_.merge * shape_.patch;
                const std::size_t column = x + i % shape_.merge * shape_.patch;
                const std::uint8_t* corner = strip + 3 * (row * shape_.width + column);
                const bool white = cut_patch(corner, one.get());
                stream(out, white ? white_.data() : one.get(), size * sizeof(T));
                out += size;
            }
        }
        finish_streams();
    }

  private:
    // Fills `one` unless the patch is white, as most of a chart is, and says whether it is.
    bool cut_patch(const std::uint8_t* corner, T* one) const {
        const std::size_t side = shape_.patch;
        const std::size_t frame = side * side;
        std::size_t y = 0;
        while (y < side && is_white(corner + 3 * y * shape_.width, 3 * side)) ++y;
        if (y == side) return true;
        std::memcpy(one, white_.data(), white_.size() * sizeof(T));
        for (; y < side; ++y) {
            const std::uint8_t* pixels = corner + 3 * y * shape_.width;
            if (!is_white(pixels, 3 * side)) cut_row(pixels, one + y * side);
        }
        for (std::size_t channel = 0; channel < 3; ++channel) {
            T* first = one + channel * shape_.temporal * frame;
            for (std::size_t copy = 1; copy < shape_.temporal; ++copy) {
                std::memcpy(first + copy * frame, first, frame * sizeof(T));
            }
        }
        return false;
    }

    // A row of a patch, four pixels at a time, to where it begins in a white one.
    void cut_row(const std::uint8_t* pixels, T* to) const {
        std::size_t x = 0;
        for (; x + 4 <= shape_.patch; x += 4) {
            std::uint64_t head;
            std::uint32_t tail;
            std::memcpy(&head, pixels + 3 * x, sizeof head);
            std::memcpy(&tail, pixels + 3 * x + 8, sizeof tail);
            if ((head & (std::uint64_t{tail} << 32 | 0xFFFFFFFF)) != ~std::uint64_t{0}) {
                convert(pixels, x, x + 4, to);
            }
        }
        convert(pixels, x, shape_.patch, to);
    }

    // Pixels begin to end of a row of a patch whose first number is at `to`.
    void convert(const std::uint8_t* pixels, std::size_t begin, std::size_t end, T* to) const {
        const std::size_t plane = shape_.temporal * shape_.patch * shape_.patch;
        for (std::size_t x = begin; x < end; ++x) {
            const std::uint8_t* pixel = pixels + 3 * x;
            to[x] = numbers_[0][pixel[0]];
            to[x + plane] = numbers_[1][pixel[1]];
            to[x + 2 * plane] = numbers_[2][pixel[2]];
        }
    }

    static bool is_white(const std::uint8_t* bytes, std::size_t n) {
        std::uint64_t all = ~std::uint64_t{0};
        std::uint64_t eight = all;
        for (std::size_t i = 0; i + 8 <= n; i += 8) {
            std::memcpy(&eight, bytes + i, sizeof eight);
            all &= eight;
        }
        if (n >= 8) {  // the last eight once more
            std::memcpy(&eight, bytes + n - 8, sizeof eight);
            return (all & eight) == ~std::uint64_t{0};
        }
        return std::all_of(bytes, bytes + n, [](std::uint8_t byte) { return byte == 255; });
    }

    PatchShape shape_;
    std::array<std::array<T, 256>, 3> numbers_;
    std::vector<T> white_;  // a patch
};

void require_shape(const PatchShape& shape) {
    const std::size_t unit = shape.patch * shape.merge;
    if (unit == 0 || shape.temporal == 0) {
        throw std::invalid_argument("patch, merge, temporal: expected 1 or more, got 0");
    }
    if (shape.height % unit != 0 || shape.width % unit != 0 || shape.image_bytes() == 0) {
        throw std::invalid_argument("images: expected sides that are multiples of " +
                                    std::to_string(unit) + ", got " + std::to_string(shape.height) +
                                    "x" + std::to_string(shape.width));
    }
}

void require_size(std::size_t wanted, std::size_t size) {
    if (size == wanted) return;
    throw std::invalid_argument("out: expected " + std::to_string(wanted) + " numbers, got " +
                                std::to_string(size));
}

template <class T>
void cut_images(std::span<const std::uint8_t> images, const PatchShape& shape, std::span<T> out,
                int threads, const Poll& poll) {
    require_shape(shape);
    if (images.size() % shape.image_bytes() != 0) {
        throw std::invalid_argument("images: expected whole images of " +
                                    std::to_string(shape.image_bytes()) + " bytes, got " +
                                    std::to_string(images.size()));
    }
    const std::size_t n = images.size() / shape.image_bytes();
    require_size(n * shape.image_numbers(), out.size());
    const Cutter<T> cutter(shape);
    parallel_for(n, 1, threads, poll, [&](std::size_t begin, std::size_t end) {
        for (std::size_t i = begin; i < end; ++i) {
            cutter.cut(images.data() + i * shape.image_bytes(),
                       out.data() + i * shape.image_numbers());
        }
    });
}

template <class T>
void cut_charts(std::span<const std::span<const double>> series, const ChartStyle& style,
                std::span<T> out, int threads, const Poll& poll) {
    const PatchShape shape{.height = static_cast<std::size_t>(style.height),
                           .width = static_cast<std::size_t>(style.width)};
    require_charts(series, style);
    require_shape(shape);
    require_size(series.size() * shape.image_numbers(), out.size());
    const Cutter<T> cutter(shape);
    const std::size_t row = shape.image_numbers() / shape.height;
    const auto strip = static_cast<int>(shape.patch * shape.merge);
    draw_charts(
        series, style, strip, threads, poll, [&](std::size_t i, int y, const std::uint8_t* pixels) {
            cutter.cut_strip(
                pixels, out.data() + i * shape.image_numbers() + static_cast<std::size_t>(y) * row);
        });
}

}  // namespace

void patches(std::span<const std::uint8_t> images, const PatchShape& shape, std::span<float> out,
             int threads, const Poll& poll) {
    cut_images(images, shape, out, threads, poll);
}

void patches(std::span<const std::uint8_t> images, const PatchShape& shape, std::span<BFloat16> out,
             int threads, const Poll& poll) {
    cut_images(images, shape, out, threads, poll);
}

void chart_patches(std::span<const std::span<const double>> series, const ChartStyle& style,
                   std::span<float> out, int threads, const Poll& poll) {
    cut_charts(series, style, out, threads, poll);
}

void chart_patches(std::span<const std::span<const double>> series, const ChartStyle& style,
                   std::span<BFloat16> out, int threads, const Poll& poll) {
    cut_charts(series, style, out, threads, poll);
}

}  // namespace lineup
