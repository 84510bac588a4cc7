// The kernels of a search in a box tree, included by tree_search.cpp once per instruction set:
// TARGET is the attribute of functions, and float_lanes.hpp has what the sets call by the same
// names. No include guard, no includes.

constexpr std::size_t kWide = sizeof(Wide) / sizeof(double);
using Halved = float __attribute__((vector_size(sizeof(Wide) / 2)));

// The chosen ones of n values, in their order; room for all n is overwritten.
template <std::size_t n, class Value>
TARGET inline void pack(const Value* values, std::uint32_t chosen, Value* to) {
    using Vector = std::conditional_t<std::is_same_v<Value, float>, Lanes, Words>;
    for (std::size_t i = 0; i < n; i += kLanes) {
        Vector own;
        std::memcpy(&own, values + i, sizeof own);
        const std::uint32_t part = chosen >> i & kAll;
        pack_lanes(own, part, to);
        to += std::popcount(part);
    }
}

// Squared distances from a box to the kFanout boxes of a node. Rounding is monotone, so that no
// point of one is computed to be nearer to a point of the other.
template <std::size_t kDims>
TARGET inline void box_distances(const double* node, const LeafList& list, double* out) {
    const std::size_t dims = kDims ? kDims : list.low.size();
    for (std::size_t i = 0; i < kFanout; i += kWide) {
        Wide sum{};
        for (std::size_t d = 0; d < dims; ++d) {
            Wide low, high;
            std::memcpy(&low, node + d * kFanout + i, sizeof low);
            std::memcpy(&high, node + (dims + d) * kFanout + i, sizeof high);
            const Wide below = low - list.high[d], above = list.low[d] - high;
            Wide apart = below > above ? below : above;
            apart = apart > Wide{} ? apart : Wide{};
            sum += apart * apart;
        }
        std::memcpy(out + i, &sum, sizeof sum);
    }
}

// Puts leaves of a node into the list: their boxes and centres as seen from the middle of the
// batch.
template <std::size_t kDims>
TARGET inline void add_leaves(const BoxTree& tree, const double* node, std::size_t first,
                              std::uint32_t chosen, LeafList& list) {
    const std::size_t dims = kDims ? kDims : tree.dims;
    alignas(64) std::array<float, kFanout> seen;
    for (std::size_t row = 0; row < 3 * dims; ++row) {
        const std::size_t d = row % dims, part = row / dims;
        for (std::size_t i = 0; i < kFanout; i += kWide) {
            Wide low, high;
            std::memcpy(&low, node + d * kFanout + i, sizeof low);
            std::memcpy(&high, node + (dims + d) * kFanout + i, sizeof high);
            const Wide x = part == 0 ? low : part == 1 ? high : low + (high - low) * 0.5;
            const auto scaled = __builtin_convertvector((x - list.middle[d]) * tree.scale, Halved);
            std::memcpy(seen.data() + i, &scaled, sizeof scaled);
        }
        pack<kFanout>(seen.data(), chosen, list.boxes.data() + row * list.room + list.n);
    }
    alignas(64) std::array<std::uint32_t, kFanout> leaf;
    for (std::size_t i = 0; i < kFanout; ++i) leaf[i] = static_cast<std::uint32_t>(first + i);
    pack<kFanout>(leaf.data(), chosen, list.leaf.data() + list.n);
    list.n += static_cast<std::size_t>(std::popcount(chosen));
}

template <std::size_t kDims>
TARGET void gather_node(const BoxTree& tree, const BoxTree::Part& part, std::size_t level,
                        std::size_t node, double radius, LeafList& list) {
    alignas(64) std::array<double, kFanout> distances;
    const double* boxes = tree.boxes.data() + part.boxes[level] + node * 2 * tree.dims * kFanout;
    box_distances<kDims>(boxes, list, distances.data());
    std::uint32_t near = 0;
    Wide beyond = Wide{} + list.beyond;
    for (std::size_t i = 0; i < kFanout; i += kWide) {  // infinity: no such child
        Wide own;
        std::memcpy(&own, distances.data() + i, sizeof own);
        const auto within = own <= radius;
        near |= wide_bits(within & (own < kInf)) << i;
        const Wide out = within ? Wide{} + kInf : own;
        beyond = out < beyond ? out : beyond;
    }
    for (std::size_t i = 0; i < kWide; ++i) list.beyond = std::min(list.beyond, beyond[i]);
    if (!near) return;
    if (level == 1) {
        if (list.n + kFanout > list.room) widen(tree.dims, list);
        add_leaves<kDims>(tree, boxes, part.first_leaf + node * kFanout, near, list);
        return;
    }
    for (; near; near &= near - 1) {
        const std::size_t child = node * kFanout + static_cast<std::size_t>(std::countr_zero(near));
        gather_node<kDims>(tree, part, level - 1, child, radius, list);
    }
}

