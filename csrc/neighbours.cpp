#include "neighbours.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>

#include "row_prints.hpp"

namespace lineup {
namespace {

constexpr std::size_t kRows = 64;  // of one chunk of work
constexpr std::size_t kMark = 64;
constexpr std::uint32_t kNowhere = std::numeric_limits<std::uint32_t>::max();
constexpr std::size_t kBusy =
    1 << 10;  // candidates with exact distances between two looks at the clock

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
        member_ = member;
        values_ = {};
        if (probe_) probe_->load(member);
    }

    void load(std::span<const double> values) {
        values_ = values;
        if (probe_) probe_->load(values);
    }

    bool admits(std::int32_t id) const {
        const auto other = static_cast<std::size_t>(id);
        if (probe_) return !probe_->shares(other);  // equal rows share all they have
        const Rows& series = index_.members_.series;
        const std::span<const double> row = series.row(other);
        // Looked up only now: most members never meet one that may be their equal.
        const std::span<const double> own = values_.empty() ? series.row(member_) : values_;
        return !std::equal(own.begin(), own.end(), row.begin());
    }

    // A query whose place is still to be limited.
    TreeQuery query(const double* point, std::uint32_t print) {
        const auto ask = [](void* self, std::int32_t id) {
            return static_cast<const Asker*>(self)->admits(id);
        };
        return {point, kNoSlot, kNowhere, 0, print, ask, this, by_grams()};
    }

  private:
    const NeighbourIndex& index_;
    std::size_t member_ = 0;
    std::span<const double> values_;  // of a series from outside
    std::optional<GramProbe> probe_;
};

NeighbourIndex::NeighbourIndex(const PlacedSeries& members, const Overlap& overlap, int threads,
                               const Poll& poll, Isa isa)
    : members_(members), overlap_(overlap) {
    require_values("z", members.z);
    const Rows& series = members.series;
    const std::size_t n = series.n;
    reach_ = exempt() ? 0 : static_cast<std::uint32_t>(series.steps - overlap.max_run - 1);
    std::vector<std::uint32_t> prints(overlap.rule == OverlapRule::window || exempt() ? n : 0);
    parallel_for(n, kRows, threads, poll, [&](std::size_t begin, std::size_t end) {
        std::array<std::uint32_t, kRows> found;
        if (!row_prints(series, begin, end, found.data(), isa)) require_values("series", series);
        if (!prints.empty()) std::copy_n(found.begin(), end - begin, prints.data() + begin);
    });
    std::vector<std::uint32_t> places;
    if (overlap.rule == OverlapRule::run) {
        grams_.emplace(series, overlap.max_run, overlap.decimals, threads, poll);
        places.assign(grams_->places().begin(), grams_->places().end());
    } else {
        places = place_windows();
    }
    tree_ = build_tree(members.z, members.group, {places, prints}, threads, poll, isa);
}

std::size_t NeighbourIndex::bytes() const {
    const std::size_t order = (order_.size() + marks_.size()) * sizeof(std::uint32_t);
    return tree_.bytes() + order + (grams_ ? grams_->bytes() : 0);
}

// Places keep distances up to reach_ within a source and everything else further apart. Where no
// overlap is too long, all places differ, so that only the member itself is at its place.
std::vector<std::uint32_t> NeighbourIndex::place_windows() {
    const std::size_t n = size();
    const std::span<const std::int32_t> source = members_.source;
    const std::span<const std::int64_t> start = members_.start;
    const auto earlier = [&](std::size_t i, std::size_t j) {
        return source[i] != source[j] ? source[i] < source[j] : start[i] < start[j];
    };
    bool sorted = true;
    for (std::size_t i = 1; i < n && sorted; ++i) sorted = !earlier(i, i - 1);
    if (!sorted) {
        order_.resize(n);
        std::iota(order_.begin(), order_.end(), 0);
        std::stable_sort(order_.begin(), order_.end(), [&](std::int32_t a, std::int32_t b) {
            return earlier(static_cast<std::size_t>(a), static_cast<std::size_t>(b));
        });
    }
    std::vector<std::uint32_t> places(n);
    std::uint64_t place = 0;
    for (std::size_t at = 0; at < n; ++at) {
        if (at > 0) place += step_to(at);
        if (place >= kNowhere) {
            throw std::invalid_argument("series: expected fewer than 2^32 steps without overlaps");
        }
        places[in_order(at)] = static_cast<std::uint32_t>(place);
        if (at % kMark == 0) marks_.push_back(static_cast<std::uint32_t>(place));
    }
    return places;
}

