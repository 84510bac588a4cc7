// A number for every row that equal rows share and others hardly ever.
#pragma once

#include <cstdint>
#include <span>

#include "isa.hpp"
#include "values.hpp"

namespace lineup {

// Writes the prints of rows [begin, end) to out; -0 counts as 0; the same under every instruction
// set. False if a value is one that require_values refuses (their prints mean nothing then).
bool row_prints(const Rows& series, std::size_t begin, std::size_t end, std::uint32_t* out,
                Isa isa = best_isa());

}  // namespace lineup
