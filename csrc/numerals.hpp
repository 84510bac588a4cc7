// Numbers to text, and straight to token ids.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "numeral_writer.hpp"
#include "parallel.hpp"
#include "values.hpp"

namespace lineup {

// The values with a fixed number of decimals (0 to 12), joined; each as Python's format(v, ".Nf"):
// exact, half to even, "-0.00" kept. Throws std::invalid_argument on NaN and infinities.
std::string format_numbers(std::span<const double> values, int decimals, std::string_view separator,
                           Isa isa = best_isa());

// Token ids of what numbers are made of. Digit runs: "0".."9" at 0-9, "00".."99" at 10-109,
// "000".."999" at 110-1109 of the offsets. A run of digits is cut from the left into pieces of
// `group` digits (1 or 3); everything between digits is looked up as a whole.
struct NumeralTable {
    std::span<const std::int32_t> digit_ids;
    std::span<const std::int64_t> digit_offsets;  // [1111]
    Openings<std::int32_t> openings;
    std::span<const std::int32_t> dot;
    std::size_t group;
};

struct RaggedIds {
    Units<std::int32_t> ids;
    std::vector<std::int64_t> offsets{0};  // [rows + 1]
};

// A table made ready for many calls; keeps its own copy.
class Numerals {
  public:
    explicit Numerals(const NumeralTable& table);

    // Token ids of every row of numbers, row i with decimals[i]. Throws std::invalid_argument on
    // NaN and infinities.
    RaggedIds ids(const Rows& values, std::span<const std::int32_t> decimals, int threads,
                  const Poll& poll, Isa isa) const;

    // Appends those of one row, which has been checked.
    void append(std::span<const double> values, int decimals, RaggedIds& out, Isa isa) const;

  private:
    NumeralWriter<std::int32_t> writer_;
    std::vector<std::int32_t> first_, first_negative_, separator_, separator_negative_;
};

}  // namespace lineup
