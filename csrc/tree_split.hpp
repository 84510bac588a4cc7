// Points in the order of the leaves to be, and how a stretch of them is halved.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "box_tree.hpp"
#include "isa.hpp"
#include "values.hpp"

namespace lineup {

// Copies of the coordinates in float32, which move along with the order: good enough to order by.
struct PointColumns {
    Rows points;
    std::size_t n = 0;
    std::vector<std::uint32_t> id;  // [n]
    LineVector<float> x;            // [dims][n], from some point of the stretch, in a unit of it
};

// For one thread.
struct SplitRoom {
    LineVector<float> near, nearer;    // [longest stretch + kLeaf]
    LineVector<std::uint32_t> rights;  // [dims + 1][longest stretch + kLeaf]
};

// Measures a stretch anew.
void measure(PointColumns& columns, std::size_t begin, std::size_t end);

// Moves the `left` points of a stretch that are the smallest along its widest side to its front;
// both parts keep their order. 0 < left < end - begin, more than kLeaf points.
void split(PointColumns& columns, std::size_t begin, std::size_t end, std::size_t left,
           SplitRoom& room, Isa isa);

}  // namespace lineup
