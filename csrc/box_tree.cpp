#include "box_tree.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "tree_split.hpp"

namespace lineup {
namespace {

constexpr std::size_t kLocal = 1 << 14;  // points that one thread orders in cache

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

class Builder {
  public:
    Builder(PointColumns& columns, const PointTags& tags, Isa isa, BoxTree& tree)
        : columns_(columns), tags_(tags), isa_(isa), tree_(tree) {}

    // Members of the parts one after the other, each in rising order of their indices.
    void build(std::vector<Segment> segments, int threads, const Poll& poll) {
        for (const Segment& segment : segments) measure(columns_, segment.begin, segment.end);
        // Halve what is large, all segments of a round at once, then finish the rest in cache.
        std::vector<Segment> small;
        while (!segments.empty()) {
            std::vector<Segment> large;
            for (const Segment& segment : segments) {
                (segment.end - segment.begin > kLocal ? large : small).push_back(segment);
            }
            parallel_for(large.size(), 1, threads, poll, [&](std::size_t begin, std::size_t) {
                const Segment& whole = large[begin];
                SplitRoom room;
                split(columns_, whole.begin, whole.end, left_part(whole.end - whole.begin), room,
                      isa_);
            });
            segments.clear();
            for (const Segment& whole : large) {
                const std::size_t left = left_part(whole.end - whole.begin);
                segments.push_back({whole.begin, whole.begin + left, whole.first_leaf, whole.part});
                segments.push_back(
                    {whole.begin + left, whole.end, whole.first_leaf + left / kLeaf, whole.part});
            }
        }
        parallel_for(small.size(), 4, threads, poll, [&](std::size_t begin, std::size_t end) {
            SplitRoom room;
            for (std::size_t s = begin; s < end; ++s) finish(small[s], room);
        });
        for (BoxTree::Part& part : tree_.parts) join_boxes(part);
    }

  private:
    // Orders a segment down to its leaves and writes them.
    void finish(const Segment& segment, SplitRoom& room) {
        order(segment.begin, segment.end, room);
        std::size_t leaf = segment.first_leaf;
        for (std::size_t at = segment.begin; at < segment.end; at += kLeaf, ++leaf) {
            const std::size_t n = std::min(kLeaf, segment.end - at);
            write_leaf(*segment.part, leaf, std::span(columns_.id).subspan(at, n));
        }
    }

    void order(std::size_t begin, std::size_t end, SplitRoom& room) {
        while (end - begin > kLeaf) {
            const std::size_t left = left_part(end - begin);
            split(columns_, begin, end, left, room, isa_);
            order(begin, begin + left, room);
            begin += left;
        }
    }

    void write_leaf(const BoxTree::Part& part, std::size_t leaf,
                    std::span<const std::uint32_t> held) {
        const Rows& points = columns_.points;
        const std::size_t dims = points.steps, at = leaf - part.first_leaf;
        double* node =
            tree_.boxes.data() + part.boxes[1] + at / kFanout * 2 * dims * kFanout + at % kFanout;
        for (std::size_t d = 0; d < dims; ++d) {
            std::array<double, kLeaf> values;
            for (std::size_t i = 0; i < held.size(); ++i) {
                values[i] = points.data[held[i] * points.stride + d];
            }
            double low = values[0], high = low;
            for (std::size_t i = 1; i < held.size(); ++i) {
                low = std::min(low, values[i]);
                high = std::max(high, values[i]);
            }
            node[d * kFanout] = low;
            node[(dims + d) * kFanout] = high;
            const double centre = leaf_centre(low, high);
            float* out = tree_.offsets.data() + (leaf * dims + d) * kLeaf;
            for (std::size_t i = 0; i < held.size(); ++i) {
                out[i] = static_cast<float>((values[i] - centre) * tree_.scale);
            }
        }
        std::size_t slot = leaf * kLeaf;
        for (const std::uint32_t id : held) {
            tree_.id[slot] = static_cast<std::int32_t>(id);
            tree_.place[slot] = tags_.place[id];
            if (!tags_.print.empty()) tree_.print[slot] = tags_.print[id];
            ++slot;
        }
    }

    // The boxes of all levels above the leaves'.
    void join_boxes(BoxTree::Part& part) {
        const std::size_t dims = tree_.dims, half = dims * kFanout;
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

    PointColumns& columns_;
    const PointTags& tags_;
    Isa isa_;
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
                   int threads, const Poll& poll, Isa isa) {
    PointColumns columns{points, points.n, std::vector<std::uint32_t>(points.n), {}};
    std::vector<std::uint32_t>& ids = columns.id;
    std::iota(ids.begin(), ids.end(), 0U);
    columns.x.resize(points.n * points.steps);
    const auto by_group = [&](std::uint32_t a, std::uint32_t b) { return group[a] < group[b]; };
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
        while (end < ids.size() && group[ids[end]] == group[ids[begin]]) ++end;
        tree.parts.push_back({group[ids[begin]], leaves, leaves_of(end - begin), 0, {}, 0.0});
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
    Builder(columns, tags, isa, tree).build(std::move(segments), threads, poll);
    return tree;
}

}  // namespace lineup