template <std::size_t kDims>
TARGET void gather(const BoxTree& tree, const BoxTree::Part& part, double radius, LeafList& list) {
    gather_node<kDims>(tree, part, part.height, 0, radius, list);
    if (list.n + kFanout > list.room) widen(tree.dims, list);
    for (std::size_t row = 0; row < 3 * tree.dims; ++row) {
        std::fill_n(list.boxes.data() + row * list.room + list.n, kFanout,
                    std::numeric_limits<float>::quiet_NaN());
    }
    Lanes size = Lanes{} + list.size;
    for (std::size_t row = 0; row < 2 * tree.dims; ++row) {
        for (std::size_t i = 0; i < list.n; i += kLanes) {
            Lanes x;
            std::memcpy(&x, list.boxes.data() + row * list.room + i, sizeof x);
            x = x < 0.0F ? -x : x;
            size = x > size ? x : size;
        }
    }
    for (std::size_t i = 0; i < kLanes; ++i) list.size = std::max(list.size, size[i]);
}

// Positions in the list of the leaves whose boxes are within the limit; returns how many.
template <std::size_t kDims>
TARGET inline std::size_t near_leaves(LeafList& list, const float* point, float limit) {
    const std::size_t dims = kDims ? kDims : list.low.size();
    std::size_t n = 0;
    for (std::size_t i = 0; i < list.n; i += kLanes) {
        const float* from = list.boxes.data() + i;
        Lanes sum{};
        for (std::size_t d = 0; d < dims; ++d) {
            Lanes low, high;
            std::memcpy(&low, from + d * list.room, sizeof low);
            std::memcpy(&high, from + (dims + d) * list.room, sizeof high);
            const Lanes below = low - point[d], above = point[d] - high;
            Lanes apart = below > above ? below : above;
            apart = apart < 0.0F ? Lanes{} : apart;  // NaN stays NaN
            sum += apart * apart;
        }
        const std::uint32_t hits = within(sum, limit);
        pack_lanes(kCount + static_cast<std::uint32_t>(i), hits, list.near.data() + n);
        n += static_cast<std::size_t>(std::popcount(hits));
    }
    return n;
}

// Adds the points of a leaf within the limit that are not at a place that overlaps.
template <std::size_t kDims>
TARGET inline void near_points(const BoxTree& tree, const LeafList& list, std::uint32_t at,
                               const TreeQuery& query, const float* local, float limit,
                               Candidates& found) {
    const std::size_t dims = kDims ? kDims : tree.dims;
    const std::size_t leaf = list.leaf[at];
    const float* offsets = tree.offsets.data() + leaf * dims * kLeaf;
    const std::uint32_t* places = tree.place.data() + leaf * kLeaf;
    const std::uint32_t first = at * static_cast<std::uint32_t>(kLeaf);
    for (std::size_t v = 0; v < kLeaf; v += kLanes) {
        Lanes sum{};
        for (std::size_t d = 0; d < dims; ++d) {
            Lanes x;
            std::memcpy(&x, offsets + d * kLeaf + v, sizeof x);
            x -= local[d];
            sum += x * x;
        }
        Words place;
        std::memcpy(&place, places + v, sizeof place);
        const std::uint32_t hits = within(sum, limit) & beyond(place - query.low, query.span);
        pack_lanes(kCount + (first + static_cast<std::uint32_t>(v)), hits,
                   found.spot.data() + found.n);
        pack_lanes(sum, hits, found.near.data() + found.n);
        found.n += static_cast<std::size_t>(std::popcount(hits));
    }
}

// Lowers the limit to what the k nearest candidates need and drops those beyond it.
TARGET inline float narrow(const BoxTree& tree, const LeafList& list, const TreeQuery& query,
                           std::size_t k, float limit, Candidates& found) {
    const bool prints = !tree.print.empty();
    for (std::size_t i = 0; i < found.n; ++i) {
        const bool twin = prints && tree.print[slot_of(list, found.spot[i])] == query.print;
        found.keys[i] = twin ? std::numeric_limits<float>::infinity() : found.near[i];
    }
    float* keys = found.keys.data();
    if (found.n > kMany) std::nth_element(keys, keys + k - 1, keys + found.n);
    const float kth = found.n > kMany ? keys[k - 1] : kth_smallest(keys, found.n, k);
    const float furthest = std::sqrt(kth) + 2.0F * list.off;
    limit = std::min(limit, furthest * furthest * (1.0F + list.slack));
    std::size_t n = 0;
    for (std::size_t i = 0; i < found.n; ++i) {
        found.spot[n] = found.spot[i];
        found.near[n] = found.near[i];
        n += found.near[i] <= limit ? 1U : 0U;
    }
    found.n = n;
    return limit;
}

