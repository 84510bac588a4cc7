// Exact nearest neighbours in the feature space among series that overlap little enough.
#pragma once

#include <cstdint>
#include <span>

#include "parallel.hpp"
#include "values.hpp"

namespace lineup {

enum class OverlapRule {
    run,     // at most max_run equal consecutive values, rounded to `decimals`, at any offset
    window,  // windows of one source overlap by at most max_run steps
};

struct NeighbourQuery {
    Rows z;                                // points [N, D]
    Rows series;                           // values [N, T]
    std::span<const std::int32_t> group;   // [N]; neighbours come from the same group
    std::span<const std::int32_t> source;  // [N], read under the window rule
    std::span<const std::int64_t> start;   // [N], read under the window rule
    std::size_t k;
    std::size_t max_run;
    int decimals;
    OverlapRule rule;
};

// Writes the k nearest admissible rows of every row to out [N, k]: L2 on z, ties to the lower
// index, never the row itself nor an equal-valued one, -1 where there are no more. Throws
// std::invalid_argument on NaN, infinities and magnitudes above kMaxMagnitude.
void neighbours(const NeighbourQuery& query, std::span<std::int32_t> out, int threads,
                const Poll& poll = {});

}  // namespace lineup
