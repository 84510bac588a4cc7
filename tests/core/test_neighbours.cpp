#include "neighbours.hpp"

#include <array>
#include <stdexcept>
#include <vector>

#include "check.hpp"

namespace {

// Six windows of three steps; row 3 repeats row 0 in value, row 5 is in another group.
const double kSeries[] = {1, 2, 3, 2, 3, 9, 4, 5, 6, 1, 2, 3, 7, 8, 10, 1, 5, 7};
const double kPoints[] = {0, 1, 2, 0, 2, 0};
const std::int32_t kGroup[] = {0, 0, 0, 0, 0, 1};
const std::int32_t kSource[] = {0, 0, 0, 1, 0, 0};
const std::int64_t kStart[] = {0, 1, 3, 0, 2, 0};

std::vector<std::int32_t> nearest(std::size_t k, std::size_t max_run, lineup::OverlapRule rule) {
    std::vector<std::int32_t> out(6 * k);
    lineup::neighbours({.z = {kPoints, 6, 1},
                        .series = {kSeries, 6, 3},
                        .group = kGroup,
                        .source = kSource,
                        .start = kStart,
                        .k = k,
                        .max_run = max_run,
                        .decimals = 4,
                        .rule = rule},
                       out, 2);
    return out;
}

}  // namespace

int main() {
    using Rule = lineup::OverlapRule;
    // Rows 0, 1 and 3 share the run (2, 3); rows 2 and 4 are equally far from row 0.
    const auto by_run = nearest(3, 1, Rule::run);
    CHECK((std::vector<std::int32_t>(by_run.begin(), by_run.begin() + 3) ==
           std::vector<std::int32_t>{2, 4, -1}));
    const auto free_run = nearest(3, 2, Rule::run);
    CHECK((std::vector<std::int32_t>(free_run.begin(), free_run.begin() + 3) ==
           std::vector<std::int32_t>{1, 2, 4}));
    // Windows 0 and 1 overlap by two steps, 0 and 4 by one; row 3 equals row 0.
    const auto by_window = nearest(3, 1, Rule::window);
    CHECK((std::vector<std::int32_t>(by_window.begin(), by_window.begin() + 3) ==
           std::vector<std::int32_t>{2, 4, -1}));
    CHECK(by_window[15] == -1 && by_window[17] == -1);  // row 5 is alone in its group

    std::vector<double> bad(18, 1.0);
    bad[4] = 1e151;
    std::vector<std::int32_t> out(6);
    CHECK_THROWS(lineup::neighbours({.z = {kPoints, 6, 1},
                                     .series = {bad.data(), 6, 3},
                                     .group = kGroup,
                                     .source = kSource,
                                     .start = kStart,
                                     .k = 1,
                                     .max_run = 1,
                                     .decimals = 4,
                                     .rule = Rule::run},
                                    out, 1),
                 std::invalid_argument,
                 "series: expected magnitudes up to 1e150, got 1.000e+151 at row 1, step 1");
    return check_result();
}
