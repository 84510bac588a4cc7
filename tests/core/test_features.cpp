#include "features.hpp"

#include <array>
#include <cmath>
#include <stdexcept>

#include "check.hpp"

int main() {
    // Two rows of five: 1..5, and a constant whose plain sum would not be exact.
    const double series[] = {1, 2, 3, 4, 5, 0.1, 0.1, 0.1, 0.1, 0.1};
    std::array<double, 8> phi{};
    lineup::features({series, 2, 5}, phi, 1);
    CHECK(phi[0] == 3.0);
    CHECK(std::abs(phi[1] - std::sqrt(2.0)) < 1e-15);
    CHECK(phi[2] == 1.0 && phi[3] == 5.0);
    CHECK(phi[4] == 0.1 && phi[5] == 0.0 && phi[6] == 0.1 && phi[7] == 0.1);

    // Long rows go through all lanes; threads change nothing.
    std::vector<double> many(1003 * 67);
    for (std::size_t i = 0; i < many.size(); ++i) {
        many[i] = std::sin(static_cast<double>(i)) * 1e12;
    }
    std::vector<double> one(1003 * 4);
    std::vector<double> four(one.size());
    lineup::features({many.data(), 1003, 67}, one, 1);
    lineup::features({many.data(), 1003, 67}, four, 4);
    CHECK(one == four);

    many[5 * 67 + 2] = std::nan("");
    CHECK_THROWS(lineup::features({many.data(), 1003, 67}, one, 1), std::invalid_argument,
                 "series: expected finite values, got nan at row 5, step 2");
    return check_result();
}
