// Patches against one formula for each number, and those of charts against charts and patches.
#include <algorithm>

#include "input.hpp"
#include "patches.hpp"

namespace {

using lineup::BFloat16;
using lineup::PatchShape;
using Bytes = std::vector<std::uint8_t>;

constexpr double kMean[] = {0.48145466, 0.4578275, 0.40821073};
constexpr double kDeviation[] = {0.26862954, 0.26130258, 0.27577711};

double plainly(std::uint8_t level, std::size_t channel) {
    return (level / 255.0 - kMean[channel]) / kDeviation[channel];
}

bool near(float number, double expected) {
    return std::abs(number - expected) <= 1e-6;
}

bool near(BFloat16 number, double expected) {
    const auto value = std::bit_cast<float>(static_cast<std::uint32_t>(number.bits) << 16);
    return std::abs(value - expected) <= 1e-6 + std::abs(expected) / 256;
}

template <class T>
void check(const Bytes& images, const PatchShape& shape, std::span<const T> numbers) {
    const std::size_t side = shape.patch, merge = shape.merge;
    const std::size_t columns = shape.width / side;
    for (std::size_t i = 0; i < numbers.size(); ++i) {
        std::size_t rest = i % shape.image_numbers();
        const auto take = [&](std::size_t n) {
            const std::size_t last = rest % n;
            rest /= n;
            return last;
        };
        const std::size_t x = take(side), y = take(side);
        take(shape.temporal);
        const std::size_t channel = take(3);
        const std::size_t patch_x = take(merge), patch_y = take(merge);
        const std::size_t block_x = take(columns / merge), block_y = rest;
        const std::size_t row = (block_y * merge + patch_y) * side + y;
        const std::size_t column = (block_x * merge + patch_x) * side + x;
        const std::size_t image = i / shape.image_numbers() * shape.image_bytes();
        EXPECT(near(numbers[i],
                    plainly(images[image + 3 * (row * shape.width + column) + channel], channel)));
    }
}

// Cuts into a buffer between guards, at an address that need not be aligned for wide stores.
template <class T>
void cut(const Bytes& images, const PatchShape& shape, std::size_t size, std::size_t shift) {
    constexpr auto guard = std::uint8_t{0xA5};
    T fill;
    std::memset(&fill, guard, sizeof fill);
    std::vector<T> buffer(size + 16, fill);
    const std::span out = std::span(buffer).subspan(shift, size);
    const std::size_t unit = shape.patch * shape.merge;
    bool good = unit > 0 && shape.temporal > 0 && shape.image_bytes() > 0;
    good = good && shape.height % unit == 0 && shape.width % unit == 0;
    good = good && images.size() % shape.image_bytes() == 0;
    good = good && size == images.size() * shape.temporal;
    EXPECT(refused([&] { lineup::patches(images, shape, out, 2); }) != good);
    for (std::size_t i = 0; i < buffer.size(); ++i) {
        const bool inside = i >= shift && i < shift + size;
        EXPECT(inside || std::memcmp(&buffer[i], &fill, sizeof fill) == 0);
    }
    if (good) check<T>(images, shape, out);
}

void charts(Input& in) {
    const std::vector<double> values = in.values(in.number(1, 30));
    const std::vector<std::span<const double>> series{values, std::span(values).first(1)};
    const std::size_t most = std::min<std::size_t>(in.number(0, 40), 12);
    const lineup::ChartStyle style{.width = static_cast<int>(6 * 28 + most * 14),
                                   .height = static_cast<int>(3 * 28 + most % 3 * 28)};
    const PatchShape shape{.height = static_cast<std::size_t>(style.height),
                           .width = static_cast<std::size_t>(style.width)};
    std::vector<float> fused(2 * shape.image_numbers()), apart(fused.size());
    const bool good = all_good(values) && style.width % 28 == 0;
    EXPECT(refused([&] { lineup::chart_patches(series, style, std::span(fused), 2); }) != good);
    if (!good) return;
    Bytes images(2 * lineup::chart_bytes(style));
    lineup::render_charts(series, style, images, 1);
    lineup::patches(images, shape, std::span(apart), 1);
    EXPECT(fused == apart);
}

}  // namespace

void fuzz(Input& in) {
    if (in.number(0, 7) == 0) return charts(in);
    PatchShape shape{.height = 0, .width = 0};
    shape.patch = in.number(0, 9);
    shape.merge = in.number(0, 3);
    shape.temporal = in.number(0, 3);
    const std::size_t unit = shape.patch * shape.merge;
    const bool odd = in.number(0, 15) == 0;  // sides that may not fit
    shape.height = odd ? in.number(0, 40) : unit * in.number(0, 4);
    shape.width = odd ? in.number(0, 40) : unit * in.number(0, 4);
    const std::size_t n = in.number(0, 3), shift = in.number(0, 15);
    Bytes images(n * shape.image_bytes() + (in.number(0, 15) == 0 ? 1 : 0), 255);
    for (std::size_t left = in.number(0, 60); left > 0 && !images.empty(); --left) {
        images[in.bits(2) % images.size()] = in.byte();
    }
    const std::size_t size = n * shape.image_numbers() + (in.number(0, 15) == 0 ? 1 : 0);
    cut<float>(images, shape, size, shift);
    cut<BFloat16>(images, shape, size, shift);
}
