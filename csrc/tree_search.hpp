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

inline constexpr std::uint32_t kNoSlot = std::numeric_limits<std::uint32_t>::max();

struct TreeQuery {
    const double* point;  // [dims]
    std::uint32_t slot;   // where the point is in the leaf that was entered, or kNoSlot
    std::uint32_t low;    // points at places low .. low + span are inadmissible
    std::uint32_t span;
    std::uint32_t print;  // of the values: points of the same print may be equal-valued
    // Asked for points that are near enough: always, or only those of the same print.
    bool (*admits)(void* context, std::int32_t id);
    void* context;
    bool ask_always;
};

// Leaves near a batch of queries. Distances are measured from the middle of the batch, in the unit
// of the offsets.
struct LeafList {
    std::vector<double> low, high;    // [dims]: the box of the batch
    std::vector<double> middle;       // [dims]
    LineVector<float> boxes;          // [low, high, centre][dims][room]; NaN behind n
    std::vector<std::uint32_t> leaf;  // [room]
    std::vector<std::uint32_t> near;  // [room]: those that a query needs, positions in the list
    std::size_t n = 0, room = 0;
    double beyond = 0.0;  // squared distance of the nearest that was left out
    float size = 0.0F;    // the largest magnitude in boxes, and of the batch
    float off = 0.0F;     // by how much distances may be off
    float slack = 0.0F;   // relative to squared distances: what adding them up may cost
};

// Points that may be near, and then those that are.
struct Candidates {
    std::vector<std::uint32_t> spot;  // position in the list of leaves times kLeaf, plus in leaf
    std::vector<float> near;          // squared distance as the list has it
    std::vector<float> keys;          // room for a copy of it
    LineVector<double> distance;      // exact
    std::vector<std::int32_t> id;
    std::size_t n = 0;
    float furthest = 0.0F;  // no less than the distance of the last of the k nearest

    void make_room(std::size_t more) {
        if (n + more <= spot.size()) return;
        const std::size_t room = 2 * n + more;
        spot.resize(room);
        near.resize(room);
        keys.resize(room);
        distance.resize(room);
        id.resize(room);
    }
};

// The slot in the tree of a spot of the list.
inline std::size_t slot_of(const LeafList& list, std::uint32_t spot) {
    return list.leaf[spot / kLeaf] * kLeaf + spot % kLeaf;
}

inline constexpr std::size_t kPool = 32;

// Points that queries found lately, all different: k of them that are admissible bound how far the
// k nearest of the next query can be.
struct Pool {
    LineVector<float> seen;  // [dims][kPool], from the middle; infinity where there is no point
    alignas(64) std::array<std::uint32_t, kPool> place{}, print{}, slot{};
    std::array<std::int32_t, kPool> id{};
    std::size_t next = 0;  // to be replaced
};

// What an instruction set brings: see tree_search_body.hpp.
struct TreeKernels {
    void (*gather)(const BoxTree&, const BoxTree::Part&, double radius, LeafList&);
    void (*scan)(const BoxTree&, LeafList&, const TreeQuery&, const float* point, float limit,
                 std::size_t k, Candidates&);
    bool (*settle)(const BoxTree&, const LeafList&, const TreeQuery&, std::size_t k, float sure,
                   Candidates&);
    void (*sort)(const BoxTree&, const Rows& z, const LeafList&, const TreeQuery&, Candidates&);
    float (*known_bound)(const BoxTree&, const LeafList&, const Pool&, const TreeQuery&,
                         const float* point, std::size_t k);
    void (*remember)(const BoxTree&, const LeafList&, const Candidates&, std::size_t k, Pool&);
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
    // are no more. Returns how many candidates took exact distances.
    std::size_t find(const TreeQuery& query, std::int32_t* out);

  private:
    void gather(double radius);
    float seen(double x, std::size_t d) const;
    void see(const TreeQuery& query);
    bool look(const TreeQuery& query, double known);
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
