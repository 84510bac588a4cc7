// Checks and rounding that every kernel shares, against their definitions.
#include <string>

#include "input.hpp"
#include "values.hpp"

namespace {

std::string complaint(const lineup::Rows& rows) {
    try {
        lineup::require_values("x", rows);
    } catch (const std::invalid_argument& error) {
        return error.what();
    }
    return "";
}

// The end of the text that names the first bad value, row after row.
std::string expected_complaint(const lineup::Rows& rows) {
    for (std::size_t i = 0; i < rows.n; ++i) {
        for (std::size_t t = 0; t < rows.steps; ++t) {
            if (is_good(rows.row(i)[t])) continue;
            return " at row " + std::to_string(i) + ", step " + std::to_string(t);
        }
    }
    return "";
}

double plainly_rounded(double value, double scale) {
    const double scaled = std::nearbyint(value * scale) / scale;
    return (std::isfinite(scaled) ? scaled : value) + 0.0;
}

}  // namespace

void fuzz(Input& in) {
    const std::size_t n = in.number(1, 8), steps = in.number(1, 40), stride = in.number(1, 50);
    const double scale = lineup::decimal_scale(static_cast<int>(in.number(0, 308)));
    const std::vector<double> values = in.values((n - 1) * stride + steps);
    const lineup::Rows rows{values.data(), n, steps, stride};

    const std::string text = complaint(rows), end = expected_complaint(rows);
    EXPECT(end.empty() ? text.empty() : text.ends_with(end) && text.starts_with("x: expected "));
    EXPECT(lineup::acceptable(values) == all_good(values));
    EXPECT(refused([&] { lineup::require_values("x", values); }) != all_good(values));

    for (const double value : values) {
        if (!is_good(value)) continue;
        const double rounded = lineup::rounded(value, scale);
        const auto bits = std::bit_cast<std::uint64_t>(rounded);
        EXPECT(bits == std::bit_cast<std::uint64_t>(plainly_rounded(value, scale)));
    }
}
