#include "neighbours.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <utility>
#include <vector>

#include "check.hpp"
#include "row_prints.hpp"
#include "tree_split.hpp"

namespace {

using lineup::Isa;
using lineup::OverlapRule;
using Pools = std::vector<std::int32_t>;

// Six windows of three steps; row 3 repeats row 0 in value, row 5 is in another group.
const double kSeries[] = {1, 2, 3, 2, 3, 9, 4, 5, 6, 1, 2, 3, 7, 8, 10, 1, 5, 7};
const double kPoints[] = {0, 1, 2, 0, 2, 0};
const std::int32_t kGroup[] = {0, 0, 0, 0, 0, 1};
const std::int32_t kSource[] = {0, 0, 0, 1, 0, 0};
const std::int64_t kStart[] = {0, 1, 3, 0, 2, 0};
const lineup::PlacedSeries kMembers{{kPoints, 6, 1}, {kSeries, 6, 3}, kGroup, kSource, kStart};

Pools nearest(std::size_t k, std::size_t max_run, OverlapRule rule) {
    Pools out(6 * k);
    lineup::NeighbourIndex(kMembers, {max_run, 4, rule}, 2).search(k, out, 2);
    return out;
}

void small_case() {
    // Rows 0, 1 and 3 share the run (2, 3); rows 2 and 4 are equally far from row 0.
    const Pools by_run = nearest(3, 1, OverlapRule::run);
    CHECK((Pools(by_run.begin(), by_run.begin() + 3) == Pools{2, 4, -1}));
    const Pools free_run = nearest(3, 2, OverlapRule::run);
    CHECK((Pools(free_run.begin(), free_run.begin() + 3) == Pools{1, 2, 4}));
    // Windows 0 and 1 overlap by two steps, 0 and 4 by one; row 3 equals row 0.
    const Pools by_window = nearest(3, 1, OverlapRule::window);
    CHECK((Pools(by_window.begin(), by_window.begin() + 3) == Pools{2, 4, -1}));
    CHECK(by_window[15] == -1 && by_window[17] == -1);  // row 5 is alone in its group

    std::array<bool, 12> good{};
    const Pools pool = {2, 1, -1, 0, 0, 2, 1, 0, 4, 2, 0, 5};
    const lineup::NeighbourIndex index(kMembers, {1, 4, OverlapRule::window}, 1);
    index.admissible(pool, 2, good, 1);
    CHECK((good == std::array<bool, 12>{true, false, false, false, true, false, true}));
    const Pools alien = {6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    CHECK_THROWS(index.admissible(alien, 2, good, 1), std::invalid_argument,
                 "pool: expected -1 to 5, got 6");
}

void bad_values() {
    std::vector<double> bad(18, 1.0);
    bad[4] = 1e151;
    lineup::PlacedSeries members = kMembers;
    members.series.data = bad.data();
    CHECK_THROWS(lineup::NeighbourIndex(members, {1, 4, OverlapRule::run}, 1),
                 std::invalid_argument,
                 "series: expected magnitudes up to 1e150, got 1.000e+151 at row 1, step 1");
    members.series = {kSeries, 6, 3};
    members.z.data = bad.data();
    CHECK_THROWS(lineup::NeighbourIndex(members, {1, 4, OverlapRule::run}, 1),
                 std::invalid_argument,
                 "z: expected magnitudes up to 1e150, got 1.000e+151 at row 4, step 0");
}

void prints_are_those_of_values() {
    // Rows of 37 steps: 0 and 1 are equal but for the sign of a zero, the others differ.
    std::vector<double> values(5 * 37);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i % 37) * 0.1;
    values[37] = -0.0;
    values[2 * 37 + 36] += 1e-12;
    std::swap(values[3 * 37], values[3 * 37 + 16]);
    values[4 * 37 + 33] = 0.0;
    std::array<std::uint32_t, 5> plain{}, wide{};
    CHECK(lineup::row_prints({values.data(), 5, 37}, 0, 5, plain.data(), Isa::plain));
    for (const Isa isa : {Isa::avx2, Isa::avx512}) {
        if (isa > lineup::best_isa()) continue;
        CHECK(lineup::row_prints({values.data(), 5, 37}, 0, 5, wide.data(), isa));
        CHECK(plain == wide);
    }
    CHECK(plain[0] == plain[1]);
    for (const std::size_t other : {2U, 3U, 4U}) CHECK(plain[0] != plain[other]);
    for (const double bad : {std::nan(""), HUGE_VAL, -HUGE_VAL, 1.1e150, -1.1e150}) {
        values[4 * 37 + 33] = bad;
        CHECK(lineup::row_prints({values.data(), 5, 37}, 0, 4, wide.data()));
        CHECK(!lineup::row_prints({values.data(), 5, 37}, 4, 5, wide.data()));
        CHECK(!lineup::row_prints({values.data(), 5, 37}, 4, 5, wide.data(), Isa::plain));
    }
}

// A lattice of points with many ties, windows at stride 1 of one long series in three groups.
struct Case {
    std::vector<double> z, values;
    std::vector<std::int32_t> group, source;
    std::vector<std::int64_t> start;
    lineup::PlacedSeries members;

