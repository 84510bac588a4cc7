// What the fuzz targets share: numbers read from the bytes of an input, and checks that end the
// process. A target defines fuzz(); entry.cpp makes a libFuzzer target of it, replay.cpp a test.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <stdexcept>
#include <vector>

#define EXPECT(condition)                                                       \
    do {                                                                        \
        if (!(condition)) {                                                     \
            std::printf("%s:%d: failed: %s\n", __FILE__, __LINE__, #condition); \
            std::fflush(stdout);                                                \
            std::abort();                                                       \
        }                                                                       \
    } while (false)

class Input {
  public:
    explicit Input(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}

    // Zeros behind the end.
    std::uint8_t byte() {
        if (bytes_.empty()) return 0;
        const std::uint8_t first = bytes_.front();
        bytes_ = bytes_.subspan(1);
        return first;
    }

    std::uint64_t bits(int n_bytes = 8) {
        std::uint64_t out = 0;
        for (int i = 0; i < n_bytes; ++i) out = out << 8 | byte();
        return out;
    }

    bool flag() { return (byte() & 1) != 0; }

    // A number from `least` to `most`, all of them possible.
    std::size_t number(std::size_t least, std::size_t most) {
        const std::size_t choices = most - least + 1;
        return least + bits(choices <= 256 ? 1 : choices <= 65536 ? 2 : 8) % choices;
    }

    // Mostly values that are equal or tie often, sometimes any float64, NaN and infinities too.
    double value() {
        const std::uint8_t kind = byte();
        if (kind < 128) return kind - 64;
        const auto small = static_cast<double>(static_cast<std::int8_t>(byte()));
        if (kind < 176) return small / 8;
        if (kind < 240) return small * std::pow(10.0, kind - 208);
        return std::bit_cast<double>(bits());
    }

    std::vector<double> values(std::size_t n) {
        std::vector<double> out(n);
        for (double& x : out) x = value();
        return out;
    }

  private:
    std::span<const std::uint8_t> bytes_;
};

// Numbers without end from a seed, where an input would have to be long.
class Noise {
  public:
    explicit Noise(std::uint64_t seed) : state_(seed) {}

    std::uint64_t below(std::uint64_t n) {
        state_ = state_ * 6364136223846793005ULL + 1442695040888963407ULL;
        return (state_ >> 33) % n;
    }

  private:
    std::uint64_t state_;
};

// Whether the call is refused as bad arguments are; any other exception ends the process.
template <class Call>
bool refused(Call&& call) {
    try {
        call();
    } catch (const std::invalid_argument& error) {
        EXPECT(std::strstr(error.what(), ": expected ") != nullptr);
        return true;
    }
    return false;
}

inline bool is_good(double value) {
    return value >= -1e150 && value <= 1e150;
}

inline bool all_good(std::span<const double> values) {
    for (const double value : values) {
        if (!is_good(value)) return false;
    }
    return true;
}

// Runs one input.
void fuzz(Input& in);
