// PNG files against zlib: chunks, sums, and the pixels that come back.
#include <zlib.h>

#include <algorithm>
#include <string_view>

#include "input.hpp"
#include "png.hpp"

namespace {

using Bytes = std::vector<std::uint8_t>;

std::size_t big_endian(const std::uint8_t* at) {
    return std::size_t{at[0]} << 24 | std::size_t{at[1]} << 16 | std::size_t{at[2]} << 8 | at[3];
}

// Takes the chunk of that kind off the front of the file.
std::span<const std::uint8_t> chunk(std::span<const std::uint8_t>& file, std::string_view kind) {
    EXPECT(file.size() >= 12);
    const std::size_t size = big_endian(file.data());
    EXPECT(file.size() >= 12 + size);
    EXPECT(std::memcmp(file.data() + 4, kind.data(), 4) == 0);
    const auto sum = crc32(0, file.data() + 4, static_cast<uInt>(size + 4));
    EXPECT(big_endian(file.data() + 8 + size) == sum);
    const auto data = file.subspan(8, size);
    file = file.subspan(12 + size);
    return data;
}

std::uint8_t paeth(int left, int up, int corner) {
    const int guess = left + up - corner;
    const int to_left = std::abs(guess - left), to_up = std::abs(guess - up);
    const int to_corner = std::abs(guess - corner);
    if (to_left <= to_up && to_left <= to_corner) return static_cast<std::uint8_t>(left);
    return static_cast<std::uint8_t>(to_up <= to_corner ? up : corner);
}

Bytes unfiltered(const Bytes& stream, std::size_t stride, std::size_t height) {
    Bytes pixels(stride * height);
    for (std::size_t y = 0; y < height; ++y) {
        const std::uint8_t* row = stream.data() + y * (stride + 1);
        EXPECT(row[0] <= 4);
        for (std::size_t i = 0; i < stride; ++i) {
            const std::size_t at = y * stride + i;
            const int left = i < 3 ? 0 : pixels[at - 3];
            const int up = y == 0 ? 0 : pixels[at - stride];
            const int corner = i < 3 || y == 0 ? 0 : pixels[at - stride - 3];
            const int guesses[] = {0, left, up, (left + up) / 2, paeth(left, up, corner)};
            pixels[at] = static_cast<std::uint8_t>(row[1 + i] + guesses[row[0]]);
        }
    }
    return pixels;
}

Bytes decoded(std::span<const std::uint8_t> file, std::size_t width, std::size_t height) {
    EXPECT(file.size() > 8 && std::memcmp(file.data(), "\x89PNG\r\n\x1a\n", 8) == 0);
    file = file.subspan(8);
    const auto header = chunk(file, "IHDR");
    EXPECT(header.size() == 13 && std::memcmp(header.data() + 8, "\x08\x02\x00\x00\x00", 5) == 0);
    EXPECT(big_endian(header.data()) == width && big_endian(header.data() + 4) == height);
    const auto packed = chunk(file, "IDAT");
    EXPECT(chunk(file, "IEND").empty() && file.empty());
    Bytes stream((3 * width + 1) * height);
    uLongf size = stream.size();
    const int status = uncompress(stream.data(), &size, packed.data(), packed.size());
    EXPECT(status == Z_OK && size == stream.size());
    return unfiltered(stream, 3 * width, height);
}

// Runs of pixels, repeated rows and single bytes, as the input says.
Bytes image(Input& in, std::size_t width, std::size_t height) {
    Bytes pixels;
    const std::size_t stride = 3 * width;
    while (pixels.size() < stride * height) {
        const std::size_t kind = in.number(0, 3), length = in.number(1, 700);
        const Bytes pixel{in.byte(), in.byte(), in.byte()};
        for (std::size_t i = 0; i < length; ++i) {
            const std::size_t at = pixels.size();
            if (kind == 0) pixels.insert(pixels.end(), pixel.begin(), pixel.end());
            if (kind == 1) pixels.push_back(at < stride ? pixel[0] : pixels[at - stride]);
            if (kind >= 2) pixels.push_back(i % 8 == 0 ? in.byte() : pixel[i % 3]);
        }
    }
    pixels.resize(stride * height);
    return pixels;
}

}  // namespace

void fuzz(Input& in) {
    const std::size_t width = in.number(0, 300), height = in.number(0, 20);
    const Bytes pixels = image(in, width, height);
    lineup::PngFile file;
    const bool good = width > 0 && height > 0;
    EXPECT(refused([&] { file = lineup::png(pixels, width, height); }) != good);
    EXPECT(refused([&] { lineup::png(pixels, width + 1, height); }));
    if (good) EXPECT(decoded({file.bytes.get(), file.size}, width, height) == pixels);
}
