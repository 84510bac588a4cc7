// Nearest admissible points of a box tree.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "box_tree.hpp"
#include "isa.hpp"

namespace lineup {

struct TreeQuery {
    const double* point;  // [dims]
    std::uint64_t low;    // points at places low .. low + span are inadmissible
    std::uint64_t span;
    std::uint32_t print;  // of the values: points of the same print may be equal-valued
    // Asked for points that are near enough: always, or only those of the same print.
    bool (*admits)(void* context, std::int32_t id);
    void* context;
    bool ask_always;
};

// The k nearest points so far, by squared distance and then id. Up to kSorted they stay sorted,
// beyond it they form a heap.
class NearestList {
  public:
    static constexpr std::size_t kSorted = 256;
    static constexpr std::size_t kWide = 8;  // up to so many are kept in one wide register

    explicit NearestList(std::size_t k);

    // Forgets all points. `limit`: points further away will not be among the k nearest.
    void clear(double limit = std::numeric_limits<double>::max());
    std::size_t k() const { return k_; }
    // Only points at most so far away can still get in.
    double bound() const { return bound_; }
    bool accepts(double distance, std::int32_t id) const {
        return distance < bound_ || (distance == bound_ && id < last_);
    }
    void insert(double distance, std::int32_t id);  // one that is accepted
    void copy_to(std::int32_t* out);                // ids, nearest first, -1 where there are none

    // Direct access for wide code; `settle` is to be called after it.
    double* distances() { return distances_.data(); }
    std::int32_t* ids() { return ids_.data(); }
    void settle() { tighten(distances_[k_ - 1], ids_[k_ - 1]); }

  private:
    void tighten(double distance, std::int32_t id) {
        if (distance > limit_) return;
        bound_ = distance;
        last_ = id;
    }

    std::size_t k_;
    double limit_, bound_;
    std::int32_t last_;
    LineVector<double> distances_;  // [max(k, kWide)]; the largest double where there is no point
    LineVector<std::int32_t> ids_;  // and the largest id
    std::vector<std::pair<double, std::int32_t>> heap_;
};

using TreeSearch = void (*)(const BoxTree&, const BoxTree::Part&, const TreeQuery&, NearestList&);

// The search for an instruction set: adds the nearest admissible points of the part to the list.
TreeSearch tree_search(Isa isa);

}  // namespace lineup
