#include "numerals.hpp"

#include <cmath>
#include <stdexcept>

#include "check.hpp"

namespace {

std::string text(std::vector<double> values, int decimals) {
    return lineup::format_numbers(values, decimals, ", ");
}

// A table in which every digit run is one id: its index; the other runs are 2000 to 2004.
std::vector<std::int32_t> ids(std::vector<double> values, int decimals, std::size_t group) {
    std::vector<std::int32_t> digits(1110);
    std::vector<std::int64_t> offsets(1111);
    for (std::size_t i = 0; i < 1110; ++i) {
        digits[i] = static_cast<std::int32_t>(i);
        offsets[i + 1] = static_cast<std::int64_t>(i + 1);
    }
    const std::int32_t runs[] = {2000, 2001, 2002, 2003, 2004};
    const std::span<const std::int32_t> all(runs);
    const lineup::NumeralTable table{.digit_ids = digits,
                                     .digit_offsets = offsets,
                                     .first = all.subspan(0, 1),
                                     .first_negative = all.subspan(1, 1),
                                     .separator = all.subspan(2, 1),
                                     .separator_negative = all.subspan(3, 1),
                                     .dot = all.subspan(4, 1),
                                     .group = group};
    const lineup::Rows rows{values.data(), 1, values.size()};
    return lineup::number_ids(rows, decimals, table, 1).ids;
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

    using Ids = std::vector<std::int32_t>;
    CHECK((ids({1234.5, -7.0}, 1, 3) == Ids{2000, 233, 4, 2004, 5, 2003, 7, 2004, 0}));
    CHECK((ids({-12.0, 3.0}, 0, 3) == Ids{2001, 22, 2002, 3}));
    CHECK((ids({-12.0}, 0, 1) == Ids{2001, 1, 2}));
    CHECK((ids({7.0}, 0, 3) == Ids{2000, 7}));
    return check_result();
}