// Points that may be within the limit of a point and do not overlap; where there are many, only
// those that may be among the k nearest, if all of them are admissible but those of the same print.
template <std::size_t kDims>
TARGET void scan(const BoxTree& tree, LeafList& list, const TreeQuery& query, const float* point,
                 float limit, std::size_t k, Candidates& found) {
    const std::size_t dims = kDims ? kDims : tree.dims;
    std::array<float, 16> few;
    std::vector<float> many(dims > few.size() ? dims : 0);
    float* local = many.empty() ? few.data() : many.data();
    const std::size_t least = query.ask_always ? found.spot.max_size() : std::max(kFew, 2 * k);
    std::size_t full = least;
    found.n = 0;
    const std::size_t leaves = near_leaves<kDims>(list, point, limit);
    for (std::size_t i = 0; i < leaves; ++i) {
        const std::uint32_t at = list.near[i];
        const float* centre = list.boxes.data() + 2 * dims * list.room + at;
        for (std::size_t d = 0; d < dims; ++d) local[d] = point[d] - centre[d * list.room];
        found.make_room(kLeaf + kLanes);
        near_points<kDims>(tree, list, at, query, local, limit, found);
        if (found.n < full) continue;
        limit = narrow(tree, list, query, k, limit, found);
        full = std::max(least, 2 * found.n);  // where many are equally far, few are dropped
    }
}

// The k nearest in order, if float32 can tell them and their order for sure; `sure` is how far away
// all points are known. Fills found.spot, found.id and found.furthest.
TARGET bool settle(const BoxTree& tree, const LeafList& list, const TreeQuery& query, std::size_t k,
                   float sure, Candidates& found) {
    const std::size_t n = found.n;
    if (n < k || n >= kFew || query.ask_always) return false;
    float* near = found.near.data();
    std::fill_n(near + n, kLanes, std::numeric_limits<float>::infinity());
    alignas(64) std::array<std::uint32_t, kFew + 16> rank;
    for (std::size_t i = 0; i < n; i += kLanes) {
        Lanes own;
        std::memcpy(&own, near + i, sizeof own);
        Words before{};
        for (std::size_t j = 0; j < n; ++j) before = own > near[j] ? before + 1U : before;
        std::memcpy(rank.data() + i, &before, sizeof before);
    }
    alignas(64) std::array<float, kFew + 1> sorted{};  // stays 0 behind two that are equally far
    std::array<std::uint32_t, kFew> spot;
    for (std::size_t i = 0; i < n; ++i) {
        sorted[rank[i]] = near[i];
        spot[rank[i]] = found.spot[i];
    }
    if (n == k) sorted[k] = std::numeric_limits<float>::infinity();
    const float furthest = std::sqrt(sorted[k - 1]) + list.off;
    const float apart = furthest * furthest - sorted[k - 1] + sorted[k - 1] * list.slack + 1e-30F;
    bool certain = furthest <= sure;
    for (std::size_t i = 0; i < k; ++i) certain &= sorted[i + 1] - sorted[i] > apart;
    if (!certain) return false;
    const bool prints = !tree.print.empty();
    for (std::size_t i = 0; i < k; ++i) {
        const std::size_t slot = slot_of(list, spot[i]);
        if (prints && tree.print[slot] == query.print) return false;
        found.id[i] = tree.id[slot];
    }
    std::copy_n(spot.begin(), k, found.spot.begin());
    found.furthest = furthest;
    return true;
}

// Sorts candidates by counting, for each, those before it. False if two are equally far.
TARGET inline bool sort_few(Candidates& found) {
    alignas(64) std::array<double, kFew> rank{};
    const std::size_t n = found.n, padded = (n + kWide - 1) / kWide * kWide;
    for (std::size_t i = n; i < padded; ++i) found.distance[i] = kInf;
    for (std::size_t i = 0; i < padded; i += kWide) {
        Wide own, before{};
        std::memcpy(&own, found.distance.data() + i, sizeof own);
        for (std::size_t j = 0; j < n; ++j) {
            before += own > found.distance[j] ? Wide{} + 1.0 : Wide{};
        }
        std::memcpy(rank.data() + i, &before, sizeof before);
    }
    std::array<std::uint32_t, kFew> spot;
    std::array<std::int32_t, kFew> id;
    std::array<double, kFew> distance;
    double sum = 0.0;
    for (std::size_t i = 0; i < n; ++i) {
        const auto at = static_cast<std::size_t>(rank[i]);
        sum += rank[i];
        spot[at] = found.spot[i];
        id[at] = found.id[i];
        distance[at] = found.distance[i];
    }
    if (sum < static_cast<double>(n * (n - 1) / 2)) return false;
    std::copy_n(spot.begin(), n, found.spot.begin());
    std::copy_n(id.begin(), n, found.id.begin());
    std::copy_n(distance.begin(), n, found.distance.begin());
    return true;
}

