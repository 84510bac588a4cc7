#include "png.hpp"

#include <array>
#include <bit>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace lineup {
namespace {

constexpr std::size_t kPeriod = 3;  // bytes of a pixel
constexpr std::size_t kLongestRun = 258;
constexpr std::uint64_t kAdlerModulus = 65521;
constexpr std::size_t kMostBytes = 1'000'000'000;

// Bits in the order in which deflate writes them.
struct Code {
    std::uint32_t bits = 0;
    int count = 0;
};

constexpr std::uint32_t reversed(std::uint32_t bits, int count) {
    std::uint32_t out = 0;
    for (int i = 0; i < count; ++i) out |= (bits >> i & 1) << (count - 1 - i);
    return out;
}

// Deflate's fixed code of a literal (0 to 255), the end (256) or a length (257 to 285).
constexpr Code fixed_code(std::uint32_t symbol) {
    if (symbol < 144) return {reversed(0x30 + symbol, 8), 8};
    if (symbol < 256) return {reversed(0x190 + symbol - 144, 9), 9};
    if (symbol < 280) return {reversed(symbol - 256, 7), 7};
    return {reversed(0xC0 + symbol - 280, 8), 8};
}

// Length symbol, its extra bits and the distance kPeriod in one code.
constexpr Code run_code(std::uint32_t length) {
    std::uint32_t symbol = 285;
    std::uint32_t extra = 0;
    int extra_count = 0;
    if (length < 11) {
        symbol = 254 + length;
    } else if (length < kLongestRun) {
        // Four symbols for each number of extra bits.
        while ((length - 3) >> (extra_count + 3) != 0) ++extra_count;
        symbol = 257 + 4 * static_cast<std::uint32_t>(extra_count) + ((length - 3) >> extra_count);
        extra = (length - 3) & ((1U << extra_count) - 1);
    }
    Code code = fixed_code(symbol);
    code.bits |= extra << code.count;
    code.count += extra_count;
    code.bits |= reversed(kPeriod - 1, 5) << code.count;
    code.count += 5;
    return code;
}

struct Codes {
    std::array<Code, 257> symbols;
    std::array<Code, kLongestRun + 1> runs;
    constexpr Codes() : symbols(), runs() {
        for (std::uint32_t i = 0; i < symbols.size(); ++i) symbols[i] = fixed_code(i);
        for (std::uint32_t i = 3; i < runs.size(); ++i) runs[i] = run_code(i);
    }
};
constexpr Codes kCodes;

// Remainders of four bytes at a time.
struct CrcTables {
    std::array<std::array<std::uint32_t, 256>, 4> rows;
    constexpr CrcTables() : rows() {
        for (std::uint32_t i = 0; i < 256; ++i) {
            std::uint32_t rest = i;
            for (int bit = 0; bit < 8; ++bit) rest = rest >> 1 ^ (rest & 1 ? 0xEDB88320U : 0);
            rows[0][i] = rest;
        }
        for (std::size_t k = 1; k < rows.size(); ++k) {
            for (std::size_t i = 0; i < 256; ++i) {
                rows[k][i] = rows[k - 1][i] >> 8 ^ rows[0][rows[k - 1][i] & 255];
            }
        }
    }
};
constexpr CrcTables kCrc;

std::uint32_t crc32(const std::uint8_t* bytes, std::size_t n) {
    std::uint32_t crc = ~0U;
    for (; n >= 4; n -= 4, bytes += 4) {
        crc ^= bytes[0] | static_cast<std::uint32_t>(bytes[1]) << 8 |
               static_cast<std::uint32_t>(bytes[2]) << 16 |
               static_cast<std::uint32_t>(bytes[3]) << 24;
        crc = kCrc.rows[3][crc & 255] ^ kCrc.rows[2][crc >> 8 & 255] ^
              kCrc.rows[1][crc >> 16 & 255] ^ kCrc.rows[0][crc >> 24];
    }
    for (; n > 0; --n) crc = crc >> 8 ^ kCrc.rows[0][(crc ^ *bytes++) & 255];
    return ~crc;
}

// Writes into a buffer known to be large enough.
class Writer {
  public:
    explicit Writer(std::uint8_t* at) : at_(at) {}

    void code(Code code) {
        held_ |= std::uint64_t{code.bits} << count_;
        count_ += code.count;
        if (count_ >= 32) {
            for (int i = 0; i < 4; ++i) at_[i] = static_cast<std::uint8_t>(held_ >> (8 * i));
            at_ += 4;
            held_ >>= 32;
            count_ -= 32;
        }
    }
    void align() {
        for (; count_ > 0; count_ -= 8, held_ >>= 8) *at_++ = static_cast<std::uint8_t>(held_);
        count_ = 0;
    }
    void bytes(std::string_view text) {
        std::memcpy(at_, text.data(), text.size());
        at_ += text.size();
    }
    void number(std::uint32_t value) {  // big endian
        for (int shift = 24; shift >= 0; shift -= 8) {
            *at_++ = static_cast<std::uint8_t>(value >> shift);
        }
    }
    std::uint8_t* at() const { return at_; }

