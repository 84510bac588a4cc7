#include "overlap.hpp"

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
    for (std::size_t i = 0; i < n; ++i) {
        for (std::size_t j = 0; j < n; ++j) {
            CHECK(index.share(i, j) ==
                  (lineup::longest_run(rows.row(i), rows.row(j), 4) > max_run));
        }
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
    return check_result();
}
