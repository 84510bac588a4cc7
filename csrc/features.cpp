#include "features.hpp"

#include <algorithm>
#include <array>
#include <cmath>

namespace lineup {
namespace {

constexpr std::size_t kLanes = 8;  // independent sums, so that the compiler may vectorise
constexpr std::size_t kSerialValues = 1 << 14;  // below this a thread costs more than it saves

// Sum of term(value) over the row.
template <class Term>
double lane_sum(std::span<const double> row, Term term) {
    std::array<double, kLanes> sums{};
    std::size_t t = 0;
    for (; t + kLanes <= row.size(); t += kLanes) {
        for (std::size_t lane = 0; lane < kLanes; ++lane) sums[lane] += term(row[t + lane]);
    }
    for (; t < row.size(); ++t) sums[t % kLanes] += term(row[t]);
    double total = 0.0;
    for (const double sum : sums) total += sum;
    return total;
}

void features_of(std::span<const double> row, double* out) {
    const auto steps = static_cast<double>(row.size());
    const double first = row[0];
    const double mean = first + lane_sum(row, [=](double x) { return x - first; }) / steps;
    const double squares = lane_sum(row, [=](double x) { return (x - mean) * (x - mean); });
    const auto [low, high] = std::minmax_element(row.begin(), row.end());
    out[0] = mean;
    out[1] = std::sqrt(squares / steps);
    out[2] = *low;
    out[3] = *high;
}

}  // namespace

void features(const Rows& series, std::span<double> out, int threads, const Poll& poll) {
    require_values("series", series);
    const std::size_t grain = std::max<std::size_t>(1, kSerialValues / series.steps);
    parallel_for(series.n, grain, threads, poll, [&](std::size_t begin, std::size_t end) {
        for (std::size_t i = begin; i < end; ++i) {
            features_of(series.row(i), out.data() + i * kFeatures);
        }
    });
}

}  // namespace lineup
