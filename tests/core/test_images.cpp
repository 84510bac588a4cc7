#include <cstdint>
#include <stdexcept>
#include <vector>

#include "check.hpp"
#include "patches.hpp"
#include "png.hpp"

namespace {

using Bad = std::invalid_argument;

void test_patches() {
    lineup::PatchShape shape{.height = 8, .width = 12, .patch = 2, .merge = 2, .temporal = 2};
    std::vector<std::uint8_t> images(2 * shape.image_bytes(), 255);
    images[shape.image_bytes() + 3 * (3 * 12 + 6) + 1] = 0;  // second image, y 3, x 6, green
    std::vector<float> out(2 * shape.image_numbers());
    lineup::patches(images, shape, out, 2);
    // Block (0, 1), patch (1, 1) in it, channel 1, both frames, y 1, x 0.
    const std::size_t at = shape.image_numbers() + (4 + 2 + 1) * shape.patch_numbers() + 8 + 2;
    std::size_t dark = 0;
    for (const float number : out) dark += number < 0;
    CHECK(dark == 2 && out[at] < -1.75f && out[at] > -1.76f && out[at + 4] == out[at]);

    std::vector<lineup::BFloat16> bits(out.size());
    lineup::patches(images, shape, bits, 1);
    CHECK(bits[at].bits == 0xBFE0 && bits[at + 4].bits == 0xBFE0);

    CHECK_THROWS(lineup::patches(images, shape, std::span(out).first(5)), Bad,
                 "out: expected 1152 numbers, got 5");
    CHECK_THROWS(lineup::patches(std::span(images).first(7), shape, std::span(out)), Bad,
                 "images: expected whole images of 288 bytes, got 7");
    shape.patch = 3;
    CHECK_THROWS(lineup::patches(images, shape, std::span(out)), Bad,
                 "images: expected sides that are multiples of 6, got 8x12");
    shape.merge = 0;
    CHECK_THROWS(lineup::patches(images, shape, std::span(out)), Bad,
                 "patch, merge, temporal: expected 1 or more, got 0");
}

void test_chart_patches() {
    const std::vector<double> values{1, 5, 2};
    const std::vector<std::span<const double>> series{values};
    const lineup::ChartStyle style;
    const lineup::PatchShape shape{.height = 308, .width = 588};
    std::vector<std::uint8_t> image(lineup::chart_bytes(style));
    lineup::render_charts(series, style, image);
    std::vector<float> fused(shape.image_numbers());
    std::vector<float> apart(fused.size());
    lineup::chart_patches(series, style, std::span(fused));
    lineup::patches(image, shape, std::span(apart));
    CHECK(fused == apart);
}

void test_png() {
    const std::vector<std::uint8_t> pixels(3 * 1000 * 10, 9);
    const lineup::PngFile file = lineup::png(pixels, 1000, 10);
    CHECK(file.size > 60 && file.size < 600);
    CHECK(file.bytes[1] == 'P' && file.bytes[16 + 3] == 232);
    CHECK_THROWS(lineup::png(pixels, 0, 10), Bad,
                 "image: expected 0x10 pixels of 3 bytes, at most 10^9 bytes, got 30000");
    CHECK_THROWS(lineup::png(pixels, 999, 10), Bad,
                 "image: expected 999x10 pixels of 3 bytes, at most 10^9 bytes, got 30000");
}

}  // namespace

int main() {
    test_patches();
    test_chart_patches();
    test_png();
    return check_result();
}
