#include "tree_search.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "lanes.hpp"

#if LINEUP_X86
#include <immintrin.h>
#endif

namespace lineup {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr std::size_t kFew = 24;   // candidates that are sorted by counting
constexpr std::size_t kMany = 96;  // candidates whose k-th is found by counting

// Puts a leaf into the list: its box and its centre as seen from the middle of the batch.
void add_leaf(const BoxTree& tree, const double* node, std::size_t child, std::size_t leaf,
              LeafList& list) {
    const std::size_t dims = tree.dims, lane = list.leaf.size() % kFanout;
    const std::size_t block = list.leaf.size() / kFanout * 3 * dims * kFanout;
    if (lane == 0 && list.boxes.size() < block + 3 * dims * kFanout) {
        list.boxes.resize(block + 3 * dims * kFanout);
    }
    float* to = list.boxes.data() + block + lane;
    if (lane == 0) {
        std::fill_n(to, 3 * dims * kFanout, std::numeric_limits<float>::quiet_NaN());
    }
    list.leaf.push_back(static_cast<std::uint32_t>(leaf));
    for (std::size_t d = 0; d < dims; ++d, to += kFanout) {
        const double low = node[d * kFanout + child], high = node[(dims + d) * kFanout + child];
        const auto seen = [&](double x) {
            return static_cast<float>((x - list.middle[d]) * tree.scale);
        };
        to[0] = seen(low);
        to[dims * kFanout] = seen(high);
        to[2 * dims * kFanout] = seen(leaf_centre(low, high));
        list.size = std::max({list.size, std::abs(to[0]), std::abs(to[dims * kFanout])});
    }
}

void sort_many(Candidates& found) {
    struct One {
        double distance;
        std::int32_t id;
        std::uint32_t slot;
    };
    std::vector<One> all(found.n);
    for (std::size_t i = 0; i < found.n; ++i) {
        all[i] = {found.distance[i], found.id[i], found.slot[i]};
    }
    std::sort(all.begin(), all.end(), [](const One& a, const One& b) {
        return a.distance != b.distance ? a.distance < b.distance : a.id < b.id;
    });
    for (std::size_t i = 0; i < found.n; ++i) {
        found.distance[i] = all[i].distance;
        found.id[i] = all[i].id;
        found.slot[i] = all[i].slot;
    }
}

namespace plain {
#define TARGET
using Lanes = float __attribute__((vector_size(16)));
using Wide = Lanes2;
using Flags = std::int32_t __attribute__((vector_size(16)));

inline std::uint32_t bits(const Flags& flags) {
#if LINEUP_X86
    return static_cast<std::uint32_t>(_mm_movemask_ps(reinterpret_cast<const __m128&>(flags)));
#else
    std::uint32_t out = 0;
    for (std::size_t i = 0; i < 4; ++i) out |= (flags[i] ? 1U : 0U) << i;
    return out;
#endif
}

#include "tree_search_body.hpp"
#undef TARGET
}  // namespace plain

#if LINEUP_X86

namespace avx2 {
#define TARGET LINEUP_AVX2
using Lanes = float __attribute__((vector_size(32)));
using Wide = Lanes4;
using Flags = std::int32_t __attribute__((vector_size(32)));

TARGET inline std::uint32_t bits(const Flags& flags) {
    return static_cast<std::uint32_t>(_mm256_movemask_ps(reinterpret_cast<const __m256&>(flags)));
}

#include "tree_search_body.hpp"
#undef TARGET
}  // namespace avx2

namespace avx512 {
#define TARGET LINEUP_AVX512
using Lanes = float __attribute__((vector_size(64)));
using Wide = Lanes8;
using Flags = std::int32_t __attribute__((vector_size(64)));

TARGET inline std::uint32_t bits(const Flags& flags) {
    return _mm512_movepi32_mask(reinterpret_cast<const __m512i&>(flags));
}

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
    pool_.z.assign(tree.dims * kPool, kInf);
    pool_.slot.fill(std::numeric_limits<std::uint32_t>::max());
}

void TreeSearch::enter(const BoxTree::Part& part, const double* low, const double* high) {
    std::copy_n(low, tree_.dims, list_.low.begin());
    std::copy_n(high, tree_.dims, list_.high.begin());
    for (std::size_t d = 0; d < tree_.dims; ++d) list_.middle[d] = leaf_centre(low[d], high[d]);
    const double before = part_ == &part ? largest_ : 0.0;
    if (part_ != &part) {
        std::fill(pool_.z.begin(), pool_.z.end(), kInf);
        pool_.slot.fill(std::numeric_limits<std::uint32_t>::max());
    }
    part_ = &part;
    largest_ = 0.0;
    gather(before > 0.0 ? before : part.radius);
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
    list_.leaf.clear();
    list_.beyond = kInf;
    list_.size = 0.0F;
    for (std::size_t d = 0; d < tree_.dims; ++d) {
        const auto half = static_cast<float>((list_.high[d] - list_.middle[d]) * tree_.scale);
        list_.size = std::max(list_.size, half);
    }
    kernels_.gather(tree_, *part_, radius, list_);
    radius_ = list_.beyond == kInf ? kInf : radius;  // infinity: all leaves are in the list
    // float32 is off by less than an eighth of this in every dimension: rounding of the query, of
    // the centre of a leaf, of a point within it and of their sum, all below list_.size.
    const double off = std::ldexp(static_cast<double>(list_.size), -20) *
                       std::sqrt(static_cast<double>(tree_.dims));
    list_.off = static_cast<float>(off);
}

// All points within the bound, by distance and id, and maybe some that are further.
void TreeSearch::look(const TreeQuery& query, double bound) {
    // Squares of tiny differences underflow: then even the order is left to float64.
    const double reach = std::sqrt(std::max(bound, 1e-280)) * tree_.scale + double{list_.off};
    const double limit = reach * reach * (1.0 + 1e-5);
    for (std::size_t d = 0; d < tree_.dims; ++d) {
        point_[d] = static_cast<float>((query.point[d] - list_.middle[d]) * tree_.scale);
    }
    kernels_.scan(tree_, list_, query, point_.data(), static_cast<float>(limit), k_, found_);
    kernels_.sort(tree_, z_, query, found_);
}

// Ids of the k nearest admissible candidates within the bound, beyond which some may be missing.
std::size_t TreeSearch::take(const TreeQuery& query, double bound, std::int32_t* out) {
    std::size_t taken = 0;
    for (std::size_t i = 0; i < found_.n && taken < k_; ++i) {
        if (found_.distance[i] > bound) break;
        const bool ask = query.ask_always ||
                         (!tree_.print.empty() && tree_.print[found_.slot[i]] == query.print);
        if (ask && !query.admits(query.context, found_.id[i])) continue;
        out[taken++] = found_.id[i];
        largest_ = std::max(largest_, found_.distance[i]);
    }
    return taken;
}

void TreeSearch::find(const TreeQuery& query, std::int32_t* out) {
    const double known = query.ask_always ? kInf : kernels_.known_bound(tree_, pool_, query, k_);
    for (;;) {
        const double bound = std::min(known, radius_);
        look(query, bound);
        const std::size_t taken = take(query, bound, out);
        if (taken == k_) {
            if (!query.ask_always) kernels_.remember(tree_, z_, found_, k_, pool_);
            return;
        }
        if (radius_ == kInf) {
            std::fill(out + taken, out + k_, -1);
            largest_ = kInf;
            return;
        }
        gather(std::max(list_.beyond, std::min(4.0 * radius_, known)));
    }
}

}  // namespace lineup
