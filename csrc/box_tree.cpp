#include "box_tree.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace lineup {
namespace {

constexpr std::size_t kLocal =
    1 << 14;  // points that are ordered in cache, in columns of their own

using Ids = std::span<std::int32_t>;

// A run of points that become the leaves from first_leaf on.
struct Segment {
    std::size_t begin, end;  // in the order of the points
    std::size_t first_leaf;
    const BoxTree::Part* part;
};

std::size_t leaves_of(std::size_t points) {
    return (points + kLeaf - 1) / kLeaf;
}

// How many of n points go to the left, so that every node but the last of a level is full: half of
// the children of the smallest node that holds them all.
std::size_t left_part(std::size_t n) {
    std::size_t child = 1;  // leaves of a child
    while (child * kFanout < leaves_of(n)) child *= kFanout;
    const std::size_t children = (leaves_of(n) + child - 1) / child;
    return (children + 1) / 2 * child * kLeaf;
}

// The value of that rank. A sample tells where it must lie; one pass keeps what is near.
double value_of_rank(const std::vector<double>& keys, std::size_t rank, std::vector<double>& near) {
    const std::size_t n = keys.size();
    std::array<double, 512> drawn;
    const std::span<double> sample(drawn.data(), n < 16 * drawn.size() ? 128 : drawn.size());
    near.resize(n);
    std::size_t below = 0, kept = 0;
    if (n >= 4 * sample.size()) {
        // Three standard deviations of the rank among the sample to each side.
        const std::size_t margin = sample.size() == drawn.size() ? 34 : 17;
        for (std::size_t s = 0; s < sample.size(); ++s) sample[s] = keys[s * (n / sample.size())];
        std::sort(sample.begin(), sample.end());
        const std::size_t at = rank * sample.size() / n;
        const double low = sample[at > margin ? at - margin : 0];
        const double high = sample[std::min(at + margin, sample.size() - 1)];
        for (const double key : keys) {
            below += key < low ? 1 : 0;
            near[kept] = key;
            kept += key >= low && key <= high ? 1 : 0;
        }
    }
    if (below > rank || rank - below >= kept) {  // not among those kept, or there was no sample
        std::copy(keys.begin(), keys.end(), near.begin());
        below = 0;
        kept = n;
    }
    const auto nth = near.begin() + static_cast<std::ptrdiff_t>(rank - below);
    std::nth_element(near.begin(), nth, near.begin() + static_cast<std::ptrdiff_t>(kept));
    return *nth;
}

// Orders points by halving them along their widest side. Room for one thread.
class Splitter {
  public:
    // Moves the `left` smallest along the widest side to the front, keeping their order otherwise.
    // `at(id, d)` is coordinate d of a point.
    template <class At>
    void split(Ids ids, std::size_t left, std::size_t dims, const At& at) {
        const std::size_t side = widest(ids, dims, at);
        keys_.resize(ids.size());
        for (std::size_t i = 0; i < ids.size(); ++i) keys_[i] = at(ids[i], side);
        const double cut = value_of_rank(keys_, left, near_);
        std::size_t equal = left;  // of those at the cut, so many go to the left
        for (const double key : keys_) equal -= key < cut ? 1 : 0;
        right_.resize(ids.size());
        std::size_t to_left = 0, to_right = 0;
        for (std::size_t i = 0; i < ids.size(); ++i) {
            const bool tie = keys_[i] == cut && equal > 0;
            const bool goes_left = keys_[i] < cut || tie;
            equal -= tie ? 1 : 0;
            const std::int32_t id = ids[i];
            ids[to_left] = id;  // never ahead of i
            right_[to_right] = id;
            to_left += goes_left ? 1 : 0;
            to_right += goes_left ? 0 : 1;
        }
        std::copy_n(right_.begin(), to_right, ids.begin() + static_cast<std::ptrdiff_t>(to_left));
    }

    // Orders all points down to the leaves.
    template <class At>
    void order(Ids ids, std::size_t dims, const At& at) {
        while (ids.size() > kLeaf) {
            const std::size_t left = left_part(ids.size());
            split(ids, left, dims, at);
            order(ids.first(left), dims, at);
            ids = ids.subspan(left);
        }
    }

  private:
    // By a sample where there are many: only the shape of the boxes hangs on it.
    template <class At>
    static std::size_t widest(Ids ids, std::size_t dims, const At& at) {
        const std::size_t step = ids.size() / 256 + 1;
        std::size_t best = 0;
        double width = -1.0;
        for (std::size_t d = 0; d < dims; ++d) {
            double low = at(ids[0], d), high = low;
            for (std::size_t i = step; i < ids.size(); i += step) {
                const double value = at(ids[i], d);
                low = std::min(low, value);
                high = std::max(high, value);
            }
            if (high - low > width) {
                width = high - low;
                best = d;
            }
        }
        return best;
    }

