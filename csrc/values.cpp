#include "values.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <stdexcept>
#include <string>

namespace lineup {
namespace {

bool acceptable(double value) {
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
    constexpr std::size_t kLanes = 8;  // side by side, so that the compiler may use vectors
    std::size_t i = 0;
    std::array<double, kLanes> most{};
    std::array<double, kLanes> zeros{};  // NaN once a value is not finite
    for (; i + kLanes <= values.size(); i += kLanes) {
        for (std::size_t lane = 0; lane < kLanes; ++lane) {
            const double size = std::abs(values[i + lane]);
            most[lane] = size > most[lane] ? size : most[lane];
            zeros[lane] += size * 0.0;
        }
    }
    const bool good = std::all_of(most.begin(), most.end(), acceptable) &&
                      std::all_of(zeros.begin(), zeros.end(), acceptable);
    const auto rest = values.begin() + static_cast<std::ptrdiff_t>(good ? i : 0);
    return static_cast<std::size_t>(std::find_if_not(rest, values.end(), acceptable) -
                                    values.begin());
}

}  // namespace

void require_values(std::string_view name, const Rows& values) {
    const std::span<const double> all(values.data, values.n * values.steps);
    const std::size_t at = first_bad(all);
    if (at == all.size()) return;
    throw std::invalid_argument(describe(name, all[at]) + " at row " +
                                std::to_string(at / values.steps) + ", step " +
                                std::to_string(at % values.steps));
}

void require_values(std::string_view name, std::span<const double> values) {
    const std::size_t at = first_bad(values);
    if (at == values.size()) return;
    throw std::invalid_argument(describe(name, values[at]) + " at step " + std::to_string(at));
}

double rounded(double value, double scale) {
    const double scaled = std::nearbyint(value * scale) / scale;
    return (std::isfinite(scaled) ? scaled : value) + 0.0;  // -0 + 0 is +0
}

double decimal_scale(int decimals) {
    return std::pow(10.0, decimals);
}

}  // namespace lineup
