#include "scaled_numbers.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "lanes.hpp"

namespace lineup {
namespace {

constexpr double kLimit = 2147483000.0;        // 31 bits
constexpr double kInteger = 4503599627370496;  // 2^52: adding it leaves no room for a fraction

// What was found in a block.
constexpr std::int64_t kTooLarge = 1, kHalf = 2, kThousands = 4;

template <std::size_t lanes>
struct IntegersLike {
    typedef std::int64_t Wide __attribute__((vector_size(8 * lanes)));
    typedef std::int32_t Narrow __attribute__((vector_size(4 * lanes)));
};

// V: lanes of doubles. The product is off by at most half its last place, so that the whole number
// next to it is the one next to the exact product, unless it lies half-way between two.
template <class V>
[[gnu::always_inline]] inline std::int64_t scale_lanes(const double* values, double power,
                                                       ScaledNumbers& out) {
    constexpr std::size_t lanes = kLanesOf<V>;
    using Bits = typename IntegersLike<lanes>::Wide;
    using Ints = typename IntegersLike<lanes>::Narrow;
    const double inverse = 1 / power;
    Bits found{};
    for (std::size_t i = 0; i < ScaledNumbers::kBlock; i += lanes) {
        Bits bits;
        std::memcpy(&bits, values + i, sizeof bits);
        bits &= INT64_MAX;
        V scaled;
        std::memcpy(&scaled, &bits, sizeof bits);
        scaled *= power;
        const Bits large = scaled >= kLimit;
        scaled = large ? V{} + kLimit : scaled;
        const V rounded = (scaled + kInteger) - kInteger;
        const V off = scaled - rounded;
        const Ints whole = __builtin_convertvector((rounded + 0.5) * inverse, Ints);
        const V leading = __builtin_convertvector(whole, V);
        const Ints fraction = __builtin_convertvector(rounded - leading * power, Ints);
        found |= (large & kTooLarge) | (((off == 0.5) | (off == -0.5)) & kHalf) |
                 ((leading >= 1000.0) & kThousands);
        std::memcpy(&out.whole[i], &whole, sizeof whole);
        std::memcpy(&out.fraction[i], &fraction, sizeof fraction);
    }
    std::int64_t any = 0;
    for (std::size_t lane = 0; lane < lanes; ++lane) any |= found[lane];
    return any;
}

std::int64_t scale_plain(const double* values, double power, ScaledNumbers& out) {
    return scale_lanes<Lanes2>(values, power, out);
}

#if LINEUP_X86
LINEUP_AVX2 std::int64_t scale_avx2(const double* values, double power, ScaledNumbers& out) {
    return scale_lanes<Lanes4>(values, power, out);
}

LINEUP_AVX512 std::int64_t scale_avx512(const double* values, double power, ScaledNumbers& out) {
    return scale_lanes<Lanes8>(values, power, out);
}
#endif

using Kernel = std::int64_t (*)(const double*, double, ScaledNumbers&);

Kernel kernel(Isa isa) {
#if LINEUP_X86
    if (isa == Isa::avx512) return scale_avx512;
    if (isa == Isa::avx2) return scale_avx2;
#endif
    static_cast<void>(isa);
    return scale_plain;
}

}  // namespace

void ScaledNumbers::scale(std::span<const double> values, int decimals, Isa isa) {
    const std::int32_t shift = kPowerOfTen[static_cast<std::size_t>(decimals)];
    const double power = shift;
    std::array<double, kBlock> filled;
    const double* from = values.data();
    if (values.size() < kBlock) {
        filled.fill(0);
        from = filled.data();
        std::copy(values.begin(), values.end(), filled.begin());
    }
    const std::int64_t found = kernel(isa)(from, power, *this);
    small = (found & kThousands) == 0;
    fits = (found & kTooLarge) == 0;
    if ((found & kHalf) == 0 || !fits) return;
    for (std::size_t i = 0; i < values.size(); ++i) {
        const double scaled = std::abs(values[i]) * power;
        const double below = std::floor(scaled);
        if (scaled - below != 0.5) continue;
        const double rest = std::fma(std::abs(values[i]), power, -scaled);
        if (rest == 0) continue;  // half-way indeed: the even one, as it was rounded
        const auto number = static_cast<std::int32_t>(rest < 0 ? below : below + 1);
        whole[i] = number / shift;
        fraction[i] = number % shift;
        small = small && whole[i] < 1000;
    }
}

}  // namespace lineup
