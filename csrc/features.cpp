#include "features.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "lanes.hpp"

namespace lineup {
namespace {

constexpr std::size_t kSerialValues = 1 << 14;  // below this a thread costs more than it saves

// φ of one row, both passes while it is in the first-level cache. False if a value is unacceptable:
// NaN and infinities end up in the sum, large magnitudes in the extremes.
template <class V>
[[gnu::always_inline]] inline bool features_of(const double* row, std::size_t steps, double* out) {
    const std::size_t whole = steps / kSums * kSums;
    const double first = row[0];
    Sums<V> sums{}, low, high, x;
    fill<V>(first, low);
    fill<V>(first, high);
    const auto add = [&](const double* from) __attribute__((always_inline)) {
        load<V>(from, x);
        for (std::size_t v = 0; v < x.size(); ++v) sums[v] += x[v] - first;
        keep_extremes<V>(x, low, high);
    };
    // What is left of the last lanes is filled with values that add zero and change no extreme.
    std::array<double, kSums> rest;
    for (std::size_t t = 0; t < whole; t += kSums) add(row + t);
    if (whole < steps) {
        rest.fill(first);
        std::copy(row + whole, row + steps, rest.begin());
        add(rest.data());
    }
    const auto count = static_cast<double>(steps);
    const double shift = total<V>(sums);
    const double mean = first + shift / count;

    sums = {};
    const auto add_square = [&](const double* from) __attribute__((always_inline)) {
        load<V>(from, x);
        for (std::size_t v = 0; v < x.size(); ++v) sums[v] += (x[v] - mean) * (x[v] - mean);
    };
    for (std::size_t t = 0; t < whole; t += kSums) add_square(row + t);
    if (whole < steps) {
        std::fill(rest.begin() + static_cast<std::ptrdiff_t>(steps - whole), rest.end(), mean);
        add_square(rest.data());
    }
    out[0] = mean;
    out[1] = std::sqrt(total<V>(sums) / count);
    out[2] = least<V>(low);
    out[3] = greatest<V>(high);
    return std::isfinite(shift) && out[2] >= -kMaxMagnitude && out[3] <= kMaxMagnitude;
}

template <class V>
[[gnu::always_inline]] inline bool features_of_rows(const Rows& series, std::size_t begin,
                                                    std::size_t end, double* out) {
    bool good = true;
    for (std::size_t i = begin; i < end; ++i) {
        good &= features_of<V>(series.row(i).data(), series.steps, out + i * kFeatures);
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
