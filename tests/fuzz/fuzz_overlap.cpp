// The longest shared run against every pair of starts, and the index of grams against the run.
#include <algorithm>

#include "input.hpp"
#include "overlap.hpp"

namespace {

using Values = std::span<const double>;

std::size_t plain_longest_run(Values a, Values b, double scale) {
    std::size_t best = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
        for (std::size_t j = 0; j < b.size(); ++j) {
            std::size_t run = 0;
            while (i + run < a.size() && j + run < b.size() &&
                   lineup::rounded(a[i + run], scale) == lineup::rounded(b[j + run], scale)) {
                ++run;
            }
            best = std::max(best, run);
        }
    }
    return best;
}

void check_index(const lineup::Rows& rows, const std::vector<double>& alien, std::size_t max_run,
                 int decimals) {
    const double scale = lineup::decimal_scale(decimals);
    const lineup::GramIndex index(rows, max_run, decimals, 2);
    lineup::GramProbe inside(index), outside(index);
    for (std::size_t i = 0; i < rows.n; ++i) {
        inside.load(i);
        outside.load(rows.row(i));
        for (std::size_t j = 0; j < rows.n; ++j) {
            const bool shares = plain_longest_run(rows.row(i), rows.row(j), scale) > max_run;
            EXPECT(inside.shares(j) == shares && outside.shares(j) == shares);
            const std::size_t gap = index.places()[std::max(i, j)] - index.places()[std::min(i, j)];
            if (gap < index.count()) EXPECT(shares);
        }
        outside.load(alien);
        EXPECT(outside.shares(i) == (plain_longest_run(alien, rows.row(i), scale) > max_run));
    }
}

}  // namespace

void fuzz(Input& in) {
    const auto decimals = static_cast<int>(in.flag() ? in.number(0, 308) : in.number(0, 5));
    const double scale = lineup::decimal_scale(decimals);
    const std::vector<double> a = in.values(in.number(0, 40)), b = in.values(in.number(0, 40));
    std::size_t run = 0;
    const bool good = all_good(a) && all_good(b);
    EXPECT(refused([&] { run = lineup::longest_run(a, b, decimals); }) != good);
    if (good) EXPECT(run == plain_longest_run(a, b, scale));

    const std::size_t n = in.number(1, 9), steps = in.number(1, 20), stride = in.number(1, 24);
    const std::size_t max_run = in.number(0, 24);
    const std::vector<double> values = in.values((n - 1) * stride + steps);
    const std::vector<double> alien = in.values(steps);
    if (!all_good(values) || !all_good(alien)) return;  // refused before an index is made
    check_index({values.data(), n, steps, stride}, alien, max_run, decimals);
}
