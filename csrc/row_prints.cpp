#include "row_prints.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "lanes.hpp"

namespace lineup {
namespace {

constexpr std::uint64_t kSpread = 0x9E3779B97F4A7C15ULL;
constexpr std::array<double, kSums> kWeights = [] {
    std::array<double, kSums> weights{};
    for (std::size_t i = 0; i < kSums; ++i) {
        weights[i] = 1.0 + static_cast<double>(i * i * 37 % 101) * 0.013;
    }
    return weights;
}();

// Sums with weights, cheap beside hashing every value. Sums start at +0 and so never become -0.
template <class V>
[[gnu::always_inline]] inline bool print_of(const double* row, std::size_t steps,
                                            std::uint32_t& out) {
    Sums<V> sums{}, low{}, high{};
    double weight = 1.0;
    const auto add = [&](const double* from) __attribute__((always_inline)) {
        for (std::size_t v = 0; v < sums.size(); ++v) {
            V x;
            load<V>(from + v * kLanesOf<V>, x);
            sums[v] += x * weight;
            keep_extremes<V>(x, low[v], high[v]);
        }
    };
    std::size_t t = 0;
    for (; t + kSums <= steps; t += kSums) {
        add(row + t);
        weight *= 1.0625;
        if (weight > 1e6) weight = 1.0;  // far from overflow, however long the row
    }
    if (t < steps) {
        std::array<double, kSums> rest{};
        std::copy(row + t, row + steps, rest.begin());
        add(rest.data());
    }
    // Each sum with a weight of its own, so that values that change places do not cancel.
    for (std::size_t v = 0; v < sums.size(); ++v) {
        V weights;
        std::memcpy(&weights, kWeights.data() + v * kLanesOf<V>, sizeof weights);
        sums[v] *= weights;
    }
    const double sum = total<V>(sums);
    out = static_cast<std::uint32_t>(std::bit_cast<std::uint64_t>(sum) * kSpread >> 32);
    return std::isfinite(sum) && least<V>(low) >= -kMaxMagnitude &&
           greatest<V>(high) <= kMaxMagnitude;
}

template <class V>
[[gnu::always_inline]] inline bool prints_of(const Rows& series, std::size_t begin, std::size_t end,
                                             std::uint32_t* out) {
    bool good = true;
    for (std::size_t i = begin; i < end; ++i) {
        good &= print_of<V>(series.row(i).data(), series.steps, out[i - begin]);
    }
    return good;
}

#if LINEUP_X86
LINEUP_AVX2 bool prints_avx2(const Rows& series, std::size_t begin, std::size_t end,
                             std::uint32_t* out) {
    return prints_of<Lanes4>(series, begin, end, out);
}

LINEUP_AVX512 bool prints_avx512(const Rows& series, std::size_t begin, std::size_t end,
                                 std::uint32_t* out) {
    return prints_of<Lanes8>(series, begin, end, out);
}
#endif

}  // namespace

bool row_prints(const Rows& series, std::size_t begin, std::size_t end, std::uint32_t* out,
                Isa isa) {
#if LINEUP_X86
    if (isa == Isa::avx512) return prints_avx512(series, begin, end, out);
    if (isa == Isa::avx2) return prints_avx2(series, begin, end, out);
#endif
    static_cast<void>(isa);
    return prints_of<Lanes2>(series, begin, end, out);
}

}  // namespace lineup
