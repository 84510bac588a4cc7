#include "neighbours.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>

#include "row_prints.hpp"
#include "tree_search.hpp"

namespace lineup {
namespace {

constexpr std::size_t kRows = 64;  // of one chunk of work
constexpr std::uint64_t kNowhere = std::numeric_limits<std::uint64_t>::max();

std::uint64_t distance(std::int64_t from, std::int64_t to) {
    // In unsigned arithmetic, since the difference of two int64 may not fit one.
    return static_cast<std::uint64_t>(to) - static_cast<std::uint64_t>(from);
}

}  // namespace

// Answers what the tree cannot: equal values, shared runs. One per thread.
class NeighbourIndex::Asker {
  public:
    explicit Asker(const NeighbourIndex& index) : index_(index) {
        if (by_grams()) probe_.emplace(*index.grams_);
    }

    bool by_grams() const { return index_.grams_ && index_.grams_->count(); }

    void load(std::size_t member) {
        values_ = index_.members_.series.row(member);
        if (probe_) probe_->load(member);
    }

    void load(std::span<const double> values) {
        values_ = values;
        if (probe_) probe_->load(values);
    }

    bool admits(std::int32_t id) const {
        const auto other = static_cast<std::size_t>(id);
        if (probe_) return !probe_->shares(other);  // equal rows share all they have
        const std::span<const double> row = index_.members_.series.row(other);
        return !std::equal(values_.begin(), values_.end(), row.begin());
    }

    // A query whose place is still to be limited.
    TreeQuery query(const double* point, std::uint32_t print) {
        const auto ask = [](void* self, std::int32_t id) {
            return static_cast<const Asker*>(self)->admits(id);
        };
        return {point, kNowhere, 0, print, ask, this, by_grams()};
    }

    // How far the k nearest of a query are at most, if the k points `known` are all admissible: the
    // furthest of them. They must differ from each other, as those of one answer do.
    double limit(const TreeQuery& query, std::span<const std::int32_t> known) const {
        constexpr double unknown = std::numeric_limits<double>::max();
        if (known.empty() || known.size() > kKnown || known.back() < 0) return unknown;
        double furthest = 0.0;
        for (const std::int32_t id : known) {
            const auto i = static_cast<std::size_t>(id);
            if (index_.places_[i] - query.low <= query.span) return unknown;
            const bool ask =
                query.ask_always || (!index_.prints_.empty() && index_.prints_[i] == query.print);
            if (ask && !admits(id)) return unknown;
            const std::span<const double> other = index_.members_.z.row(i);
            double sum = 0.0;
            for (std::size_t d = 0; d < other.size(); ++d) {
                const double apart = other[d] - query.point[d];
                sum += apart * apart;
            }
            furthest = std::max(furthest, sum);
        }
        return furthest;
    }

  private:
    static constexpr std::size_t kKnown = 64;  // more cost more than they save

