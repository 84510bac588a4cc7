#include "features.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

namespace lineup {
namespace {

constexpr std::size_t kLanes = 16;  // sums kept apart: the order of summation is part of the result
constexpr std::size_t kSerialValues = 1 << 14;  // below this a thread costs more than it saves

// Eight doubles; the compiler splits them into what the instruction set has.
using Eight = double __attribute__((vector_size(64), aligned(8), may_alias));

// Loads without alignment; `to` by reference, since passing wide vectors by value has no fixed ABI.
[[gnu::always_inline]] inline void load(const double* from, Eight& to) {
    std::memcpy(&to, from, sizeof to);
}

[[gnu::always_inline]] inline double total(const Eight& a, const Eight& b) {
    const Eight sum = a + b;
    return ((sum[0] + sum[4]) + (sum[2] + sum[6])) + ((sum[1] + sum[5]) + (sum[3] + sum[7]));
}

[[gnu::always_inline]] inline void keep_extremes(const Eight& x, Eight& low, Eight& high) {
    low = x < low ? x : low;
    high = x > high ? x : high;
}

// φ of one row, both passes while it is in the first-level cache. False if a value is unacceptable:
// NaN and infinities end up in the sum, large magnitudes in the extremes.
[[gnu::always_inline]] inline bool features_of(const double* row, std::size_t steps, double* out) {
    const std::size_t whole = steps / kLanes * kLanes;
    const double first = row[0];
    // What is left of the last lanes is filled with values that add zero and change no extreme.
    std::array<double, kLanes> rest;
    if (whole < steps) {
        rest.fill(first);
        std::copy(row + whole, row + steps, rest.begin());
    }

    Eight sum_a = {}, sum_b = {}, a, b;
    Eight low_a = sum_a + first, low_b = low_a, high_a = low_a, high_b = low_a;
    for (std::size_t t = 0; t < whole; t += kLanes) {
        load(row + t, a);
        load(row + t + 8, b);
        sum_a += a - first;
        sum_b += b - first;
        keep_extremes(a, low_a, high_a);
        keep_extremes(b, low_b, high_b);
    }
    if (whole < steps) {
        load(rest.data(), a);
        load(rest.data() + 8, b);
        sum_a += a - first;
        sum_b += b - first;
        keep_extremes(a, low_a, high_a);
        keep_extremes(b, low_b, high_b);
    }
    const auto count = static_cast<double>(steps);
    const double shift = total(sum_a, sum_b);
    const double mean = first + shift / count;

    sum_a = sum_b = Eight{};
    for (std::size_t t = 0; t < whole; t += kLanes) {
        load(row + t, a);
        load(row + t + 8, b);
        a -= mean;
        b -= mean;
        sum_a += a * a;
        sum_b += b * b;
    }
    if (whole < steps) {
        std::fill(rest.begin() + static_cast<std::ptrdiff_t>(steps - whole), rest.end(), mean);
        load(rest.data(), a);
        load(rest.data() + 8, b);
        a -= mean;
        b -= mean;
        sum_a += a * a;
        sum_b += b * b;
    }
    low_a = low_b < low_a ? low_b : low_a;
    high_a = high_b > high_a ? high_b : high_a;
    double low = low_a[0], high = high_a[0];
    for (std::size_t lane = 1; lane < 8; ++lane) {
        low = low_a[lane] < low ? low_a[lane] : low;
        high = high_a[lane] > high ? high_a[lane] : high;
    }
    out[0] = mean;
    out[1] = std::sqrt(total(sum_a, sum_b) / count);
    out[2] = low;
    out[3] = high;
    return std::abs(shift) <= std::numeric_limits<double>::max() && low >= -kMaxMagnitude &&
           high <= kMaxMagnitude;
}

[[gnu::always_inline]] inline bool features_of_rows(const Rows& series, std::size_t begin,
                                                    std::size_t end, double* out) {
    bool good = true;
    for (std::size_t i = begin; i < end; ++i) {
        good &= features_of(series.row(i).data(), series.steps, out + i * kFeatures);
    }
    return good;
}

bool rows_plain(const Rows& series, std::size_t begin, std::size_t end, double* out) {
    return features_of_rows(series, begin, end, out);
}

#if LINEUP_X86
LINEUP_AVX2 bool rows_avx2(const Rows& series, std::size_t begin, std::size_t end, double* out) {
    return features_of_rows(series, begin, end, out);
}

LINEUP_AVX512 bool rows_avx512(const Rows& series, std::size_t begin, std::size_t end,
                               double* out) {
    return features_of_rows(series, begin, end, out);
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
