#include "overlap.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "check.hpp"

namespace {

using Values = std::vector<double>;

std::size_t run(const Values& a, const Values& b) {
    return lineup::longest_run(a, b, 4);
}

// A small generator with few distinct values, so that runs are frequent.
Values few_values(std::size_t n, std::uint64_t seed, std::uint64_t distinct) {
    Values values(n);
    for (double& value : values) {
        seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
        value = static_cast<double>((seed >> 33) % distinct) - 1.0;
    }
    return values;
}

void index_agrees(std::size_t n, std::size_t steps, std::size_t max_run, std::uint64_t distinct) {
    const Values series = few_values(n * steps, 7 + steps, distinct);
    const lineup::Rows rows{series.data(), n, steps};
    const lineup::GramIndex index(rows, max_run, 4, 2);
    lineup::GramProbe inside(index), outside(index);
    for (std::size_t i = 0; i < n; ++i) {
        inside.load(i);
        outside.load(rows.row(i));  // as if it were no row of the index
        for (std::size_t j = 0; j < n; ++j) {
            const bool long_run = lineup::longest_run(rows.row(i), rows.row(j), 4) > max_run;
            CHECK(inside.shares(j) == long_run);
            CHECK(outside.shares(j) == long_run);
            const std::size_t gap = index.places()[std::max(i, j)] - index.places()[std::min(i, j)];
            if (gap < index.count()) CHECK(long_run);
        }
    }
}

// Windows at a stride over one series follow each other: their places say all there is to say.
void windows_are_chained(std::size_t stride) {
    Values walk(400);
    for (std::size_t i = 0; i < walk.size(); ++i) walk[i] = std::sin(static_cast<double>(i * i));
    const lineup::Rows rows{walk.data(), 380 / stride, 20, stride};
    const lineup::GramIndex index(rows, 5, 4, 1);
    for (std::size_t i = 1; i < rows.n && stride < index.count(); ++i) {
        CHECK(index.places()[i] - index.places()[i - 1] == stride);
    }
}

}  // namespace

int main() {
    CHECK(run({1, 2, 3, 4}, {9, 1, 2, 3}) == 3);
    CHECK(run({1, 2, 3}, {4, 5}) == 0);
    CHECK(run({1}, {1}) == 1);
    CHECK(run({5, 5, 5, 5}, {5, 5, 1, 5}) == 2);
    CHECK(run({0.0, 1.00001}, {-0.0, 1.00002}) == 2);
    CHECK(run({1, 2, 3}, {1, 2, 3, 1, 2, 3}) == 3);

    for (const std::size_t steps : {1U, 2U, 13U, 24U}) {
        for (const std::size_t max_run : {0U, 1U, 4U, 30U}) {
            index_agrees(25, steps, max_run, 2);
            index_agrees(25, steps, max_run, 4);
        }
    }
    for (const std::size_t stride : {1U, 3U, 14U, 15U}) windows_are_chained(stride);
    return check_result();
}
