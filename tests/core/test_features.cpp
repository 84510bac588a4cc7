#include "features.hpp"

#include <array>
#include <cmath>
#include <stdexcept>
#include <string>

#include "check.hpp"

namespace {

using lineup::Isa;

std::vector<double> features_of(const std::vector<double>& values, std::size_t n, int threads,
                                Isa isa) {
    std::vector<double> phi(n * 4);
    lineup::features({values.data(), n, values.size() / n}, phi, threads, {}, isa);
    return phi;
}

std::vector<double> waves(std::size_t size) {
    std::vector<double> values(size);
    for (std::size_t i = 0; i < size; ++i) values[i] = std::sin(static_cast<double>(i)) * 1e12;
    return values;
}

void every_isa_gives_the_same_bits() {
    for (const std::size_t steps : {1U, 2U, 7U, 8U, 15U, 16U, 17U, 31U, 67U, 96U, 700U, 3000U}) {
        const std::vector<double> values = waves(53 * steps);
        const std::vector<double> plain = features_of(values, 53, 1, Isa::plain);
        for (const Isa isa : {Isa::avx2, Isa::avx512}) {
            if (isa <= lineup::best_isa()) CHECK(features_of(values, 53, 2, isa) == plain);
        }
    }
}

}  // namespace

int main() {
    // Two rows of five: 1..5, and a constant whose plain sum would not be exact.
    const double series[] = {1, 2, 3, 4, 5, 0.1, 0.1, 0.1, 0.1, 0.1};
    std::array<double, 8> phi{};
    lineup::features({series, 2, 5}, phi, 1);
    CHECK(phi[0] == 3.0);
    CHECK(std::abs(phi[1] - std::sqrt(2.0)) < 1e-15);
    CHECK(phi[2] == 1.0 && phi[3] == 5.0);
    CHECK(phi[4] == 0.1 && phi[5] == 0.0 && phi[6] == 0.1 && phi[7] == 0.1);

    every_isa_gives_the_same_bits();
    std::vector<double> many = waves(1003 * 67);
    CHECK(features_of(many, 1003, 1, lineup::best_isa()) ==
          features_of(many, 1003, 4, lineup::best_isa()));

    many[5 * 67 + 2] = std::nan("");
    many[900 * 67] = -HUGE_VAL;
    CHECK_THROWS(features_of(many, 1003, 1, Isa::plain), std::invalid_argument,
                 "series: expected finite values, got nan at row 5, step 2");
    CHECK_THROWS(features_of(many, 1003, 4, lineup::best_isa()), std::invalid_argument,
                 "series: expected finite values, got nan at row 5, step 2");

    CHECK(lineup::named_isa("") == lineup::best_isa());
    CHECK(lineup::named_isa("plain") == Isa::plain);
    const std::string best = lineup::isa_name(lineup::best_isa());
    for (const Isa isa : {Isa::avx2, Isa::avx512}) {
        const std::string name = lineup::isa_name(isa);
        if (isa <= lineup::best_isa()) {
            CHECK(lineup::named_isa(name) == isa);
        } else {
            CHECK_THROWS(lineup::named_isa(name), std::invalid_argument,
                         "LINEUP_ISA: expected at most " + best + " on this machine, got " + name);
        }
    }
    CHECK_THROWS(lineup::named_isa("sse9"), std::invalid_argument,
                 "LINEUP_ISA: expected plain, avx2 or avx512, got sse9");
    return check_result();
}
