#include "numerals.hpp"

#include <cmath>
#include <cstdio>
#include <stdexcept>
#include <string>

#include "check.hpp"

namespace {

std::string text(std::vector<double> values, int decimals) {
    return lineup::format_numbers(values, decimals, ", ");
}

using Ids = std::vector<std::int32_t>;

// A table in which every digit run is its index, `repeated` times; the other runs are 2000 to 2004.
struct Table {
    Ids digits;
    std::vector<std::int64_t> offsets{0};
    Ids runs{2000, 2001, 2002, 2003, 2004};

    explicit Table(int repeated) {
        for (std::int32_t i = 0; i < 1110; ++i) {
            digits.insert(digits.end(), static_cast<std::size_t>(repeated), i);
            offsets.push_back(static_cast<std::int64_t>(digits.size()));
        }
    }
    lineup::NumeralTable view(std::size_t group) const {
        const std::span<const std::int32_t> all(runs);
        return {.digit_ids = digits,
                .digit_offsets = offsets,
                .openings = {all.subspan(0, 1), all.subspan(1, 1), all.subspan(2, 1),
                             all.subspan(3, 1)},
                .dot = all.subspan(4, 1),
                .group = group};
    }
};

Ids ids(std::vector<double> values, int decimals, std::size_t group, int repeated = 1,
        lineup::Isa isa = lineup::best_isa()) {
    const Table table(repeated);
    const lineup::Numerals numerals(table.view(group));
    const std::int32_t each[] = {decimals};
    const lineup::Rows rows{values.data(), 1, values.size()};
    const auto found = numerals.ids(rows, each, 1, {}, isa);
    return {found.ids.view().begin(), found.ids.view().end()};
}

// Each of a row's numbers on its own, by way of its text.
std::string printed(const std::vector<double>& values, int decimals) {
    std::string out;
    for (const double value : values) {
        char one[192];
        std::snprintf(one, sizeof one, "%.*f", decimals, value);
        out += (out.empty() ? "" : ", ") + std::string(one);
    }
    return out;
}

}  // namespace

int main() {
    CHECK(text({1.0, -2.5, 0.125}, 2) == "1.00, -2.50, 0.12");
    CHECK(text({0.5, 1.5, 2.5}, 0) == "0, 2, 2");
    CHECK(text({-0.001, -0.0}, 2) == "-0.00, -0.00");
    CHECK(text({2.675, 123456.785}, 2) == "2.67, 123456.79");
    CHECK(text({1e15, -1e149}, 12).size() == 29 + 2 + 164);
    CHECK_THROWS(text({1.0, std::nan("")}, 2), std::invalid_argument,
                 "values: expected finite values, got nan at step 1");

    CHECK((ids({1234.5, -7.0}, 1, 3) == Ids{2000, 233, 4, 2004, 5, 2003, 7, 2004, 0}));
    CHECK((ids({-12.0, 3.0}, 0, 3) == Ids{2001, 22, 2002, 3}));
    CHECK((ids({-12.0}, 0, 1) == Ids{2001, 1, 2}));
    CHECK((ids({7.0}, 0, 3) == Ids{2000, 7}));
    // Too many ids for the short way: the long one gives the same, each id three times.
    CHECK((ids({1234.5}, 1, 3, 3) == Ids{2000, 233, 233, 233, 4, 4, 4, 2004, 5, 5, 5}));

    // On every instruction set: ties, neighbours of ties, the borders of what fits 31 bits.
    std::vector<double> values;
    for (const double at : {0.005, 0.125, 2.675, 1000.0, 999.995, 21474830.0, 2147483648.0, 1e15}) {
        double up = at, down = at;
        for (int i = 0; i < 9; ++i, up = std::nextafter(up, 1e300)) values.push_back(up);
        for (int i = 0; i < 9; ++i, down = std::nextafter(down, 0.0)) values.push_back(-down);
    }
    for (int i = 0; i < 200; ++i) values.push_back((i - 100) * 0.5);
    for (int decimals = 0; decimals <= 12; ++decimals) {
        const std::string expected = printed(values, decimals);
        for (const lineup::Isa isa : {lineup::Isa::plain, lineup::Isa::avx2, lineup::Isa::avx512}) {
            if (isa > lineup::best_isa()) continue;
            CHECK(lineup::format_numbers(values, decimals, ", ", isa) == expected);
            CHECK(ids(values, decimals, 3, 1, isa) == ids(values, decimals, 3));
        }
    }
    return check_result();
}