// Looks up ids and exact distances, in the order of the dimensions as the twin sums them, and sorts
// by distance and id.
TARGET void sort(const BoxTree& tree, const Rows& z, const LeafList& list, const TreeQuery& query,
                 Candidates& found) {
    const std::size_t n = found.n;
    for (std::size_t i = 0; i < n; ++i) {
        const std::int32_t id = tree.id[slot_of(list, found.spot[i])];
        const double* other = z.data + static_cast<std::size_t>(id) * z.stride;
        double sum = 0.0;
        for (std::size_t d = 0; d < tree.dims; ++d) {
            sum += (other[d] - query.point[d]) * (other[d] - query.point[d]);
        }
        found.id[i] = id;
        found.distance[i] = sum;
    }
    if (n > kFew || !sort_few(found)) sort_many(found);
}

// Within which distance there are k admissible points for sure, in the unit of the offsets;
// infinity if too few are known.
template <std::size_t kDims>
TARGET float known_bound(const BoxTree& tree, const LeafList& list, const Pool& pool,
                         const TreeQuery& query, const float* point, std::size_t k) {
    if (k > kPool) return std::numeric_limits<float>::infinity();
    const std::size_t dims = kDims ? kDims : tree.dims;
    alignas(64) std::array<float, kPool> distance;
    const Flags prints = Flags{} - (tree.print.empty() ? 0 : 1);
    for (std::size_t i = 0; i < kPool; i += kLanes) {
        Lanes sum{};
        for (std::size_t d = 0; d < dims; ++d) {
            Lanes x;
            std::memcpy(&x, pool.seen.data() + d * kPool + i, sizeof x);
            x -= point[d];
            sum += x * x;
        }
        Words place, print;
        std::memcpy(&place, pool.place.data() + i, sizeof place);
        std::memcpy(&print, pool.print.data() + i, sizeof print);
        const auto barred = static_cast<Flags>(place - query.low <= query.span) |
                            (static_cast<Flags>(print == query.print) & prints);
        sum = barred ? Lanes{} + std::numeric_limits<float>::infinity() : sum;
        std::memcpy(distance.data() + i, &sum, sizeof sum);
    }
    return (std::sqrt(kth_smallest(distance.data(), kPool, k)) + list.off + 1e-15F) *
           (1.0F + list.slack);
}

// Puts the k nearest into the pool, in place of the oldest.
TARGET void remember(const BoxTree& tree, const LeafList& list, const Candidates& found,
                     std::size_t k, Pool& pool) {
    const std::size_t dims = tree.dims, n = std::min(k, kPool);
    std::uint32_t fresh = 0;
    for (std::size_t i = 0; i < n; ++i) {
        const auto slot = static_cast<std::uint32_t>(slot_of(list, found.spot[i]));
        Flags known{};
        for (std::size_t at = 0; at < kPool; at += kLanes) {
            Words other;
            std::memcpy(&other, pool.slot.data() + at, sizeof other);
            known |= static_cast<Flags>(other == slot);
        }
        fresh |= (bits(known) ? 0U : 1U) << i;
    }
    for (; fresh; fresh &= fresh - 1) {
        const auto i = static_cast<std::size_t>(std::countr_zero(fresh));
        const std::size_t slot = slot_of(list, found.spot[i]);
        const float* offsets = tree.offsets.data() + slot / kLeaf * dims * kLeaf + slot % kLeaf;
        const float* centre = list.boxes.data() + 2 * dims * list.room + found.spot[i] / kLeaf;
        for (std::size_t d = 0; d < dims; ++d) {
            pool.seen[d * kPool + pool.next] = offsets[d * kLeaf] + centre[d * list.room];
        }
        pool.place[pool.next] = tree.place[slot];
        pool.print[pool.next] = tree.print.empty() ? 0 : tree.print[slot];
        pool.slot[pool.next] = static_cast<std::uint32_t>(slot);
        pool.id[pool.next] = found.id[i];
        pool.next = (pool.next + 1) % kPool;
    }
}

template <std::size_t kDims>
TreeKernels kernels_for() {
    return {gather<kDims>, scan<kDims>, settle, sort, known_bound<kDims>, remember};
}

inline TreeKernels kernels(std::size_t dims) {
    return dims == 4 ? kernels_for<4>() : kernels_for<0>();
}
