#include "values.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <stdexcept>
#include <string>

namespace lineup {
namespace {

bool fits(double value) {
    return std::abs(value) <= kMaxMagnitude;
}  // false on NaN

std::string describe(std::string_view name, double value) {
    char text[32];
    std::string message(name);
    if (std::isfinite(value)) {
        std::snprintf(text, sizeof text, "%.3e", value);
        return message + ": expected magnitudes up to 1e150, got " + text;
    }
    const char* word = std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
    return message + ": expected finite values, got " + word;
}

// Position of the first unacceptable value, values.size() if there is none.
std::size_t first_bad(std::span<const double> values) {
    constexpr std::size_t kBlock = 16;  // looked at without a branch, so that it is vectorised
    std::size_t at = 0;
    for (; at + kBlock <= values.size(); at += kBlock) {
        bool good = true;
        for (std::size_t i = at; i < at + kBlock; ++i) good &= fits(values[i]);
        if (!good) break;
    }
    while (at < values.size() && fits(values[at])) ++at;
    return at;
}

[[noreturn]] void refuse(std::string_view name, const Rows& values, std::size_t row,
                         std::size_t step) {
    throw std::invalid_argument(describe(name, values.row(row)[step]) + " at row " +
                                std::to_string(row) + ", step " + std::to_string(step));
}

}  // namespace

void require_values(std::string_view name, const Rows& values) {
    const std::size_t steps = values.steps;
    const std::size_t stride = values.stride;
    if (stride > steps ||
        values.at != nullptr) {  // what lies between the rows is not ours to judge
        for (std::size_t i = 0; i < values.n; ++i) {
            const std::size_t step = first_bad(values.row(i));
            if (step < steps) refuse(name, values, i, step);
        }
        return;
    }
    // Overlapping rows: each value once. The first row that holds it is the first bad one.
    const std::span<const double> all = values.all();
    const std::size_t at = first_bad(all);
    if (at == all.size()) return;
    const std::size_t row = at < steps ? 0 : (at - steps) / stride + 1;
    refuse(name, values, row, at - row * stride);
}

void require_values(std::string_view name, std::span<const double> values) {
    const std::size_t at = first_bad(values);
    if (at == values.size()) return;
    throw std::invalid_argument(describe(name, values[at]) + " at step " + std::to_string(at));
}

bool acceptable(std::span<const double> values) {
    return first_bad(values) == values.size();
}

double rounded(double value, double scale) {
    // Adding 2^52 leaves no room for a fraction: half to even, as std::nearbyint, without its call.
    constexpr double whole = 4503599627370496.0;
    double scaled = value * scale;
    const double magnitude = std::abs(scaled);
    if (magnitude < whole) scaled = std::copysign((magnitude + whole) - whole, scaled);
    scaled /= scale;
    return (std::isfinite(scaled) ? scaled : value) + 0.0;  // -0 + 0 is +0
}

double decimal_scale(int decimals) {
    return std::pow(10.0, decimals);
}

}  // namespace lineup
