#include "tree_search.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <type_traits>
#include <utility>

#include "float_lanes.hpp"

namespace lineup {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr std::size_t kFew = 32;   // candidates that are sorted by counting
constexpr std::size_t kMany = 96;  // candidates whose k-th is found by counting

// Room for more leaves in a list.
void widen(std::size_t dims, LeafList& list) {
    const std::size_t room = std::max<std::size_t>(8 * kFanout, 2 * list.room);
    LineVector<float> boxes(3 * dims * room);
    for (std::size_t row = 0; row < 3 * dims; ++row) {
        std::copy_n(list.boxes.data() + row * list.room, list.n, boxes.data() + row * room);
    }
    list.boxes = std::move(boxes);
    list.leaf.resize(room);
    list.near.resize(room);
    list.room = room;
}

void sort_many(Candidates& found) {
    struct One {
        double distance;
        std::int32_t id;
        std::uint32_t spot;
    };
    std::vector<One> all(found.n);
    for (std::size_t i = 0; i < found.n; ++i) {
        all[i] = {found.distance[i], found.id[i], found.spot[i]};
    }
    std::sort(all.begin(), all.end(), [](const One& a, const One& b) {
        return a.distance != b.distance ? a.distance < b.distance : a.id < b.id;
    });
    for (std::size_t i = 0; i < found.n; ++i) {
        found.distance[i] = all[i].distance;
        found.id[i] = all[i].id;
        found.spot[i] = all[i].spot;
    }
}

namespace plain {
using namespace plain_lanes;
#define TARGET
#include "ranks_body.hpp"
#include "tree_search_body.hpp"
#undef TARGET
}  // namespace plain

#if LINEUP_X86

namespace avx2 {
using namespace avx2_lanes;
#define TARGET LINEUP_AVX2
#include "ranks_body.hpp"
#include "tree_search_body.hpp"
#undef TARGET
}  // namespace avx2

namespace avx512 {
using namespace avx512_lanes;
#define TARGET LINEUP_AVX512
#include "ranks_body.hpp"
#include "tree_search_body.hpp"
#undef TARGET
}  // namespace avx512

#endif

}  // namespace

TreeKernels tree_kernels(Isa isa, std::size_t dims) {
#if LINEUP_X86
    if (isa == Isa::avx512) return avx512::kernels(dims);
    if (isa == Isa::avx2) return avx2::kernels(dims);
#endif
    static_cast<void>(isa);
    return plain::kernels(dims);
}

TreeSearch::TreeSearch(const BoxTree& tree, const Rows& z, std::size_t k, Isa isa)
    : tree_(tree),
      z_(z),
      k_(k),
      kernels_(tree_kernels(isa, tree.dims)),
      low_(tree.dims),
      high_(tree.dims),
      point_(tree.dims) {
    list_.low.resize(tree.dims);
    list_.high.resize(tree.dims);
    list_.middle.resize(tree.dims);
    list_.slack = 4e-6F + 4e-7F * static_cast<float>(tree.dims);
    pool_.seen.resize(tree.dims * kPool);
}

void TreeSearch::enter(const BoxTree::Part& part, const double* low, const double* high) {
    const std::size_t dims = tree_.dims;
    std::copy_n(low, dims, list_.low.begin());
    std::copy_n(high, dims, list_.high.begin());
    for (std::size_t d = 0; d < dims; ++d) list_.middle[d] = leaf_centre(low[d], high[d]);
    const double before = part_ == &part ? largest_ : 0.0;
    if (part_ != &part) pool_.slot.fill(kNoSlot);
    for (std::size_t i = 0; i < kPool; ++i) {
        const double* point = z_.data + static_cast<std::size_t>(pool_.id[i]) * z_.stride;
        for (std::size_t d = 0; d < dims; ++d) {
            const double x = pool_.slot[i] == kNoSlot ? kInf : point[d];
            pool_.seen[d * kPool + i] = seen(x, d);
        }
    }
    part_ = &part;
    largest_ = 0.0;
    gather(before > 0.0 ? before : part.radius);
}

float TreeSearch::seen(double x, std::size_t d) const {
    return static_cast<float>((x - list_.middle[d]) * tree_.scale);
}

