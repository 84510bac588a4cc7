#include "neighbours.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "overlap.hpp"

namespace lineup {
namespace {

using Key = std::pair<double, std::size_t>;  // squared distance, member: nearest first, then index

// The rows of one group in index order, their points column by column.
struct Group {
    std::vector<std::size_t> members;
    std::vector<double> columns;  // [D, members]
};

std::vector<Group> split(const NeighbourQuery& query) {
    std::vector<std::size_t> order(query.series.n);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](auto a, auto b) { return query.group[a] < query.group[b]; });
    std::vector<Group> groups;
    for (std::size_t at = 0; at < order.size(); ++at) {
        if (at == 0 || query.group[order[at]] != query.group[order[at - 1]]) groups.emplace_back();
        groups.back().members.push_back(order[at]);
    }
    for (Group& group : groups) {
        group.columns.reserve(query.z.steps * group.members.size());
        for (std::size_t d = 0; d < query.z.steps; ++d) {
            for (const std::size_t i : group.members) {
                group.columns.push_back(query.z.row(i)[d]);
            }
        }
    }
    return groups;
}

void distances(const Group& group, std::size_t member, std::size_t dims, std::vector<double>& out) {
    const std::size_t n = group.members.size();
    std::fill(out.begin(), out.end(), 0.0);
    for (std::size_t d = 0; d < dims; ++d) {
        const double* column = group.columns.data() + d * n;
        const double centre = column[member];
        for (std::size_t j = 0; j < n; ++j) {
            out[j] += (column[j] - centre) * (column[j] - centre);
        }
    }
}

// The `size` smallest keys above `above`, sorted; fewer where there are no more.
void nearest_after(const std::vector<double>& distance, const Key& above, std::size_t size,
                   std::vector<Key>& heap) {
    heap.clear();
    for (std::size_t j = 0; j < distance.size(); ++j) {
        // Members come in rising order, so a tie with the worst one kept never replaces it.
        if (heap.size() == size && !(distance[j] < heap.front().first)) continue;
        const Key key{distance[j], j};
        if (!(above < key)) continue;
        if (heap.size() == size) {
            std::pop_heap(heap.begin(), heap.end());
            heap.pop_back();
        }
        heap.push_back(key);
        std::push_heap(heap.begin(), heap.end());
    }
    std::sort_heap(heap.begin(), heap.end());
}

class Admission {
  public:
    Admission(const NeighbourQuery& query, int threads, const Poll& poll) : query_(query) {
        if (query.rule == OverlapRule::run) {
            grams_.emplace(query.series, query.max_run, query.decimals, threads, poll);
        }
    }

    bool admits(std::size_t i, std::size_t j) const {
        if (i == j || overlaps(i, j)) return false;
        const std::span<const double> left = query_.series.row(i);
        return !std::equal(left.begin(), left.end(), query_.series.row(j).begin());
    }

  private:
    bool overlaps(std::size_t i, std::size_t j) const {
        if (grams_) return grams_->share(i, j);
        if (query_.source[i] != query_.source[j]) return false;
        // In unsigned arithmetic, since the difference of two int64 may not fit one.
        const auto a = static_cast<std::uint64_t>(std::max(query_.start[i], query_.start[j]));
        const auto b = static_cast<std::uint64_t>(std::min(query_.start[i], query_.start[j]));
        const std::uint64_t apart = a - b;
        return apart < query_.series.steps && query_.series.steps - apart > query_.max_run;
    }

    const NeighbourQuery& query_;
    std::optional<GramIndex> grams_;
};

// Room for one thread's work, reused from query to query.
struct Scratch {
    std::vector<double> distance;
    std::vector<Key> batch;
};

void neighbours_of(const NeighbourQuery& query, const Group& group, const Admission& admission,
                   std::size_t member, Scratch& scratch, std::int32_t* out) {
    scratch.distance.resize(group.members.size());
    distances(group, member, query.z.steps, scratch.distance);
    const std::size_t self = group.members[member];
    Key above{-1.0, 0};
    std::size_t found = 0;
    // Usually the first batch holds enough admissible ones; with windows at stride 1 the nearest
    // hundreds may overlap, hence the growth.
    for (std::size_t size = 4 * query.k; found < query.k; size *= 4) {
        nearest_after(scratch.distance, above, size, scratch.batch);
        for (const Key& key : scratch.batch) {
            const std::size_t candidate = group.members[key.second];
            if (!admission.admits(self, candidate)) continue;
            out[found++] = static_cast<std::int32_t>(candidate);
            if (found == query.k) break;
        }
        if (scratch.batch.size() < size) break;
        above = scratch.batch.back();
    }
    std::fill(out + found, out + query.k, -1);
}

}  // namespace

void neighbours(const NeighbourQuery& query, std::span<std::int32_t> out, int threads,
                const Poll& poll) {
    require_values("z", query.z);
    require_values("series", query.series);
    const Admission admission(query, threads, poll);
    for (const Group& group : split(query)) {
        parallel_for(group.members.size(), 8, threads, poll,
                     [&](std::size_t begin, std::size_t end) {
                         Scratch scratch;
                         for (std::size_t member = begin; member < end; ++member) {
                             neighbours_of(query, group, admission, member, scratch,
                                           out.data() + group.members[member] * query.k);
                         }
                     });
    }
}

}  // namespace lineup
