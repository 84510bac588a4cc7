#include "tree_search.hpp"

#include <algorithm>
#include <bit>

#if LINEUP_X86
#include <immintrin.h>
#endif

namespace lineup {

NearestList::NearestList(std::size_t k)
    : k_(k), distances_(k > kSorted ? 0 : std::max(k, kWide)), ids_(distances_.size()) {
    clear();
}

void NearestList::clear(double limit) {
    limit_ = bound_ = limit;
    last_ = std::numeric_limits<std::int32_t>::max();
    heap_.clear();
    std::fill(distances_.begin(), distances_.end(), std::numeric_limits<double>::max());
    std::fill(ids_.begin(), ids_.end(), last_);
}

void NearestList::insert(double distance, std::int32_t id) {
    if (k_ > kSorted) {
        if (heap_.size() == k_) {
            std::pop_heap(heap_.begin(), heap_.end());
            heap_.pop_back();
        }
        heap_.emplace_back(distance, id);
        std::push_heap(heap_.begin(), heap_.end());
        if (heap_.size() == k_) tighten(heap_.front().first, heap_.front().second);
        return;
    }
    std::size_t at = k_ - 1;
    for (; at > 0; --at) {
        const double other = distances_[at - 1];
        if (other < distance || (other == distance && ids_[at - 1] < id)) break;
        distances_[at] = other;
        ids_[at] = ids_[at - 1];
    }
    distances_[at] = distance;
    ids_[at] = id;
    settle();
}

void NearestList::copy_to(std::int32_t* out) {
    if (k_ > kSorted) {
        std::sort_heap(heap_.begin(), heap_.end());
        for (std::size_t i = 0; i < k_; ++i) out[i] = i < heap_.size() ? heap_[i].second : -1;
        return;
    }
    constexpr std::int32_t none = std::numeric_limits<std::int32_t>::max();
    for (std::size_t i = 0; i < k_; ++i) out[i] = ids_[i] == none ? -1 : ids_[i];
}

namespace {

// Squared distances in the order of the dimensions: what the twin computes, to the last bit.
[[gnu::always_inline]] inline void leaf_distances(const double* coordinates, std::size_t dims,
                                                  const double* point, double* out) {
    std::fill_n(out, kLeaf, 0.0);
    for (std::size_t d = 0; d < dims; ++d, coordinates += kLeaf) {
        for (std::size_t i = 0; i < kLeaf; ++i) {
            const double apart = coordinates[i] - point[d];
            out[i] += apart * apart;
        }
    }
}

// From the point to the boxes [low, high][dims][kFanout]. Rounding is monotone, so that no point of
// a box is computed to be nearer than its box.
[[gnu::always_inline]] inline std::uint32_t near_boxes(const double* boxes, std::size_t dims,
                                                       const double* point, double bound,
                                                       double* out) {
    std::fill_n(out, kFanout, 0.0);
    const double* high = boxes + dims * kFanout;
    for (std::size_t d = 0; d < dims; ++d, boxes += kFanout, high += kFanout) {
        for (std::size_t i = 0; i < kFanout; ++i) {
            const double below = boxes[i] - point[d];
            const double above = point[d] - high[i];
            double apart = below > above ? below : above;
            apart = apart > 0.0 ? apart : 0.0;
            out[i] += apart * apart;
        }
    }
    std::uint32_t hits = 0;
    for (std::size_t i = 0; i < kFanout; ++i) hits |= (out[i] <= bound ? 1U : 0U) << i;
    return hits;
}

[[gnu::always_inline]] inline std::size_t nearest_of(const double* distances, std::uint32_t hits) {
    auto nearest = static_cast<std::size_t>(std::countr_zero(hits));
    for (std::uint32_t rest = hits & (hits - 1); rest; rest &= rest - 1) {
        const auto other = static_cast<std::size_t>(std::countr_zero(rest));
        nearest = distances[other] < distances[nearest] ? other : nearest;
    }
    return nearest;
}

[[gnu::always_inline]] inline std::uint32_t equal_prints(const std::uint32_t* prints,
                                                         std::uint32_t print) {
    std::uint32_t equal = 0;
    for (std::size_t i = 0; i < kLeaf; ++i) equal |= (prints[i] == print ? 1U : 0U) << i;
    return equal;
}

[[gnu::always_inline]] inline void insert_each(NearestList& list, const double* distances,
                                               const std::int32_t* ids, std::uint32_t hits) {
    for (; hits; hits &= hits - 1) {
        const int slot = std::countr_zero(hits);
        if (list.accepts(distances[slot], ids[slot])) list.insert(distances[slot], ids[slot]);
    }
}

namespace plain {

#define TARGET

std::uint32_t leaf_hits(const BoxTree& tree, std::size_t leaf, const TreeQuery& query, double bound,
                        double* out) {
    leaf_distances(tree.coordinates.data() + leaf * tree.dims * kLeaf, tree.dims, query.point, out);
    const std::uint64_t* place = tree.place.data() + leaf * kLeaf;
    std::uint32_t hits = 0;
    for (std::size_t i = 0; i < kLeaf; ++i) {
        const bool hit = (out[i] <= bound) & (place[i] - query.low > query.span);
        hits |= (hit ? 1U : 0U) << i;
    }
    return hits;
}

std::uint32_t box_hits(const double* boxes, std::size_t dims, const double* point, double bound,
                       double* out) {
    return near_boxes(boxes, dims, point, bound, out);
}

std::uint32_t same_prints(const std::uint32_t* prints, std::uint32_t print) {
    return equal_prints(prints, print);
}

void insert(NearestList& list, const double* distances, const std::int32_t* ids,
            std::uint32_t hits) {
    insert_each(list, distances, ids, hits);
}

#include "tree_search_body.hpp"
#undef TARGET

}  // namespace plain

#if LINEUP_X86

namespace avx2 {

#define TARGET LINEUP_AVX2

TARGET std::uint32_t leaf_hits(const BoxTree& tree, std::size_t leaf, const TreeQuery& query,
                               double bound, double* out) {
    leaf_distances(tree.coordinates.data() + leaf * tree.dims * kLeaf, tree.dims, query.point, out);
    const std::uint64_t* place = tree.place.data() + leaf * kLeaf;
    const __m256d limit = _mm256_set1_pd(bound);
    const __m256i low = _mm256_set1_epi64x(static_cast<long long>(query.low));
    // The comparison is signed: both sides are moved by 2^63.
    const __m256i sign = _mm256_set1_epi64x(std::numeric_limits<long long>::min());
    const __m256i span =
        _mm256_xor_si256(_mm256_set1_epi64x(static_cast<long long>(query.span)), sign);
    std::uint32_t hits = 0;
    for (std::size_t i = 0; i < kLeaf; i += 4) {
        const __m256d near = _mm256_cmp_pd(_mm256_load_pd(out + i), limit, _CMP_LE_OQ);
        const __m256i at = _mm256_load_si256(reinterpret_cast<const __m256i*>(place + i));
        const __m256i from = _mm256_xor_si256(_mm256_sub_epi64(at, low), sign);
        const __m256d free = _mm256_castsi256_pd(_mm256_cmpgt_epi64(from, span));
        hits |= static_cast<std::uint32_t>(_mm256_movemask_pd(_mm256_and_pd(near, free))) << i;
    }
    return hits;
}

TARGET std::uint32_t box_hits(const double* boxes, std::size_t dims, const double* point,
                              double bound, double* out) {
    return near_boxes(boxes, dims, point, bound, out);
}

TARGET std::uint32_t same_prints(const std::uint32_t* prints, std::uint32_t print) {
    return equal_prints(prints, print);
}

void insert(NearestList& list, const double* distances, const std::int32_t* ids,
            std::uint32_t hits) {
    insert_each(list, distances, ids, hits);
}

#include "tree_search_body.hpp"
#undef TARGET

}  // namespace avx2

namespace avx512 {

#define TARGET LINEUP_AVX512

TARGET std::uint32_t leaf_hits(const BoxTree& tree, std::size_t leaf, const TreeQuery& query,
                               double bound, double* out) {
    const double* coordinates = tree.coordinates.data() + leaf * tree.dims * kLeaf;
    const std::uint64_t* place = tree.place.data() + leaf * kLeaf;
    const __m512d limit = _mm512_set1_pd(bound);
    const __m512i low = _mm512_set1_epi64(static_cast<long long>(query.low));
    const __m512i span = _mm512_set1_epi64(static_cast<long long>(query.span));
    __m512d sums[kLeaf / 8] = {};
    for (std::size_t d = 0; d < tree.dims; ++d, coordinates += kLeaf) {
        const __m512d centre = _mm512_set1_pd(query.point[d]);
        for (std::size_t v = 0; v < kLeaf / 8; ++v) {
            const __m512d apart = _mm512_sub_pd(_mm512_load_pd(coordinates + v * 8), centre);
            sums[v] = _mm512_add_pd(sums[v], _mm512_mul_pd(apart, apart));
        }
    }
    std::uint32_t hits = 0;
    for (std::size_t v = 0; v < kLeaf / 8; ++v) {
        const __m512i from = _mm512_sub_epi64(_mm512_load_si512(place + v * 8), low);
        const __mmask8 free = _mm512_cmpgt_epu64_mask(from, span);
        const __mmask8 near = _mm512_mask_cmp_pd_mask(free, sums[v], limit, _CMP_LE_OQ);
        _mm512_store_pd(out + v * 8, sums[v]);
        hits |= static_cast<std::uint32_t>(near) << (v * 8);
    }
    return hits;
}

TARGET std::uint32_t box_hits(const double* boxes, std::size_t dims, const double* point,
                              double bound, double* out) {
    const double* high = boxes + dims * kFanout;
    __m512d sums[kFanout / 8] = {};
    for (std::size_t d = 0; d < dims; ++d, boxes += kFanout, high += kFanout) {
        const __m512d centre = _mm512_set1_pd(point[d]);
        for (std::size_t v = 0; v < kFanout / 8; ++v) {
            const __m512d below = _mm512_sub_pd(_mm512_load_pd(boxes + v * 8), centre);
            const __m512d above = _mm512_sub_pd(centre, _mm512_load_pd(high + v * 8));
            // The masked form, since gcc warns about the other one's undefined lanes.
            const __m512d outside = _mm512_maskz_max_pd(0xFF, below, above);
            const __m512d apart = _mm512_maskz_max_pd(0xFF, outside, _mm512_setzero_pd());
            sums[v] = _mm512_add_pd(sums[v], _mm512_mul_pd(apart, apart));
        }
    }
    std::uint32_t hits = 0;
    for (std::size_t v = 0; v < kFanout / 8; ++v) {
        const __mmask8 near = _mm512_cmp_pd_mask(sums[v], _mm512_set1_pd(bound), _CMP_LE_OQ);
        _mm512_store_pd(out + v * 8, sums[v]);
        hits |= static_cast<std::uint32_t>(near) << (v * 8);
    }
    return hits;
}

TARGET std::uint32_t same_prints(const std::uint32_t* prints, std::uint32_t print) {
    const __m512i wanted = _mm512_set1_epi32(static_cast<int>(print));
    const std::uint32_t low = _mm512_cmpeq_epi32_mask(_mm512_load_si512(prints), wanted);
    const std::uint32_t high = _mm512_cmpeq_epi32_mask(_mm512_load_si512(prints + 16), wanted);
    return low | high << 16;
}

// Up to eight points in one register: the lanes behind a new point move on by one, without a branch
// on where it belongs; one that is too far moves none.
TARGET void insert(NearestList& list, const double* distances, const std::int32_t* ids,
                   std::uint32_t hits) {
    if (list.k() > NearestList::kWide) {
        insert_each(list, distances, ids, hits);
        return;
    }
    __m512d kept = _mm512_load_pd(list.distances());
    __m256i kept_ids = _mm256_load_si256(reinterpret_cast<const __m256i*>(list.ids()));
    for (; hits; hits &= hits - 1) {
        const int slot = std::countr_zero(hits);
        const __m512d distance = _mm512_set1_pd(distances[slot]);
        const __m256i id = _mm256_set1_epi32(ids[slot]);
        const __mmask8 level = _mm512_cmp_pd_mask(kept, distance, _CMP_EQ_OQ);
        const __mmask8 older = _mm256_mask_cmplt_epi32_mask(level, kept_ids, id);
        const __mmask8 nearer = _mm512_cmp_pd_mask(kept, distance, _CMP_LT_OQ);
        const auto stay = static_cast<__mmask8>(~((nearer | older) + 1));  // all but the new one's
        kept = _mm512_mask_expand_pd(distance, stay, kept);
        kept_ids = _mm256_mask_expand_epi32(id, stay, kept_ids);
    }
    _mm512_store_pd(list.distances(), kept);
    _mm256_store_si256(reinterpret_cast<__m256i*>(list.ids()), kept_ids);
    list.settle();
}

#include "tree_search_body.hpp"
#undef TARGET

}  // namespace avx512

#endif

}  // namespace

TreeSearch tree_search(Isa isa) {
#if LINEUP_X86
    if (isa == Isa::avx512) return avx512::search;
    if (isa == Isa::avx2) return avx2::search;
#endif
    static_cast<void>(isa);
    return plain::search;
}

}  // namespace lineup
