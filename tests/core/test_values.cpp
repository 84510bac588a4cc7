#include "values.hpp"

#include <cmath>
#include <limits>
#include <stdexcept>

#include "check.hpp"

int main() {
    constexpr double inf = std::numeric_limits<double>::infinity();
    const double good[] = {0.0, -1e150, 1e-300, 1e150};
    lineup::require_values("x", good);

    const double bad[] = {1.0, 2.0, 3.0, std::nan(""), -inf, 1e200};
    CHECK_THROWS(lineup::require_values("x", lineup::Rows{bad, 3, 2}), std::invalid_argument,
                 "x: expected finite values, got nan at row 1, step 1");
    CHECK_THROWS(lineup::require_values("x", std::span<const double>(bad + 4, 2)),
                 std::invalid_argument, "x: expected finite values, got -inf at step 0");
    CHECK_THROWS(lineup::require_values("x", std::span<const double>(bad + 5, 1)),
                 std::invalid_argument,
                 "x: expected magnitudes up to 1e150, got 1.000e+200 at step 0");

    CHECK(lineup::rounded(2.5, 1.0) == 2.0);
    CHECK(lineup::rounded(1.23456, 1e4) == 1.2346);
    CHECK(!std::signbit(lineup::rounded(-0.00001, 1e4)));
    CHECK(lineup::rounded(1e150, lineup::decimal_scale(300)) == 1e150);
    return check_result();
}
