#include "features.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "lanes.hpp"

namespace lineup {
namespace {

constexpr std::size_t kSerialValues = 1 << 14;  // below this a thread costs more than it saves

constexpr std::size_t kBlockRows = 4;
constexpr std::size_t kBlockValues = 2048;  // half of a small first-level cache

// Calls step(x, v) for the vectors of a row, v counting round the sums. What is left of the last
// vector is filled with `filler`, whose steps change nothing.
template <class V, class Step>
[[gnu::always_inline]] inline void each_vector(const double* row, std::size_t steps, double filler,
                                               const Step& step) {
    constexpr std::size_t lanes = kLanesOf<V>, vectors = kSums / lanes;
    std::size_t t = 0;
    const auto whole = [&](std::size_t v) __attribute__((always_inline)) {
        V x;
        load<V>(row + t + v * lanes, x);
        step(x, v);
    };
    for (; t + kSums <= steps; t += kSums) unrolled<vectors>(whole);
    if (t == steps) return;
    const auto maybe = [&](std::size_t v) __attribute__((always_inline)) {
        const std::size_t at = t + v * lanes;
        if (at + lanes <= steps) return whole(v);
        if (at >= steps) return;
        V x{};
        for (std::size_t i = 0; i < lanes; ++i) {
            x[i] = at + i < steps ? row[std::min(at + i, steps - 1)] : filler;
        }
        step(x, v);
    };
    unrolled<vectors>(maybe);
}

// Writes mean, minimum and maximum of a row to its φ. False if a value is unacceptable: NaN and
// infinities end up in the sum, large magnitudes in the extremes.
template <class V>
[[gnu::always_inline]] inline bool first_pass(const double* row, std::size_t steps, double* phi) {
    constexpr std::size_t vectors = kSums / kLanesOf<V>;
    const V first = V{} + row[0];
    Sums<V> sums, low, high;
    const auto begin = [&](std::size_t v) __attribute__((always_inline)) {
        sums[v] = V{};
        low[v] = high[v] = first;
    };
    const auto add = [&](const V& x, std::size_t v) __attribute__((always_inline)) {
        sums[v] += x - first;
        keep_extremes<V>(x, low[v], high[v]);
    };
    unrolled<vectors>(begin);
    each_vector<V>(row, steps, row[0], add);
    const double shift = total<V>(sums);
    phi[0] = row[0] + shift / static_cast<double>(steps);
    phi[2] = least<V>(low);
    phi[3] = greatest<V>(high);
    return std::isfinite(shift) && phi[2] >= -kMaxMagnitude && phi[3] <= kMaxMagnitude;
}

// Writes the standard deviation of a row whose mean is known to its φ.
template <class V>
[[gnu::always_inline]] inline void second_pass(const double* row, std::size_t steps, double* phi) {
    constexpr std::size_t vectors = kSums / kLanesOf<V>;
    const V mean = V{} + phi[0];
    Sums<V> sums;
    const auto begin = [&](std::size_t v) __attribute__((always_inline)) {
        sums[v] = V{};
    };
    const auto add = [&](const V& x, std::size_t v) __attribute__((always_inline)) {
        const V off = x - mean;
        sums[v] += off * off;
    };
    unrolled<vectors>(begin);
    each_vector<V>(row, steps, phi[0], add);
    phi[1] = std::sqrt(total<V>(sums) / static_cast<double>(steps));
}

// Asks for a row to be brought into the cache.
[[gnu::always_inline]] inline void fetch(std::span<const double> row) {
    constexpr std::size_t line = 64 / sizeof(double);
    for (std::size_t t = 0; t < row.size(); t += line) __builtin_prefetch(row.data() + t);
}

// Both passes over a few rows at a time, which stay in the first-level cache in between: no row
// waits for the mean of the one before it, and later rows come in during the second passes.
template <class V>
[[gnu::always_inline]] inline bool features_of_rows(const Rows& series, std::size_t begin,
                                                    std::size_t end, double* out) {
    const std::size_t block = std::clamp<std::size_t>(kBlockValues / series.steps, 1, kBlockRows);
    bool good = true;
    for (std::size_t from = begin; from < end; from += block) {
        const std::size_t to = std::min(end, from + block);
        for (std::size_t i = from; i < to; ++i) {
            good &= first_pass<V>(series.row(i).data(), series.steps, out + i * kFeatures);
        }
        for (std::size_t i = from; i < to; ++i) {
            if (block > 1 && i + 2 * block < series.n) fetch(series.row(i + 2 * block));
            second_pass<V>(series.row(i).data(), series.steps, out + i * kFeatures);
        }
    }
    return good;
}

bool rows_plain(const Rows& series, std::size_t begin, std::size_t end, double* out) {
    return features_of_rows<Lanes2>(series, begin, end, out);
}

#if LINEUP_X86
LINEUP_AVX2 bool rows_avx2(const Rows& series, std::size_t begin, std::size_t end, double* out) {
    return features_of_rows<Lanes4>(series, begin, end, out);
}

LINEUP_AVX512 bool rows_avx512(const Rows& series, std::size_t begin, std::size_t end,
                               double* out) {
    return features_of_rows<Lanes8>(series, begin, end, out);
}
#endif

using RowsKernel = bool (*)(const Rows&, std::size_t, std::size_t, double*);

RowsKernel kernel(Isa isa) {
#if LINEUP_X86
    if (isa == Isa::avx512) return rows_avx512;
    if (isa == Isa::avx2) return rows_avx2;
#endif
    static_cast<void>(isa);
    return rows_plain;
}

}  // namespace

void features(const Rows& series, std::span<double> out, int threads, const Poll& poll, Isa isa) {
    const RowsKernel of_rows = kernel(isa);
    const std::size_t grain = std::max<std::size_t>(1, kSerialValues / series.steps);
    parallel_for(series.n, grain, threads, poll, [&](std::size_t begin, std::size_t end) {
        if (!of_rows(series, begin, end, out.data())) require_values("series", series);
    });
}

}  // namespace lineup
