#include "row_prints.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "lanes.hpp"

namespace lineup {
namespace {

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
    std::uint64_t print = 0;
    bool good = true;
    for (const double sum : unpacked<V>(sums)) {
        good &= std::isfinite(sum);
        print = (print ^ std::bit_cast<std::uint64_t>(sum)) * 0x9E3779B97F4A7C15ULL;
        print ^= print >> 29;
    }
    out = static_cast<std::uint32_t>(print >> 32);
    return good && least<V>(low) >= -kMaxMagnitude && greatest<V>(high) <= kMaxMagnitude;
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
