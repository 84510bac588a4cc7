// What the search for neighbours on a device starts from. All of it takes time linear in the
// values (but for sorting members by group), and is done on the processor.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "neighbours.hpp"

namespace lineup::cuda {

// Members by group, within a group by index; a place is a number in that order.
struct Plan {
    std::vector<std::int32_t> order;        // [n]: the member at each place
    std::vector<std::int32_t> first, last;  // [n]: the group of a place has places [first, last)
    std::vector<double> z;                  // [n, D], by place
    // By place. Members on one line whose positions are at most `reach` apart are no neighbours: a
    // member and itself, and such as are known to overlap.
    std::vector<std::int32_t> line;
    std::vector<std::int64_t> at;
    std::uint64_t reach = 0;
    // By member. Members that share a run of `run` of these values or more are no neighbours.
    std::vector<double> kept;  // what `compared` shows, if not the series themselves
    Rows compared;
    std::size_t run = 0;
};

// Throws std::invalid_argument on NaN, infinities and magnitudes above kMaxMagnitude. Refers to the
// members, which must outlive it.
Plan plan_neighbours(const PlacedSeries& members, const Overlap& overlap, int threads,
                     const Poll& poll);

}  // namespace lineup::cuda