    std::vector<double> keys_, near_;
    std::vector<std::int32_t> right_;
};

class Builder {
  public:
    Builder(const Rows& points, const PointTags& tags, BoxTree& tree)
        : points_(points), tags_(tags), tree_(tree) {}

    // Members of the parts one after the other, each in rising order of their indices.
    void build(std::vector<std::int32_t>& ids, std::vector<Segment> segments, int threads,
               const Poll& poll) {
        // Halve what is large, all segments of a round at once, then finish the rest in cache.
        std::vector<Segment> small;
        while (!segments.empty()) {
            std::vector<Segment> large;
            for (const Segment& segment : segments) {
                (segment.end - segment.begin > kLocal ? large : small).push_back(segment);
            }
            parallel_for(large.size(), 1, threads, poll,
                         [&](std::size_t begin, std::size_t) { halve(Ids(ids), large[begin]); });
            segments.clear();
            for (const Segment& whole : large) {
                const std::size_t left = left_part(whole.end - whole.begin);
                segments.push_back({whole.begin, whole.begin + left, whole.first_leaf, whole.part});
                segments.push_back(
                    {whole.begin + left, whole.end, whole.first_leaf + left / kLeaf, whole.part});
            }
        }
        parallel_for(small.size(), 1, threads, poll,
                     [&](std::size_t begin, std::size_t) { finish(Ids(ids), small[begin]); });
        for (BoxTree::Part& part : tree_.parts) join_boxes(part);
    }

  private:
    void halve(Ids ids, const Segment& segment) {
        const Ids members = ids.subspan(segment.begin, segment.end - segment.begin);
        Splitter splitter;
        splitter.split(members, left_part(members.size()), points_.steps,
                       [this](std::int32_t id, std::size_t d) {
                           return points_.data[static_cast<std::size_t>(id) * points_.stride + d];
                       });
    }

    // Orders a segment on copies of its coordinates and writes its leaves.
    void finish(Ids ids, const Segment& segment) {
        const std::size_t n = segment.end - segment.begin;
        const std::size_t dims = points_.steps;
        const Ids members = ids.subspan(segment.begin, n);
        std::vector<double> columns(dims * n);
        for (std::size_t i = 0; i < n; ++i) {
            const std::span<const double> row = points_.row(static_cast<std::size_t>(members[i]));
            for (std::size_t d = 0; d < dims; ++d) columns[d * n + i] = row[d];
        }
        std::vector<std::int32_t> local(n);
        std::iota(local.begin(), local.end(), 0);
        Splitter splitter;
        splitter.order(local, dims, [&](std::int32_t id, std::size_t d) {
            return columns[d * n + static_cast<std::size_t>(id)];
        });
        for (std::size_t i = 0; i < n; ++i) {
            const std::int32_t member = members[static_cast<std::size_t>(local[i])];
            const auto id = static_cast<std::size_t>(member);
            const std::size_t slot = segment.first_leaf * kLeaf + i;
            tree_.id[slot] = member;
            tree_.place[slot] = tags_.place[id];
            if (!tags_.print.empty()) tree_.print[slot] = tags_.print[id];
        }
        for (std::size_t i = 0; i < n; i += kLeaf) {
            const auto held = std::span(local).subspan(i, std::min(kLeaf, n - i));
            for (std::size_t d = 0; d < dims; ++d) {
                write_leaf(segment, segment.first_leaf + i / kLeaf, d, columns.data() + d * n,
                           held);
            }
        }
    }

    // One dimension of the points of a leaf and of its box.
    void write_leaf(const Segment& segment, std::size_t leaf, std::size_t d, const double* column,
                    std::span<const std::int32_t> held) {
        const auto value = [&](std::int32_t i) { return column[static_cast<std::size_t>(i)]; };
        double low = value(held[0]), high = low;
        for (const std::int32_t i : held) {
            low = std::min(low, value(i));
            high = std::max(high, value(i));
        }
        const std::size_t dims = points_.steps;
        const std::size_t at = leaf - segment.part->first_leaf;
        double* node = tree_.boxes.data() + segment.part->boxes[1] +
                       at / kFanout * 2 * dims * kFanout + at % kFanout;
        node[d * kFanout] = low;
        node[(dims + d) * kFanout] = high;
        const double centre = leaf_centre(low, high);
        float* out = tree_.offsets.data() + (leaf * dims + d) * kLeaf;
        for (const std::int32_t i : held) {
            *out++ = static_cast<float>((value(i) - centre) * tree_.scale);
        }
    }