void TreeSearch::enter(const BoxTree::Part& part, std::size_t leaf) {
    const double* node = tree_.boxes.data() + part.boxes[1] +
                         leaf / kFanout * 2 * tree_.dims * kFanout + leaf % kFanout;
    for (std::size_t d = 0; d < tree_.dims; ++d) {
        low_[d] = node[d * kFanout];
        high_[d] = node[(tree_.dims + d) * kFanout];
    }
    enter(part, low_.data(), high_.data());
}

void TreeSearch::gather(double radius) {
    list_.n = 0;
    list_.beyond = kInf;
    list_.size = 0.0F;
    for (std::size_t d = 0; d < tree_.dims; ++d) {
        list_.size = std::max(list_.size, seen(list_.high[d], d));
    }
    kernels_.gather(tree_, *part_, radius, list_);
    radius_ = list_.beyond == kInf ? kInf : radius;  // infinity: all leaves are in the list
    // float32 is off by less than half of this in all: rounding of the query, of the centre of a
    // leaf, of a point within it and of their sum, all below list_.size.
    const double off = std::ldexp(static_cast<double>(list_.size), -20) *
                       std::sqrt(static_cast<double>(tree_.dims));
    list_.off = static_cast<float>(off);
}

// The point of a query from the middle of the batch: where the leaf that was entered has it.
void TreeSearch::see(const TreeQuery& query) {
    const std::size_t dims = tree_.dims;
    if (query.slot == kNoSlot) {
        for (std::size_t d = 0; d < dims; ++d) point_[d] = seen(query.point[d], d);
        return;
    }
    const float* offsets =
        tree_.offsets.data() + query.slot / kLeaf * dims * kLeaf + query.slot % kLeaf;
    for (std::size_t d = 0; d < dims; ++d) point_[d] = offsets[d * kLeaf];
}

// Gathers all points within the known bound or else the radius, and maybe some that are further.
// Whether the k nearest are settled; otherwise all are in order of their exact distances.
bool TreeSearch::look(const TreeQuery& query, double known) {
    // Squares of tiny differences underflow: then even the order is left to float64.
    const double radius = std::sqrt(std::max(radius_, 1e-280)) * tree_.scale;
    const double reach = std::min(known, radius) + double{list_.off};
    const auto limit = static_cast<float>(reach * reach * (1.0 + double{list_.slack}));
    kernels_.scan(tree_, list_, query, point_.data(), limit, k_, found_);
    const auto sure = static_cast<float>(known <= radius ? kInf : radius * (1.0 - 1e-6));
    if (kernels_.settle(tree_, list_, query, k_, sure, found_)) return true;
    kernels_.sort(tree_, z_, list_, query, found_);
    return false;
}

// Ids of the k nearest admissible candidates within the bound, beyond which some may be missing.
std::size_t TreeSearch::take(const TreeQuery& query, double bound, std::int32_t* out) {
    std::size_t taken = 0;
    for (std::size_t i = 0; i < found_.n && taken < k_; ++i) {
        if (found_.distance[i] > bound) break;
        const bool ask =
            query.ask_always ||
            (!tree_.print.empty() && tree_.print[slot_of(list_, found_.spot[i])] == query.print);
        if (ask && !query.admits(query.context, found_.id[i])) continue;
        out[taken++] = found_.id[i];
        largest_ = std::max(largest_, found_.distance[i]);
    }
    return taken;
}

std::size_t TreeSearch::find(const TreeQuery& query, std::int32_t* out) {
    see(query);
    double known = kInf;
    if (!query.ask_always) {
        known = kernels_.known_bound(tree_, list_, pool_, query, point_.data(), k_);
    }
    const double known_square = known / tree_.scale * (known / tree_.scale);
    for (std::size_t exact = 0;; exact += found_.n) {
        if (look(query, known)) {
            std::copy_n(found_.id.begin(), k_, out);
            const double furthest = double{found_.furthest} / tree_.scale;
            largest_ = std::max(largest_, furthest * furthest);
            kernels_.remember(tree_, list_, found_, k_, pool_);
            return exact;
        }
        const std::size_t taken = take(query, std::min(known_square, radius_), out);
        if (taken == k_) {
            if (!query.ask_always) kernels_.remember(tree_, list_, found_, k_, pool_);
            return exact + found_.n;
        }
        if (radius_ == kInf) {
            std::fill(out + taken, out + k_, -1);
            largest_ = kInf;
            return exact + found_.n;
        }
        gather(std::max(list_.beyond, std::min(4.0 * radius_, known_square)));
    }
}

}  // namespace lineup
