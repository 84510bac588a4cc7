// Neighbours against all pairs, under every instruction set, of members and of series from outside.
#include <algorithm>
#include <utility>

#include "input.hpp"
#include "neighbours.hpp"
#include "row_prints.hpp"

namespace {

using lineup::Isa;
using lineup::OverlapRule;
using Pools = std::vector<std::int32_t>;

// Series at places that coincide often, in value, in distance and in where they come from.
struct Placed {
    std::vector<double> z, values;
    std::vector<std::int32_t> group, source;
    std::vector<std::int64_t> start;
    lineup::PlacedSeries view;

    Placed(Input& in, std::size_t n, std::size_t dims, std::size_t steps, std::uint64_t kinds) {
        constexpr double kScales[] = {1.0, 0.3, 1e-9, 2e148};
        Noise noise(in.bits(2));
        const double scale = kScales[in.number(0, 3)];
        const std::uint64_t levels = in.number(1, 30), distinct = in.number(1, 12);
        const std::size_t stride = in.number(1, steps + 2);
        const std::uint64_t extreme = in.number(0, 9);  // starts at the ends of int64
        for (std::size_t i = 0; i < n * dims; ++i) {
            z.push_back(scale * (static_cast<double>(noise.below(levels)) - 3));
        }
        for (std::size_t i = 0; i < (n - 1) * stride + steps; ++i) {
            values.push_back(i < 40 ? in.value() : static_cast<double>(noise.below(distinct)));
        }
        for (std::size_t i = 0; i < n; ++i) {
            group.push_back(static_cast<std::int32_t>(noise.below(kinds)) - 1);
            source.push_back(static_cast<std::int32_t>(noise.below(3)) - 1);
            start.push_back(static_cast<std::int64_t>(noise.below(2 * steps + 5)));
            if (noise.below(10) < extreme)
                start[i] = std::numeric_limits<std::int64_t>::min() + start[i];
            if (noise.below(20) < extreme)
                start[i] = std::numeric_limits<std::int64_t>::max() - start[i];
        }
        view = {{z.data(), n, dims}, {values.data(), n, steps, stride}, group, source, start};
    }
};

bool admissible(const lineup::PlacedSeries& a, std::size_t i, const lineup::PlacedSeries& b,
                std::size_t j, const lineup::Overlap& overlap) {
    const auto left = a.series.row(i), right = b.series.row(j);
    if (a.group[i] != b.group[j] || std::equal(left.begin(), left.end(), right.begin()))
        return false;
    if (overlap.rule == OverlapRule::run) {
        return lineup::longest_run(left, right, overlap.decimals) <= overlap.max_run;
    }
    if (a.source[i] != b.source[j]) return true;
    const auto [first, last] = std::minmax(a.start[i], b.start[j]);
    const std::uint64_t apart =
        static_cast<std::uint64_t>(last) - static_cast<std::uint64_t>(first);
    return apart >= left.size() || left.size() - apart <= overlap.max_run;
}

Pools nearest(const lineup::PlacedSeries& asked, std::size_t i, const lineup::PlacedSeries& members,
              const lineup::Overlap& overlap, std::size_t k) {
    std::vector<std::pair<double, std::int32_t>> found;
    for (std::size_t j = 0; j < members.z.n; ++j) {
        if (!admissible(asked, i, members, j, overlap)) continue;
        double sum = 0;
        for (std::size_t d = 0; d < members.z.steps; ++d) {
            const double apart = asked.z.row(i)[d] - members.z.row(j)[d];
            sum += apart * apart;
        }
        found.emplace_back(sum, static_cast<std::int32_t>(j));
    }
    std::sort(found.begin(), found.end());
    Pools out(k, -1);
    for (std::size_t at = 0; at < std::min(k, found.size()); ++at) out[at] = found[at].second;
    return out;
}

void check_pools(const lineup::PlacedSeries& asked, const lineup::PlacedSeries& members,
                 const lineup::Overlap& overlap, std::size_t k, const Pools& pools) {
    for (std::size_t i = 0; i < asked.z.n; i += asked.z.n / 16 + 1) {
        const auto begin = pools.begin() + static_cast<std::ptrdiff_t>(i * k);
        const Pools pool(begin, begin + static_cast<std::ptrdiff_t>(k));
        EXPECT(pool == nearest(asked, i, members, overlap, k));
    }
}

void check_admissible(const lineup::NeighbourIndex& index, const lineup::PlacedSeries& members,
                      const lineup::Overlap& overlap, Noise noise) {
    const std::size_t n = members.z.n, k = 3;
    Pools pool(n * k);
    for (auto& j : pool) j = static_cast<std::int32_t>(noise.below(n + 1)) - 1;
    const auto flags = std::make_unique<bool[]>(n * k);
    index.admissible(pool, k, {flags.get(), n * k}, 2);
    for (std::size_t at = 0; at < n * k; at += n / 16 + 1) {
        const auto j = static_cast<std::size_t>(std::max(0, pool[at]));
        EXPECT(flags[at] == (pool[at] >= 0 && admissible(members, at / k, members, j, overlap)));
    }
    pool[noise.below(n * k)] = noise.below(2) ? static_cast<std::int32_t>(n) : -2;
    EXPECT(refused([&] { index.admissible(pool, k, {flags.get(), n * k}, 1); }));
}

}  // namespace

void fuzz(Input& in) {
    constexpr std::size_t kSizes[] = {1, 2, 31, 32, 33, 300, 700};
    constexpr std::size_t kCounts[] = {1, 2, 7, 8, 9, 65, 256, 257, 900};
    const std::size_t size = in.number(0, 40);
    const std::size_t n = size < 7 ? kSizes[size] : in.number(1, 80);
    const std::size_t dims = in.number(1, 6), steps = in.number(1, 20),
                      k = kCounts[in.number(0, 8)];
    const auto decimals = static_cast<int>(in.number(0, 6));
    const lineup::Overlap overlap{in.number(0, steps + 1), decimals,
                                  in.flag() ? OverlapRule::window : OverlapRule::run};
    const std::uint64_t kinds = in.number(1, 3);
    const Placed members(in, n, dims, steps, kinds),
        asked(in, in.number(1, 30), dims, steps, kinds);

    std::optional<lineup::NeighbourIndex> index;
    const bool good = all_good(members.values);
    EXPECT(refused([&] { index.emplace(members.view, overlap, 2); }) != good);
    if (!good) return;
    check_admissible(*index, members.view, overlap, Noise(n));
    const bool fine = all_good(asked.values);
    Pools own(n * k), alien(asked.group.size() * k);
    for (const Isa isa : {Isa::plain, Isa::avx2, Isa::avx512}) {
        if (isa > lineup::best_isa()) continue;
        Pools inside(own.size()), outside(own.size()), found(alien.size());
        index->search(k, inside, 2, {}, isa);
        index->query(members.view, k, outside, 1, {}, isa);
        EXPECT(refused([&] { index->query(asked.view, k, found, 2, {}, isa); }) != fine);
        if (isa == Isa::plain) {
            own = inside;
            alien = found;
            check_pools(members.view, members.view, overlap, k, own);
            if (fine) check_pools(asked.view, members.view, overlap, k, alien);
        }
        EXPECT(inside == own && outside == own && found == alien);
    }
}