    // The boxes of all levels above the leaves'.
    void join_boxes(BoxTree::Part& part) {
        const std::size_t dims = points_.steps, half = dims * kFanout;
        std::size_t below = part.leaves;
        for (std::size_t level = 2; level <= part.height; ++level) {
            below = (below + kFanout - 1) / kFanout;
            for (std::size_t child = 0; child < below; ++child) {
                const double* from = tree_.boxes.data() + part.boxes[level - 1] + child * 2 * half;
                double* to = tree_.boxes.data() + part.boxes[level] + child / kFanout * 2 * half +
                             child % kFanout;
                for (std::size_t d = 0; d < dims; ++d, from += kFanout) {
                    to[d * kFanout] = *std::min_element(from, from + kFanout);
                    to[half + d * kFanout] = *std::max_element(from + half, from + half + kFanout);
                }
            }
        }
        double sum = 0.0;
        for (std::size_t leaf = 0; leaf < part.leaves; ++leaf) {
            const double* box =
                tree_.boxes.data() + part.boxes[1] + leaf / kFanout * 2 * half + leaf % kFanout;
            for (std::size_t d = 0; d < dims; ++d) {
                const double side = box[half + d * kFanout] - box[d * kFanout];
                sum += side * side / 4.0;
            }
        }
        part.radius = sum / static_cast<double>(part.leaves);
    }

    const Rows& points_;
    const PointTags& tags_;
    BoxTree& tree_;
};

// Room for the boxes of a part; those without a child are far from everything.
void add_boxes(BoxTree& tree, BoxTree::Part& part) {
    const double inf = std::numeric_limits<double>::infinity();
    const std::size_t half = tree.dims * kFanout;
    std::size_t below = part.leaves;
    do {
        ++part.height;
        below = (below + kFanout - 1) / kFanout;
        part.boxes[part.height] = tree.boxes.size();
        for (std::size_t node = 0; node < below; ++node) {
            tree.boxes.insert(tree.boxes.end(), half, inf);
            tree.boxes.insert(tree.boxes.end(), half, -inf);
        }
    } while (below > 1);
}

// A power of two that maps the furthest coordinate to about 2^50: squares stay far from the ends
// of float32.
double scale_of(const Rows& points) {
    double furthest = 0.0;
    for (std::size_t i = 0; i < points.n; ++i) {
        for (const double x : points.row(i)) furthest = std::max(furthest, std::abs(x));
    }
    return furthest > 0.0 ? std::ldexp(1.0, std::min(50 - std::ilogb(furthest), 400)) : 1.0;
}

}  // namespace

const BoxTree::Part* BoxTree::part(std::int32_t group) const {
    const auto found =
        std::lower_bound(parts.begin(), parts.end(), group,
                         [](const Part& part, std::int32_t wanted) { return part.group < wanted; });
    return found != parts.end() && found->group == group ? &*found : nullptr;
}

std::size_t BoxTree::bytes() const {
    return offsets.size() * sizeof(float) + boxes.size() * sizeof(double) +
           (place.size() + print.size() + id.size()) * sizeof(std::uint32_t);
}

BoxTree build_tree(const Rows& points, std::span<const std::int32_t> group, const PointTags& tags,
                   int threads, const Poll& poll) {
    std::vector<std::int32_t> ids(points.n);
    std::iota(ids.begin(), ids.end(), 0);
    const auto group_of = [&](std::int32_t id) { return group[static_cast<std::size_t>(id)]; };
    const auto by_group = [&](std::int32_t a, std::int32_t b) { return group_of(a) < group_of(b); };
    if (!std::is_sorted(ids.begin(), ids.end(), by_group)) {
        std::stable_sort(ids.begin(), ids.end(), by_group);
    }
    BoxTree tree;
    tree.dims = points.steps;
    tree.scale = scale_of(points);
    std::vector<Segment> segments;
    std::size_t leaves = 0;
    for (std::size_t begin = 0; begin < ids.size();) {
        std::size_t end = begin + 1;
        while (end < ids.size() && group_of(ids[end]) == group_of(ids[begin])) ++end;
        tree.parts.push_back({group_of(ids[begin]), leaves, leaves_of(end - begin), 0, {}, 0.0});
        segments.push_back({begin, end, leaves, nullptr});
        leaves += tree.parts.back().leaves;
        begin = end;
    }
    for (std::size_t p = 0; p < segments.size(); ++p) {
        segments[p].part = &tree.parts[p];
        add_boxes(tree, tree.parts[p]);
    }
    tree.offsets.assign(leaves * kLeaf * tree.dims, std::numeric_limits<float>::quiet_NaN());
    tree.place.resize(leaves * kLeaf);
    tree.id.assign(leaves * kLeaf, -1);
    if (!tags.print.empty()) tree.print.resize(leaves * kLeaf);
    Builder(points, tags, tree).build(ids, std::move(segments), threads, poll);
    return tree;
}

}  // namespace lineup
