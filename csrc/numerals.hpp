// Numbers to text, and straight to token ids.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "parallel.hpp"
#include "values.hpp"

namespace lineup {

// The values with a fixed number of decimals (0 to 12), joined; each as Python's format(v, ".Nf"):
// exact, half to even, "-0.00" kept. Throws std::invalid_argument on NaN and infinities.
std::string format_numbers(std::span<const double> values, int decimals,
                           std::string_view separator);

// Token ids of what numbers are made of. Digit runs: "0".."9" at 0-9, "00".."99" at 10-109,
// "000".."999" at 110-1109 of the offsets. A run of digits is cut from the left into units of
// `group` digits (1 or 3); everything between digits is looked up as a whole.
struct NumeralTable {
    std::span<const std::int32_t> digit_ids;
    std::span<const std::int64_t> digit_offsets;       // [1111]
    std::span<const std::int32_t> first;               // opens a row, before a digit
    std::span<const std::int32_t> first_negative;      // opens a row, with its minus
    std::span<const std::int32_t> separator;           // before a digit
    std::span<const std::int32_t> separator_negative;  // with the minus that follows
    std::span<const std::int32_t> dot;
    std::size_t group;
};

struct RaggedIds {
    std::vector<std::int32_t> ids;
    std::vector<std::int64_t> offsets;  // [rows + 1]
};

// Token ids of every row of numbers.
RaggedIds number_ids(const Rows& values, int decimals, const NumeralTable& table, int threads,
                     const Poll& poll = {});

}  // namespace lineup