  private:
    std::uint8_t* at_;
    std::uint64_t held_ = 0;
    int count_ = 0;
};

// Bytes from `at` on, up to n, that equal those one period before.
std::size_t run_length(const std::uint8_t* at, std::size_t n) {
    const std::uint8_t* const earlier = at - kPeriod;
    std::size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        std::uint64_t here;
        std::uint64_t before;
        std::memcpy(&here, at + i, sizeof here);
        std::memcpy(&before, earlier + i, sizeof before);
        if (here != before) {
            return i + static_cast<std::size_t>(std::countr_zero(here ^ before)) / 8;
        }
    }
    while (i < n && at[i] == earlier[i]) ++i;
    return i;
}

// Deflates a stream row by row, and keeps its Adler-32 sum.
class Deflater {
  public:
    explicit Deflater(Writer& out) : out_(out) {}

    // The kPeriod bytes before `row` are readable; those of the last row's end, or anything at
    // first.
    void add(const std::uint8_t* row, std::size_t n) {
        std::size_t i = 0;
        for (; i < n && seen_ < kPeriod; ++i, ++seen_) literal(row[i]);
        while (i < n) {
            const std::size_t run = run_length(row + i, n - i);
            if (run < 3) {
                literal(row[i++]);
                continue;
            }
            sum(row + i, run);
            i += run;
            for (std::size_t left = run; left > 0;) {
                // No rest shorter than a run can be.
                const std::size_t part = left <= kLongestRun      ? left
                                         : left < kLongestRun + 3 ? left - 3
                                                                  : kLongestRun;
                out_.code(kCodes.runs[part]);
                left -= part;
            }
        }
        low_ %= kAdlerModulus;
        high_ %= kAdlerModulus;
    }

    std::uint32_t adler() const { return static_cast<std::uint32_t>(high_ << 16 | low_); }

  private:
    void literal(std::uint8_t byte) {
        out_.code(kCodes.symbols[byte]);
        low_ += byte;
        high_ += low_;
    }

    void sum(const std::uint8_t* bytes, std::size_t n) {
        if ((bytes[0] | bytes[1] | bytes[2]) == 0) {
            high_ += n * low_;
            return;
        }
        for (std::size_t i = 0; i < n; ++i) {
            low_ += bytes[i];
            high_ += low_;
        }
    }

    Writer& out_;
    std::uint64_t low_ = 1;
    std::uint64_t high_ = 0;
    std::size_t seen_ = 0;
};

void deflate(std::span<const std::uint8_t> pixels, std::size_t width, std::size_t height,
             Writer& out) {
    constexpr std::uint8_t kUp = 2;  // the filter: differences from the row above
    const std::size_t stride = 3 * width;
    std::vector<std::uint8_t> buffer(kPeriod + 1 + stride);
    std::uint8_t* const row = buffer.data() + kPeriod;
    const std::vector<std::uint8_t> nothing(stride);
    out.bytes("\x78\x01");
    out.code({3, 3});  // the last block, with fixed codes
    Deflater deflater(out);
    const std::uint8_t* above = nothing.data();
    for (std::size_t y = 0; y < height; ++y) {
        const std::uint8_t* line = pixels.data() + y * stride;
        std::memcpy(buffer.data(), row + 1 + stride - kPeriod, kPeriod);
        row[0] = kUp;
        for (std::size_t i = 0; i < stride; ++i) {
            row[i + 1] = static_cast<std::uint8_t>(line[i] - above[i]);
        }
        deflater.add(row, 1 + stride);
        above = line;
    }
    out.code(kCodes.symbols[256]);
    out.align();
    out.number(deflater.adler());
}

}  // namespace

PngFile png(std::span<const std::uint8_t> pixels, std::size_t width, std::size_t height) {
    if (width == 0 || height == 0 || pixels.size() > kMostBytes ||
        pixels.size() / 3 / width != height || pixels.size() != 3 * width * height) {
        throw std::invalid_argument("image: expected " + std::to_string(width) + "x" +
                                    std::to_string(height) + " pixels of 3 bytes, at most 10^9" +
                                    " bytes, got " + std::to_string(pixels.size()));
    }
    // Nine bits at most for a byte.
    const std::size_t stream = (3 * width + 1) * height;
    PngFile file{std::make_unique_for_overwrite<std::uint8_t[]>(stream + stream / 8 + 128), 0};
    Writer out(file.bytes.get());
    out.bytes("\x89PNG\r\n\x1a\n");
    const auto chunk = [&](std::string_view kind, const auto& data) {
        std::uint8_t* const start = out.at();
        out.number(0);
        out.bytes(kind);
        data();
        const auto size = static_cast<std::size_t>(out.at() - start) - 8;
        Writer(start).number(static_cast<std::uint32_t>(size));
        out.number(crc32(start + 4, size + 4));
    };
    chunk("IHDR", [&] {
        out.number(static_cast<std::uint32_t>(width));
        out.number(static_cast<std::uint32_t>(height));
        out.bytes({"\x08\x02\x00\x00\x00", 5});  // 8 bits, RGB
    });
    chunk("IDAT", [&] { deflate(pixels, width, height, out); });
    chunk("IEND", [] {});
    file.size = static_cast<std::size_t>(out.at() - file.bytes.get());
    return file;
}

}  // namespace lineup
