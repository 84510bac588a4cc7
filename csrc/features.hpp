// φ of a series: mean, population standard deviation, minimum, maximum.
#pragma once

#include <span>

#include "isa.hpp"
#include "parallel.hpp"
#include "values.hpp"

namespace lineup {

inline constexpr std::size_t kFeatures = 4;

// Writes φ of every row to out [n, 4]; two passes over each row, in float64. Exact for constant
// rows; the same bits under every instruction set and thread count. Throws std::invalid_argument on
// NaN, infinities and magnitudes above kMaxMagnitude.
void features(const Rows& series, std::span<double> out, int threads, const Poll& poll = {},
              Isa isa = best_isa());

}  // namespace lineup
