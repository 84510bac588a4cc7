// Nearest admissible points of a box tree, asked for by points that lie close together: the leaves
// within a radius of all of them are gathered once, then each point looks through that list.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "box_tree.hpp"
#include "isa.hpp"

namespace lineup {

struct TreeQuery {
    const double* point;  // [dims]
    std::uint32_t low;    // points at places low .. low + span are inadmissible
    std::uint32_t span;
    std::uint32_t print;  // of the values: points of the same print may be equal-valued
    // Asked for points that are near enough: always, or only those of the same print.
    bool (*admits)(void* context, std::int32_t id);
    void* context;
    bool ask_always;
};

// Leaves near a batch of queries, in blocks of kFanout. Distances are measured from the middle of
// the batch, in the unit of the offsets.
struct LeafList {
    std::vector<double> low, high;    // [dims]: the box of the batch
    std::vector<double> middle;       // [dims]
    LineVector<float> boxes;          // [block][low, high, centre][dims][kFanout]; NaN where none
    std::vector<std::uint32_t> leaf;  // [n]
    double beyond = 0.0;              // squared distance of the nearest that was left out
    float size = 0.0F;                // the largest magnitude in boxes, and of the batch
    float off = 0.0F;                 // by how much distances may be off
};

// Points that may be near, and then those that are.
struct Candidates {
    std::vector<std::uint32_t> slot;  // in the tree
    std::vector<float> near;          // squared distance as the list has it
    std::vector<float> keys;          // room for a copy of it
    LineVector<double> distance;      // exact
    std::vector<std::int32_t> id;
    std::size_t n = 0;
};

inline constexpr std::size_t kPool = 32;

// Points that queries found lately, all different: k of them that are admissible bound how far the
// k nearest of the next query can be.
struct Pool {
    LineVector<double> z;  // [dims][kPool]; infinity where there is no point
    alignas(64) std::array<std::uint32_t, kPool> place{}, print{}, slot{};
    std::size_t next = 0;  // to be replaced
};

// What an instruction set brings: see tree_search_body.hpp.
struct TreeKernels {
    void (*gather)(const BoxTree&, const BoxTree::Part&, double radius, LeafList&);
    void (*scan)(const BoxTree&, const LeafList&, const TreeQuery&, const float* point, float limit,
                 std::size_t k, Candidates&);
    void (*sort)(const BoxTree&, const Rows& z, const TreeQuery&, Candidates&);
    double (*known_bound)(const BoxTree&, const Pool&, const TreeQuery&, std::size_t k);
    void (*remember)(const BoxTree&, const Rows& z, const Candidates&, std::size_t k, Pool&);
};

TreeKernels tree_kernels(Isa isa, std::size_t dims);

// Searches for one thread.
class TreeSearch {
  public:
    TreeSearch(const BoxTree& tree, const Rows& z, std::size_t k, Isa isa);

    // The queries to come are about this part and lie in this box [dims].
    void enter(const BoxTree::Part& part, const double* low, const double* high);
    void enter(const BoxTree::Part& part, std::size_t leaf);  // in the box of a leaf of the part

    // Ids of the k nearest admissible points to out [k], by distance and then id; -1 where there
    // are no more.
    void find(const TreeQuery& query, std::int32_t* out);

  private:
    void gather(double radius);
    void look(const TreeQuery& query, double bound);
    std::size_t take(const TreeQuery& query, double bound, std::int32_t* out);

    const BoxTree& tree_;
    const Rows& z_;
    std::size_t k_;
    TreeKernels kernels_;
    const BoxTree::Part* part_ = nullptr;
    double radius_ = 0.0;   // squared: all leaves so near to the batch are in the list
    double largest_ = 0.0;  // squared: what the queries of the batch needed
    LeafList list_;
    Candidates found_;
    Pool pool_;
    std::vector<double> low_, high_;
    std::vector<float> point_;
};

}  // namespace lineup
