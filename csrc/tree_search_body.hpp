// The kernels of a search in a box tree, included by tree_search.cpp once per instruction set:
// TARGET is the attribute of functions, Lanes and Wide are its vectors of float and double, Flags
// what comparing Lanes gives, and bits() their signs. No include guard, no includes.

constexpr std::size_t kLanes = sizeof(Lanes) / sizeof(float);
constexpr std::size_t kWide = sizeof(Wide) / sizeof(double);
using Halved = float __attribute__((vector_size(sizeof(Wide) / 2)));
using Words = std::uint32_t __attribute__((vector_size(sizeof(Lanes))));

// Squared distances from a box to the kFanout boxes of a node. Rounding is monotone, so that no
// point of one is computed to be nearer to a point of the other.
TARGET inline void box_distances(const double* node, const LeafList& list, double* out) {
    const std::size_t dims = list.low.size();
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

TARGET void gather_node(const BoxTree& tree, const BoxTree::Part& part, std::size_t level,
                        std::size_t node, double radius, LeafList& list) {
    alignas(64) double distances[kFanout];
    const double* boxes = tree.boxes.data() + part.boxes[level] + node * 2 * tree.dims * kFanout;
    box_distances(boxes, list, distances);
    for (std::size_t i = 0; i < kFanout; ++i) {
        const std::size_t child = node * kFanout + i;
        if (distances[i] == kInf) continue;  // no such child
        if (distances[i] > radius) {
            list.beyond = std::min(list.beyond, distances[i]);
        } else if (level > 1) {
            gather_node(tree, part, level - 1, child, radius, list);
        } else {
            add_leaf(tree, boxes, i, part.first_leaf + child, list);
        }
    }
}

TARGET void gather(const BoxTree& tree, const BoxTree::Part& part, double radius, LeafList& list) {
    gather_node(tree, part, part.height, 0, radius, list);
}

// Which points of a leaf are within the limit and not at a place that overlaps.
template <std::size_t kDims>
TARGET inline std::uint32_t near_points(const BoxTree& tree, std::size_t leaf,
                                        const TreeQuery& query, const float* point, float limit,
                                        float* out) {
    const std::size_t dims = kDims ? kDims : tree.dims;
    const float* offsets = tree.offsets.data() + leaf * dims * kLeaf;
    const std::uint32_t* places = tree.place.data() + leaf * kLeaf;
    std::uint32_t hits = 0;
    for (std::size_t v = 0; v < kLeaf; v += kLanes) {
        Lanes sum{};
        for (std::size_t d = 0; d < dims; ++d) {
            Lanes x;
            std::memcpy(&x, offsets + d * kLeaf + v, sizeof x);
            x -= point[d];
            sum += x * x;
        }
        std::memcpy(out + v, &sum, sizeof sum);
        Words place;
        std::memcpy(&place, places + v, sizeof place);
        const auto free = static_cast<Flags>(place - query.low > query.span);
        hits |= bits(static_cast<Flags>(sum <= limit) & free) << v;
    }
    return hits;
}

// Which boxes of a block of the list are within the limit.
template <std::size_t kDims>
TARGET inline std::uint32_t near_boxes(const float* block, std::size_t all, const float* point,
                                       float limit) {
    const std::size_t dims = kDims ? kDims : all;
    std::uint32_t hits = 0;
    for (std::size_t i = 0; i < kFanout; i += kLanes) {
        Lanes sum{};
        for (std::size_t d = 0; d < dims; ++d) {
            Lanes low, high;
            std::memcpy(&low, block + d * kFanout + i, sizeof low);
            std::memcpy(&high, block + (dims + d) * kFanout + i, sizeof high);
            const Lanes below = low - point[d], above = point[d] - high;
            Lanes apart = below > above ? below : above;
            apart = apart < 0.0F ? Lanes{} : apart;  // NaN stays NaN
            sum += apart * apart;
        }
        hits |= bits(static_cast<Flags>(sum <= limit)) << i;
    }
    return hits;
}

// The k-th smallest of a few values; room for whole vectors behind them is overwritten.
TARGET inline float kth_smallest(float* values, std::size_t n, std::size_t k) {
    const std::size_t padded = (n + kLanes - 1) / kLanes * kLanes;
    for (std::size_t i = n; i < padded; ++i) values[i] = std::numeric_limits<float>::infinity();
    Lanes greatest{};
    for (std::size_t i = 0; i < padded; i += kLanes) {
        Lanes own;
        std::memcpy(&own, values + i, sizeof own);
        Flags before{};
        for (std::size_t j = 0; j < n; ++j) before -= static_cast<Flags>(own > values[j]);
        own = before < static_cast<std::int32_t>(k) ? own : Lanes{};
        greatest = own > greatest ? own : greatest;
    }
    float out = 0.0F;
    for (std::size_t i = 0; i < kLanes; ++i) out = std::max(out, greatest[i]);
    return out;
}

// Lowers the limit to what the k nearest candidates need and drops those beyond it.
TARGET inline float narrow(const BoxTree& tree, const LeafList& list, const TreeQuery& query,
                           std::size_t k, float limit, Candidates& found) {
    if (found.keys.size() < found.n + kLanes) found.keys.resize(2 * found.n + kLanes);
    const bool prints = !tree.print.empty();
    for (std::size_t i = 0; i < found.n; ++i) {
        const bool twin = prints && tree.print[found.slot[i]] == query.print;
        found.keys[i] = twin ? std::numeric_limits<float>::infinity() : found.near[i];
    }
    float* keys = found.keys.data();
    if (found.n > kMany) std::nth_element(keys, keys + k - 1, keys + found.n);
    const float kth = found.n > kMany ? keys[k - 1] : kth_smallest(keys, found.n, k);
    const float furthest = std::sqrt(kth) + 2.0F * list.off;
    limit = std::min(limit, furthest * furthest * 1.00002F);
    std::size_t n = 0;
    for (std::size_t i = 0; i < found.n; ++i) {
        found.slot[n] = found.slot[i];
        found.near[n] = found.near[i];
        n += found.near[i] <= limit ? 1U : 0U;
    }
    found.n = n;
    return limit;
}

// Slots of the points that may be within the limit of a point and do not overlap; only those that
// may be among the k nearest, if all of them are admissible but those of the same print.
template <std::size_t kDims>
TARGET void scan(const BoxTree& tree, const LeafList& list, const TreeQuery& query,
                 const float* point, float limit, std::size_t k, Candidates& found) {
    const std::size_t dims = kDims ? kDims : tree.dims;
    std::array<float, 16> few;
    std::vector<float> many(dims > few.size() ? dims : 0);
    float* local = many.empty() ? few.data() : many.data();
    alignas(64) std::array<float, kLeaf> near;
    const std::size_t least = query.ask_always ? found.slot.max_size() : std::max(kFew, 2 * k);
    std::size_t full = least;
    found.n = 0;
    for (std::size_t begin = 0; begin < list.leaf.size(); begin += kFanout) {
        const float* block = list.boxes.data() + begin * 3 * dims;
        std::uint32_t leaves = near_boxes<kDims>(block, dims, point, limit);
        for (; leaves; leaves &= leaves - 1) {
            const auto lane = static_cast<std::size_t>(std::countr_zero(leaves));
            const std::uint32_t leaf = list.leaf[begin + lane];
            const float* centre = block + 2 * dims * kFanout + lane;
            for (std::size_t d = 0; d < dims; ++d) local[d] = point[d] - centre[d * kFanout];
            std::uint32_t hits = near_points<kDims>(tree, leaf, query, local, limit, near.data());
            if (found.slot.size() < found.n + kLeaf) {
                found.slot.resize(2 * found.n + kLeaf);
                found.near.resize(2 * found.n + kLeaf);
            }
            std::size_t n = found.n;
            for (; hits; hits &= hits - 1) {
                const auto slot = static_cast<std::uint32_t>(std::countr_zero(hits));
                found.slot[n] = leaf * static_cast<std::uint32_t>(kLeaf) + slot;
                found.near[n] = near[slot];
                ++n;
            }
            found.n = n;
            if (n < full) continue;
            limit = narrow(tree, list, query, k, limit, found);
            full = std::max(least, 2 * found.n);  // where many are equally far, few are dropped
        }
    }
    if (found.n > k && !query.ask_always) narrow(tree, list, query, k, limit, found);
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
    std::array<std::uint32_t, kFew> slot;
    std::array<std::int32_t, kFew> id;
    std::array<double, kFew> distance;
    double sum = 0.0;
    for (std::size_t i = 0; i < n; ++i) {
        const auto at = static_cast<std::size_t>(rank[i]);
        sum += rank[i];
        slot[at] = found.slot[i];
        id[at] = found.id[i];
        distance[at] = found.distance[i];
    }
    if (sum < static_cast<double>(n * (n - 1) / 2)) return false;
    std::copy_n(slot.begin(), n, found.slot.begin());
    std::copy_n(id.begin(), n, found.id.begin());
    std::copy_n(distance.begin(), n, found.distance.begin());
    return true;
}

// Looks up ids and exact distances, in the order of the dimensions as the twin sums them, and sorts
// by distance and id.
TARGET void sort(const BoxTree& tree, const Rows& z, const TreeQuery& query, Candidates& found) {
    const std::size_t n = found.n, room = n + kWide;
    if (found.id.size() < room) found.id.resize(room);
    if (found.distance.size() < room) found.distance.resize(room);
    for (std::size_t i = 0; i < n; ++i) {
        const std::int32_t id = tree.id[found.slot[i]];
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

// Within which squared distance there are k admissible points for sure; infinity if too few are
// known.
TARGET double known_bound(const BoxTree& tree, const Pool& pool, const TreeQuery& query,
                          std::size_t k) {
    if (k > kPool) return kInf;
    alignas(64) std::array<float, kPool> distance;
    const double unit = tree.scale * tree.scale;
    for (std::size_t i = 0; i < kPool; i += kWide) {
        Wide sum{};
        for (std::size_t d = 0; d < tree.dims; ++d) {
            Wide x;
            std::memcpy(&x, pool.z.data() + d * kPool + i, sizeof x);
            x -= query.point[d];
            sum += x * x;
        }
        const auto scaled = __builtin_convertvector(sum * unit, Halved);
        std::memcpy(distance.data() + i, &scaled, sizeof scaled);
    }
    const int prints = tree.print.empty() ? 0 : 1;
    for (std::size_t i = 0; i < kPool; ++i) {
        const int near = pool.place[i] - query.low <= query.span ? 1 : 0;
        const int alike = pool.print[i] == query.print ? prints : 0;
        distance[i] = (near | alike) != 0 ? std::numeric_limits<float>::infinity() : distance[i];
    }
    const float bound = kth_smallest(distance.data(), kPool, k);
    return (static_cast<double>(bound) * (1.0 + 1e-6) + 1e-30) / unit;
}

// Puts the k nearest into the pool, in place of the oldest.
TARGET void remember(const BoxTree& tree, const Rows& z, const Candidates& found, std::size_t k,
                     Pool& pool) {
    for (std::size_t i = 0; i < std::min(k, kPool); ++i) {
        const std::uint32_t slot = found.slot[i];
        Flags known{};
        for (std::size_t at = 0; at < kPool; at += kLanes) {
            Words other;
            std::memcpy(&other, pool.slot.data() + at, sizeof other);
            known |= static_cast<Flags>(other == slot);
        }
        if (bits(known)) continue;
        const double* row = z.data + static_cast<std::size_t>(found.id[i]) * z.stride;
        for (std::size_t d = 0; d < tree.dims; ++d) pool.z[d * kPool + pool.next] = row[d];
        pool.place[pool.next] = tree.place[slot];
        pool.print[pool.next] = tree.print.empty() ? 0 : tree.print[slot];
        pool.slot[pool.next] = slot;
        pool.next = (pool.next + 1) % kPool;
    }
}

inline TreeKernels kernels(std::size_t dims) {
    return {gather, dims == 4 ? scan<4> : scan<0>, sort, known_bound, remember};
}
