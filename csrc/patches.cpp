#include "patches.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

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

// Copies past the cache, where the machine can: patches are megabytes that nobody reads at once.
void stream(void* to, const void* from, std::size_t n) {
#if defined(__SSE2__)
    if (reinterpret_cast<std::uintptr_t>(to) % 16 == 0 && n % 16 == 0) {
        for (std::size_t i = 0; i < n; i += 16) {
            __m128i part;
            std::memcpy(&part, static_cast<const char*>(from) + i, sizeof part);
            _mm_stream_si128(reinterpret_cast<__m128i*>(static_cast<char*>(to) + i), part);
        }
        return;
    }
#endif
    std::memcpy(to, from, n);
}

void finish_streams() {
#if defined(__SSE2__)
    _mm_sfence();
#endif
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
        std::vector<T> one(white_.size());
        for (std::size_t y = 0; y < shape_.height; y += block) {
            for (std::size_t x = 0; x < shape_.width; x += block) {
                for (std::size_t i = 0; i < shape_.merge * shape_.merge; ++i) {
                    const std::size_t row = y + i / shape_.merge * shape_.patch;
                    const std::size_t column = x + i % shape_.merge * shape_.patch;
                    const bool white = cut_patch(image + 3 * (row * shape_.width + column), one);
                    stream(out, white ? white_.data() : one.data(), one.size() * sizeof(T));
                    out += one.size();
                }
            }
        }
        finish_streams();
    }

  private:
    // Fills `one` unless the patch is white, as most of a chart is, and says whether it is.
    bool cut_patch(const std::uint8_t* corner, std::vector<T>& one) const {
        const std::size_t side = shape_.patch;
        const std::size_t frame = side * side;
        std::size_t y = 0;
        while (y < side && is_white(corner + 3 * y * shape_.width, 3 * side)) ++y;
        if (y == side) return true;
        std::memcpy(one.data(), white_.data(), white_.size() * sizeof(T));
        for (; y < side; ++y) {
            const std::uint8_t* pixels = corner + 3 * y * shape_.width;
            if (is_white(pixels, 3 * side)) continue;
            for (std::size_t channel = 0; channel < 3; ++channel) {
                const std::array<T, 256>& numbers = numbers_[channel];
                T* to = one.data() + channel * shape_.temporal * frame + y * side;
                for (std::size_t x = 0; x < side; ++x) to[x] = numbers[pixels[3 * x + channel]];
            }
        }
        for (std::size_t channel = 0; channel < 3; ++channel) {
            T* first = one.data() + channel * shape_.temporal * frame;
            for (std::size_t copy = 1; copy < shape_.temporal; ++copy) {
                std::memcpy(first + copy * frame, first, frame * sizeof(T));
            }
        }
        return false;
    }

    static bool is_white(const std::uint8_t* bytes, std::size_t n) {
        std::uint64_t all = ~std::uint64_t{0};
        std::size_t i = 0;
        for (; i + 8 <= n; i += 8) {
            std::uint64_t eight;
            std::memcpy(&eight, bytes + i, sizeof eight);
            all &= eight;
        }
        for (; i < n; ++i) all &= ~std::uint64_t{255} | bytes[i];
        return all == ~std::uint64_t{0};
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
    draw_charts(series, style, threads, poll, [&](std::size_t i, const std::uint8_t* image) {
        cutter.cut(image, out.data() + i * shape.image_numbers());
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