    const NeighbourIndex& index_;
    std::span<const double> values_;
    std::optional<GramProbe> probe_;
};

NeighbourIndex::NeighbourIndex(const PlacedSeries& members, const Overlap& overlap, int threads,
                               const Poll& poll, Isa isa)
    : members_(members), overlap_(overlap) {
    require_values("z", members.z);
    const Rows& series = members.series;
    const std::size_t n = series.n;
    const bool prints = overlap.rule == OverlapRule::window || exempt();
    reach_ = exempt() ? 0 : series.steps - overlap.max_run - 1;
    if (prints) prints_.resize(n);
    parallel_for(n, kRows, threads, poll, [&](std::size_t begin, std::size_t end) {
        std::array<std::uint32_t, kRows> found;
        if (!row_prints(series, begin, end, found.data(), isa)) require_values("series", series);
        if (prints) std::copy_n(found.begin(), end - begin, prints_.data() + begin);
    });
    if (overlap.rule == OverlapRule::run) {
        grams_.emplace(series, overlap.max_run, overlap.decimals, threads, poll);
        places_.assign(grams_->places().begin(), grams_->places().end());
    } else {
        place_windows();
    }
    tree_ = build_tree(members.z, members.group, {places_, prints_}, threads, poll);
}

// Places keep distances up to reach_ within a source and everything else further apart. Where no
// overlap is too long, all places differ, so that only the member itself is at its place.
void NeighbourIndex::place_windows() {
    const std::size_t n = size();
    const std::span<const std::int32_t> source = members_.source;
    const std::span<const std::int64_t> start = members_.start;
    std::vector<std::int32_t> order(n);
    std::iota(order.begin(), order.end(), 0);
    const auto earlier = [&](std::int32_t a, std::int32_t b) {
        const auto i = static_cast<std::size_t>(a), j = static_cast<std::size_t>(b);
        return source[i] != source[j] ? source[i] < source[j] : start[i] < start[j];
    };
    places_.resize(n);
    if (!std::is_sorted(order.begin(), order.end(), earlier)) {
        std::stable_sort(order.begin(), order.end(), earlier);
        order_ = order;
    }
    std::uint64_t place = 0;
    for (std::size_t at = 0; at < n; ++at) {
        const auto i = static_cast<std::size_t>(order[at]);
        if (at > 0) {
            const auto before = static_cast<std::size_t>(order[at - 1]);
            const bool near = source[i] == source[before] && !exempt();
            const std::uint64_t apart = distance(start[before], start[i]);
            place += near ? std::min(apart, reach_ + 1) : reach_ + 1;
        }
        places_[i] = place;
    }
}

// Where a window from outside may not be answered: the places of members of its source that are
// at most reach_ from its start.
void NeighbourIndex::limit(std::int32_t source, std::int64_t start, std::uint64_t& low,
                           std::uint64_t& span) const {
    if (exempt()) return;
    const auto member = [&](std::size_t at) {
        return order_.empty() ? at : static_cast<std::size_t>(order_[at]);
    };
    // The first position in the order that is not before the window, or not before its end.
    const auto first = [&](bool past) {
        std::size_t begin = 0, end = size();
        while (begin < end) {
            const std::size_t middle = begin + (end - begin) / 2;
            const std::size_t i = member(middle);
            const std::int64_t at = members_.start[i];
            bool before = members_.source[i] < source;
            if (members_.source[i] == source) {
                before = past ? at <= start || distance(start, at) <= reach_
                              : at < start && distance(at, start) > reach_;
            }
            if (before) {
                begin = middle + 1;
            } else {
                end = middle;
            }
        }
        return begin;
    };
    const std::size_t begin = first(false), end = first(true);
    if (begin == end) return;
    low = places_[member(begin)];
    span = places_[member(end - 1)] - low;
}

void NeighbourIndex::search(std::size_t k, std::span<std::int32_t> out, int threads,
                            const Poll& poll, Isa isa) const {
    const TreeSearch search_tree = tree_search(isa);
    const std::size_t kept = std::min(k, size());
    std::fill(out.begin(), out.end(), -1);
    for (const BoxTree::Part& part : tree_.parts) {
        const auto search_leaves = [&](std::size_t begin, std::size_t end, Pulse& pulse) {
            Asker asker(*this);
            NearestList list(kept);
            std::vector<double> point(tree_.dims);
            std::span<const std::int32_t> last;  // what the query before found
            for (std::size_t slot = (part.first_leaf + begin) * kLeaf;
                 slot < (part.first_leaf + end) * kLeaf && tree_.id[slot] >= 0; ++slot) {
                const double* leaf =
                    tree_.coordinates.data() + slot / kLeaf * kLeaf * tree_.dims + slot % kLeaf;
                for (std::size_t d = 0; d < tree_.dims; ++d) point[d] = leaf[d * kLeaf];
                const auto id = static_cast<std::size_t>(tree_.id[slot]);
                asker.load(id);
                TreeQuery query = asker.query(point.data(), prints_.empty() ? 0 : prints_[id]);
                query.low = tree_.place[slot] - reach_;
                query.span = 2 * reach_;
                list.clear(asker.limit(query, last));
                search_tree(tree_, part, query, list);
                list.copy_to(out.data() + id * k);
                last = out.subspan(id * k, kept);
                pulse();
            }
        };
        parallel_for(part.leaves, 8, threads, poll, search_leaves);
    }
}

void NeighbourIndex::query(const PlacedSeries& asked, std::size_t k, std::span<std::int32_t> out,
                           int threads, const Poll& poll, Isa isa) const {
    require_values("z", asked.z);
    require_values("series", asked.series);
    const TreeSearch search_tree = tree_search(isa);
    const std::size_t kept = std::min(k, size());
    std::fill(out.begin(), out.end(), -1);
    const auto query_rows = [&](std::size_t begin, std::size_t end, Pulse& pulse) {
        Asker asker(*this);
        NearestList list(kept);
        for (std::size_t i = begin; i < end; ++i, pulse()) {
            const BoxTree::Part* part = tree_.part(asked.group[i]);
            if (!part) continue;
            const std::span<const double> values = asked.series.row(i);
            asker.load(values);
            std::uint32_t print;
            row_prints(asked.series, i, i + 1, &print, isa);
            TreeQuery query = asker.query(asked.z.row(i).data(), print);
            if (overlap_.rule == OverlapRule::window) {
                limit(asked.source[i], asked.start[i], query.low, query.span);
            }
            list.clear();
            search_tree(tree_, *part, query, list);
            list.copy_to(out.data() + i * k);
        }
    };
    parallel_for(asked.series.n, kRows, threads, poll, query_rows);
}

void NeighbourIndex::admissible(std::span<const std::int32_t> pool, std::size_t k,
                                std::span<bool> out, int threads, const Poll& poll) const {
    const auto n = static_cast<std::int32_t>(size());
    const auto alien = [=](std::int32_t j) { return j < -1 || j >= n; };
    if (const auto bad = std::find_if(pool.begin(), pool.end(), alien); bad != pool.end()) {
        throw std::invalid_argument("pool: expected -1 to " + std::to_string(n - 1) + ", got " +
                                    std::to_string(*bad));
    }
    const auto judge = [&](std::size_t begin, std::size_t end, Pulse& pulse) {
        Asker asker(*this);
        for (std::size_t i = begin; i < end; ++i, pulse()) {
            asker.load(i);
            for (std::size_t at = i * k; at < (i + 1) * k; ++at) {
                const auto j = static_cast<std::size_t>(std::max(pool[at], 0));
                out[at] = pool[at] >= 0 && members_.group[i] == members_.group[j] &&
                          places_[j] - (places_[i] - reach_) > 2 * reach_ && asker.admits(pool[at]);
            }
        }
    };
    parallel_for(size(), kRows, threads, poll, judge);
}

}  // namespace lineup
