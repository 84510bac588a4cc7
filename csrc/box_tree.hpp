// A 16-ary tree of boxes over points: the order of the leaves is the whole structure, since node n
// of level h covers the leaves [n 16^h, (n + 1) 16^h) of its part. Boxes are float64, so that what
// they promise holds for the computed distances to the last bit; the points themselves are float32
// offsets from the centres of their leaves, good enough to tell which may be near.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <new>
#include <span>
#include <vector>

#include "isa.hpp"
#include "parallel.hpp"
#include "values.hpp"

namespace lineup {

inline constexpr std::size_t kLeaf = 32;    // points of a leaf
inline constexpr std::size_t kFanout = 16;  // children of a node
inline constexpr std::size_t kLevels = 8;   // more than 2^31 points can need

// Memory on cache lines, so that a wide load touches one.
template <class T>
struct CacheAligned {
    using value_type = T;
    static constexpr std::align_val_t kLine{64};

    CacheAligned() = default;
    template <class U>
    explicit CacheAligned(const CacheAligned<U>&) {}

    T* allocate(std::size_t n) {
        if (n > std::numeric_limits<std::size_t>::max() / sizeof(T)) throw std::bad_alloc();
        return static_cast<T*>(::operator new(n * sizeof(T), kLine));
    }
    void deallocate(T* p, std::size_t) { ::operator delete(p, kLine); }
    bool operator==(const CacheAligned&) const { return true; }
};

template <class T>
using LineVector = std::vector<T, CacheAligned<T>>;

// What a point carries besides its coordinates; see TreeQuery for the meaning.
struct PointTags {
    std::span<const std::uint32_t> place;  // [n]
    std::span<const std::uint32_t> print;  // [n], or empty
};

struct BoxTree {
    struct Part {  // the points of one group
        std::int32_t group;
        std::size_t first_leaf;
        std::size_t leaves;
        std::size_t height;                      // level of the root, at least 1
        std::array<std::size_t, kLevels> boxes;  // [h]: where the boxes of level h >= 1 begin
        double radius;                           // of a leaf, on average; squared
    };

    std::size_t dims = 0;
    double scale = 1.0;               // of the offsets: a power of two that keeps float32 in range
    std::vector<Part> parts;          // rising by group
    LineVector<float> offsets;        // [leaf][dims][kLeaf]; NaN in empty slots
    LineVector<std::uint32_t> place;  // [leaf][kLeaf]
    LineVector<std::uint32_t> print;  // [leaf][kLeaf], or empty
    std::vector<std::int32_t> id;     // [leaf][kLeaf]; -1 in empty slots
    LineVector<double> boxes;         // [node][low, high][dims][kFanout]: those of its children

    const Part* part(std::int32_t group) const;  // null if there is no such group
    std::size_t bytes() const;
};

// From where the points of a leaf are measured.
inline double leaf_centre(double low, double high) {
    return low + (high - low) * 0.5;
}

BoxTree build_tree(const Rows& points, std::span<const std::int32_t> group, const PointTags& tags,
                   int threads, const Poll& poll, Isa isa);

}  // namespace lineup