// How far the window at a position of the order is from the one before it, as far as it matters.
std::uint32_t NeighbourIndex::step_to(std::size_t at) const {
    const std::size_t i = in_order(at), before = in_order(at - 1);
    const bool near = members_.source[i] == members_.source[before] && !exempt();
    const std::uint64_t apart = distance(members_.start[before], members_.start[i]);
    return near && apart <= reach_ ? static_cast<std::uint32_t>(apart) : reach_ + 1;
}

std::uint32_t NeighbourIndex::place_at(std::size_t at) const {
    std::size_t from = at / kMark * kMark;
    std::uint32_t place = marks_[at / kMark];
    while (from < at) place += step_to(++from);
    return place;
}

// Where a window from outside may not be answered: the places of members of its source that are
// at most reach_ from its start.
void NeighbourIndex::limit(std::int32_t source, std::int64_t start, TreeQuery& query) const {
    if (exempt()) return;
    // The first position in the order that is not before the window, or not before its end.
    const auto first = [&](bool past) {
        std::size_t begin = 0, end = size();
        while (begin < end) {
            const std::size_t middle = begin + (end - begin) / 2;
            const std::size_t i = in_order(middle);
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
    query.low = place_at(begin);
    query.span = place_at(end - 1) - query.low;
}

void NeighbourIndex::search(std::size_t k, std::span<std::int32_t> out, int threads,
                            const Poll& poll, Isa isa) const {
    const std::size_t kept = std::min(k, size());
    std::fill(out.begin(), out.end(), -1);
    for (const BoxTree::Part& part : tree_.parts) {
        const auto search_leaves = [&](std::size_t begin, std::size_t end, Pulse& pulse) {
            Asker asker(*this);
            TreeSearch tree_search(tree_, members_.z, kept, isa);
            std::size_t busy = 0;
            for (std::size_t leaf = begin; leaf < end; ++leaf) {
                pulse();
                tree_search.enter(part, leaf);
                const std::size_t first = (part.first_leaf + leaf) * kLeaf;
                for (std::size_t slot = first; slot < first + kLeaf; ++slot) {
                    if (tree_.id[slot] < 0) break;
                    const auto id = static_cast<std::size_t>(tree_.id[slot]);
                    asker.load(id);
                    const std::uint32_t print = tree_.print.empty() ? 0 : tree_.print[slot];
                    TreeQuery query = asker.query(members_.z.row(id).data(), print);
                    query.low = tree_.place[slot] - reach_;
                    query.span = 2 * reach_;
                    query.slot = static_cast<std::uint32_t>(slot);
                    busy += tree_search.find(query, out.data() + id * k);
                    if (busy < kBusy) continue;
                    pulse();
                    busy = 0;
                }
            }
        };
        parallel_for(part.leaves, 16, threads, poll, search_leaves);
    }
}

void NeighbourIndex::query(const PlacedSeries& asked, std::size_t k, std::span<std::int32_t> out,
                           int threads, const Poll& poll, Isa isa) const {
    require_values("z", asked.z);
    require_values("series", asked.series);
    const std::size_t kept = std::min(k, size());
    std::fill(out.begin(), out.end(), -1);
    const auto query_rows = [&](std::size_t begin, std::size_t end, Pulse& pulse) {
        Asker asker(*this);
        TreeSearch tree_search(tree_, members_.z, kept, isa);
        for (std::size_t i = begin; i < end; ++i, pulse()) {
            const BoxTree::Part* part = tree_.part(asked.group[i]);
            if (!part) continue;
            asker.load(asked.series.row(i));
            std::uint32_t print;
            row_prints(asked.series, i, i + 1, &print, isa);
            TreeQuery query = asker.query(asked.z.row(i).data(), print);
            if (overlap_.rule == OverlapRule::window) {
                limit(asked.source[i], asked.start[i], query);
            }
            tree_search.enter(*part, query.point, query.point);
            tree_search.find(query, out.data() + i * k);
        }
    };
    parallel_for(asked.series.n, kRows, threads, poll, query_rows);
}

// Whether two members overlap too much, as far as their places tell.
bool NeighbourIndex::too_close(std::size_t i, std::size_t j) const {
    if (i == j) return true;
    if (exempt()) return false;
    if (grams_) return grams_->places()[j] - grams_->places()[i] + reach_ <= 2 * reach_;
    if (members_.source[i] != members_.source[j]) return false;
    const std::int64_t a = members_.start[i], b = members_.start[j];
    return (a < b ? distance(a, b) : distance(b, a)) <= reach_;
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
                          !too_close(i, j) && asker.admits(pool[at]);
            }
        }
    };
    parallel_for(size(), kRows, threads, poll, judge);
}

}  // namespace lineup
