// Numbers as text against printf, and as token ids against the same text cut up.
#include <array>
#include <string>

#include "input.hpp"
#include "numerals.hpp"

namespace {

using Ids = std::vector<std::int32_t>;

std::string printed(double value, int decimals) {
    std::array<char, 192> text;
    const int size = std::snprintf(text.data(), text.size(), "%.*f", decimals, value);
    return {text.data(), static_cast<std::size_t>(size)};
}

// A made-up tokenizer: a unit of digits is none to three ids, as are the runs between digits.
struct Tokenizer {
    std::vector<Ids> units;  // [1110]
    std::array<Ids, 5> runs;
    Ids digit_ids;
    std::vector<std::int64_t> digit_offsets{0};
    lineup::NumeralTable table;

    explicit Tokenizer(Input& in) {
        Noise noise(in.bits(2));
        const auto ids = [&] {
            Ids out(noise.below(4));
            for (std::int32_t& id : out) id = static_cast<std::int32_t>(noise.below(100000));
            return out;
        };
        for (std::size_t i = 0; i < 1110; ++i) {
            units.push_back(ids());
            digit_ids.insert(digit_ids.end(), units[i].begin(), units[i].end());
            digit_offsets.push_back(static_cast<std::int64_t>(digit_ids.size()));
        }
        for (Ids& run : runs) run = ids();
        table = {digit_ids, digit_offsets, runs[0], runs[1],
                 runs[2],   runs[3],       runs[4], in.flag() ? std::size_t{1} : std::size_t{3}};
    }

    void add_digits(std::string_view digits, Ids& out) const {
        for (; !digits.empty(); digits.remove_prefix(std::min(table.group, digits.size()))) {
            const std::string unit(digits.substr(0, table.group));
            const std::size_t base = unit.size() == 3 ? 110 : unit.size() == 2 ? 10 : 0;
            const Ids& ids = units[base + std::stoul(unit)];
            out.insert(out.end(), ids.begin(), ids.end());
        }
    }

    void add_number(std::string text, bool is_first, Ids& out) const {
        const bool negative = text.front() == '-';
        if (negative) text.erase(0, 1);
        const Ids& opening = runs[(is_first ? 0U : 2U) + (negative ? 1U : 0U)];
        out.insert(out.end(), opening.begin(), opening.end());
        const std::size_t dot = text.find('.');
        add_digits(std::string_view(text).substr(0, dot), out);
        if (dot == std::string::npos) return;
        out.insert(out.end(), runs[4].begin(), runs[4].end());
        add_digits(std::string_view(text).substr(dot + 1), out);
    }
};

}  // namespace

void fuzz(Input& in) {
    const auto decimals = static_cast<int>(in.number(0, 12));
    const std::size_t n = in.number(1, 5), steps = in.number(1, 20), stride = in.number(1, 24);
    const Tokenizer tokenizer(in);
    const std::vector<double> values = in.values((n - 1) * stride + steps);
    const lineup::Rows rows{values.data(), n, steps, stride};

    std::string text;
    const bool good = all_good(values);
    EXPECT(refused([&] { text = lineup::format_numbers(values, decimals, "; "); }) != good);
    if (!good) return;
    std::string expected;
    for (const double value : values) expected += "; " + printed(value, decimals);
    EXPECT(text == expected.substr(2));

    const lineup::RaggedIds found = lineup::number_ids(rows, decimals, tokenizer.table, 2);
    Ids ids;
    EXPECT(found.offsets.size() == n + 1 && found.offsets[0] == 0);
    for (std::size_t i = 0; i < n; ++i) {
        for (std::size_t t = 0; t < steps; ++t) {
            tokenizer.add_number(printed(rows.row(i)[t], decimals), t == 0, ids);
        }
        EXPECT(found.offsets[i + 1] == static_cast<std::int64_t>(ids.size()));
    }
    EXPECT(found.ids == ids);
}
