// Plain views on values, and the checks and rounding that every room shares.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace lineup {

// Beyond this squares, and with them standard deviations and distances, overflow.
inline constexpr double kMaxMagnitude = 1e150;

// n rows of equal length, float64; owns nothing. Rows may overlap, as sliding windows over one
// series do (stride 1), or lie anywhere in an array (`at`).
struct Rows {
    const double* data = nullptr;
    std::size_t n = 0;
    std::size_t steps = 0;
    std::size_t stride = steps;        // values from the start of one row to the start of the next
    const std::int64_t* at = nullptr;  // [n], or null: where rows begin, instead of the stride
    std::size_t size = 0;              // with `at`: values of the array

    std::size_t offset(std::size_t i) const {
        return at == nullptr ? i * stride : static_cast<std::size_t>(at[i]);
    }
    std::span<const double> row(std::size_t i) const { return {data + offset(i), steps}; }
    // All values from the first that a row may hold to the last.
    std::span<const double> all() const {
        return {data, at == nullptr ? (n - 1) * stride + steps : size};
    }
    bool overlap() const { return at != nullptr || stride < steps; }
};

// Throws std::invalid_argument "name: expected finite values, got nan at row 3, step 5" on NaN,
// infinities and magnitudes above kMaxMagnitude; the place is that of the first such value.
void require_values(std::string_view name, const Rows& values);
void require_values(std::string_view name, std::span<const double> values);

// Whether require_values would let all of them pass.
bool acceptable(std::span<const double> values);

// Value rounded half to even at `scale` = 10^decimals; left as it is where scaling overflows.
// Zero is always +0, so that equal values have equal bits.
double rounded(double value, double scale);

// 10^decimals, the same number that Python's 10.0**decimals gives.
double decimal_scale(int decimals);

}  // namespace lineup
