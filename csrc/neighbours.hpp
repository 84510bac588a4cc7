// Exact nearest neighbours in the feature space among series that overlap little enough.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "box_tree.hpp"
#include "isa.hpp"
#include "overlap.hpp"
#include "parallel.hpp"
#include "tree_search.hpp"
#include "values.hpp"

namespace lineup {

enum class OverlapRule {
    run,     // at most max_run equal consecutive values, rounded to `decimals`, at any offset
    window,  // windows of one source overlap by at most max_run steps
};

// Series of one length with their points and, for the window rule, where they come from.
struct PlacedSeries {
    Rows z;                                // points [N, D]
    Rows series;                           // values [N, T]
    std::span<const std::int32_t> group;   // [N]; neighbours come from the same group
    std::span<const std::int32_t> source;  // [N], read under the window rule
    std::span<const std::int64_t> start;   // [N], read under the window rule
};

struct Overlap {
    std::size_t max_run;
    int decimals;
    OverlapRule rule;
};

// An index over members. Refers to all their arrays, which must outlive it. All functions are
// const, so that threads may share it.
//
// Neighbours: the nearest by L2 on z, ties to the lower index, of the same group, never an
// equal-valued one, none that overlaps more than the rule allows; -1 where there are no more.
class NeighbourIndex {
  public:
    // Throws std::invalid_argument on NaN, infinities and magnitudes above kMaxMagnitude.
    NeighbourIndex(const PlacedSeries& members, const Overlap& overlap, int threads,
                   const Poll& poll = {}, Isa isa = best_isa());

    std::size_t size() const { return members_.series.n; }
    std::size_t dims() const { return tree_.dims; }
    std::size_t steps() const { return members_.series.steps; }
    std::size_t bytes() const;  // of memory that the index itself takes

    // The k neighbours of every member to out [N, k]; never the member itself.
    void search(std::size_t k, std::span<std::int32_t> out, int threads, const Poll& poll = {},
                Isa isa = best_isa()) const;

    // The k neighbours of series from outside (as many steps and dims) to out [M, k].
    void query(const PlacedSeries& asked, std::size_t k, std::span<std::int32_t> out, int threads,
               const Poll& poll = {}, Isa isa = best_isa()) const;

    // Whether each entry of pool [N, k] could be a neighbour of the member of its row, however far;
    // false for -1. To out [N, k]. Throws std::invalid_argument on other numbers.
    void admissible(std::span<const std::int32_t> pool, std::size_t k, std::span<bool> out,
                    int threads, const Poll& poll = {}) const;

  private:
    class Asker;

    std::vector<std::uint32_t> place_windows();
    std::uint32_t place_at(std::size_t at) const;
    std::uint32_t step_to(std::size_t at) const;
    void limit(std::int32_t source, std::int64_t start, TreeQuery& query) const;
    bool too_close(std::size_t i, std::size_t j) const;
    bool exempt() const { return overlap_.max_run >= members_.series.steps; }
    std::size_t in_order(std::size_t at) const {
        return order_.empty() ? at : static_cast<std::size_t>(order_[at]);
    }

    PlacedSeries members_;
    Overlap overlap_;
    std::uint32_t reach_;               // members whose places are at most so far apart overlap
    std::optional<GramIndex> grams_;    // under the run rule
    std::vector<std::int32_t> order_;   // by source and start; empty if that is the order they have
    std::vector<std::uint32_t> marks_;  // every kMark-th place in that order
    BoxTree tree_;
};

}  // namespace lineup