    Case(std::size_t n, std::size_t dims, std::size_t levels, double scale) {
        std::uint64_t state = 11 + n + dims;
        const auto random = [&] {
            state = state * 6364136223846793005ULL + 1442695040888963407ULL;
            return static_cast<std::size_t>(state >> 33);
        };
        z.resize(n * dims);
        for (double& x : z) x = (static_cast<double>(random() % levels) - 1.0) * scale;
        values.resize(n + 4);
        for (double& x : values) x = static_cast<double>(random() % 1000);
        for (std::size_t i = 0; i < n; ++i) {
            group.push_back(static_cast<std::int32_t>(random() % 3));
            source.push_back(static_cast<std::int32_t>(i / 50));
            start.push_back(static_cast<std::int64_t>(i));
        }
        members = {{z.data(), n, dims}, {values.data(), n, 5, 1}, group, source, start};
    }
};

Pools brute(const Case& given, std::size_t i, std::size_t k, std::size_t reach) {
    const lineup::PlacedSeries& m = given.members;
    std::vector<std::pair<double, std::int32_t>> found;
    for (std::size_t j = 0; j < m.z.n; ++j) {
        const std::size_t apart = i < j ? j - i : i - j;
        const bool near = m.source[i] == m.source[j] && apart <= reach;
        const auto a = m.series.row(i), b = m.series.row(j);
        if (i == j || near || m.group[i] != m.group[j]) continue;
        if (std::equal(a.begin(), a.end(), b.begin())) continue;
        double sum = 0.0;
        for (std::size_t d = 0; d < m.z.steps; ++d) {
            sum += (m.z.row(i)[d] - m.z.row(j)[d]) * (m.z.row(i)[d] - m.z.row(j)[d]);
        }
        found.emplace_back(sum, static_cast<std::int32_t>(j));
    }
    std::sort(found.begin(), found.end());
    Pools out(k, -1);
    for (std::size_t at = 0; at < std::min(k, found.size()); ++at) out[at] = found[at].second;
    return out;
}

void agrees_with_all_pairs(const Case& given) {
    const std::size_t n = given.members.z.n;
    const lineup::NeighbourIndex index(given.members, {2, 4, OverlapRule::window}, 2);
    for (const Isa isa : {Isa::plain, Isa::avx2, Isa::avx512}) {
        if (isa > lineup::best_isa()) continue;
        for (const std::size_t k : {1U, 8U, 13U, 300U}) {
            Pools inside(n * k), outside(n * k);
            index.search(k, inside, 2, {}, isa);
            index.query(given.members, k, outside, 1, {}, isa);
            CHECK(inside == outside);  // members that come from outside find the same
            for (std::size_t i = 0; i < n; i += n / 40 + 1) {
                const auto from = inside.begin() + static_cast<std::ptrdiff_t>(i * k);
                CHECK(Pools(from, from + static_cast<std::ptrdiff_t>(k)) == brute(given, i, k, 2));
            }
        }
    }
}

void agrees_with_all_pairs(std::size_t n, std::size_t dims, std::size_t levels, double scale) {
    agrees_with_all_pairs(Case(n, dims, levels, scale));
}

// Clusters so tight and so far apart that float32 cannot tell their points unless it measures from
// within them; in each, the distances of many pairs differ by less than float32 can say.
void tight_clusters() {
    Case given(3000, 4, 5000, 1e-9);
    for (std::size_t i = 0; i < given.z.size(); ++i) {
        given.z[i] += static_cast<double>(i / 4 % 3) * 1e3 + 1.0;
    }
    agrees_with_all_pairs(given);
}

void splits_at_the_rank() {
    for (const std::size_t levels : {1U, 3U, 40U, 1000000U}) {
        for (const std::size_t n : {33U, 65U, 700U, 5001U}) {
            const Case given(n, 3, levels, -1.0);
            std::vector<std::uint32_t> first;
            for (const Isa isa : {Isa::plain, Isa::avx2, Isa::avx512}) {
                if (isa > lineup::best_isa()) continue;
                lineup::PointColumns columns{given.members.z, n, std::vector<std::uint32_t>(n), {}};
                std::iota(columns.id.begin(), columns.id.end(), 0U);
                columns.x.resize(3 * n);
                lineup::SplitRoom room;
                lineup::measure(columns, 0, n);
                const std::size_t left = n / 2 + 3;
                lineup::split(columns, 0, n, left, room, isa);
                if (first.empty()) first = columns.id;
                CHECK(columns.id == first);
                bool halved = false;  // along some side
                for (std::size_t d = 0; d < 3; ++d) {
                    const auto begin = columns.x.begin() + static_cast<std::ptrdiff_t>(d * n);
                    const auto middle = begin + static_cast<std::ptrdiff_t>(left);
                    const auto end = begin + static_cast<std::ptrdiff_t>(n);
                    halved |= *std::max_element(begin, middle) <= *std::min_element(middle, end);
                }
                CHECK(halved);
                std::sort(columns.id.begin(), columns.id.end());
                for (std::size_t i = 0; i < n; ++i) CHECK(columns.id[i] == i);
            }
        }
    }
}

void stops_when_asked() {
    const Case given(20000, 4, 1000, 1.0);
    const lineup::NeighbourIndex index(given.members, {2, 4, OverlapRule::window}, 1);
    Pools out(20000 * 256);
    const lineup::Poll stop = [] { throw std::runtime_error("stopped"); };
    CHECK_THROWS(index.search(256, out, 1, stop), std::runtime_error, "stopped");
}

}  // namespace

int main() {
    small_case();
    bad_values();
    prints_are_those_of_values();
    for (const std::size_t n : {1U, 31U, 33U, 130U, 700U}) {
        for (const std::size_t dims : {1U, 3U, 4U, 6U}) agrees_with_all_pairs(n, dims, 4, 1.0);
    }
    agrees_with_all_pairs(3000, 4, 1000000, 1e-9);
    agrees_with_all_pairs(3000, 4, 1, 1.0);  // all points equal
    agrees_with_all_pairs(700, 4, 5, 2e149);
    tight_clusters();
    splits_at_the_rank();
    stops_when_asked();
    return check_result();
}
