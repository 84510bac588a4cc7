// A tokenizer of digits whose ids the input makes up, and what it does with a number's text.
#pragma once

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "input.hpp"
#include "numerals.hpp"

using Ids = std::vector<std::int32_t>;

inline std::string printed(double value, int decimals) {
    std::array<char, 192> text;
    const int size = std::snprintf(text.data(), text.size(), "%.*f", decimals, value);
    return {text.data(), static_cast<std::size_t>(size)};
}

inline void append(Ids& to, const Ids& ids) {
    to.insert(to.end(), ids.begin(), ids.end());
}

// A unit of digits is none to three ids, as are the runs between digits.
struct MadeUpTokenizer {
    std::vector<Ids> units;  // [1110]
    std::array<Ids, 5> runs;
    Ids digit_ids;
    std::vector<std::int64_t> digit_offsets{0};
    std::size_t group;

    explicit MadeUpTokenizer(Input& in) {
        Noise noise(in.bits(2));
        const std::uint64_t least = in.number(0, 1), most = least + in.number(0, 2);
        const auto ids = [&] {
            Ids out(least + noise.below(most - least + 1));
            for (std::int32_t& id : out) id = static_cast<std::int32_t>(noise.below(100000));
            return out;
        };
        for (std::size_t i = 0; i < 1110; ++i) {
            units.push_back(ids());
            append(digit_ids, units[i]);
            digit_offsets.push_back(static_cast<std::int64_t>(digit_ids.size()));
        }
        for (Ids& run : runs) run = ids();
        group = in.flag() ? 1 : 3;
    }

    lineup::Numerals numerals() const {
        return lineup::Numerals({.digit_ids = digit_ids,
                                 .digit_offsets = digit_offsets,
                                 .openings = {runs[0], runs[1], runs[2], runs[3]},
                                 .dot = runs[4],
                                 .group = group});
    }

    void add_digits(std::string_view digits, Ids& out) const {
        for (; !digits.empty(); digits.remove_prefix(std::min(group, digits.size()))) {
            const std::string unit(digits.substr(0, group));
            const std::size_t base = unit.size() == 3 ? 110 : unit.size() == 2 ? 10 : 0;
            append(out, units[base + std::stoul(unit)]);
        }
    }

    Ids row(std::span<const double> values, int decimals) const {
        Ids out;
        for (std::size_t t = 0; t < values.size(); ++t) {
            std::string text = printed(values[t], decimals);
            const bool negative = text.front() == '-';
            if (negative) text.erase(0, 1);
            append(out, runs[(t == 0 ? 0U : 2U) + (negative ? 1U : 0U)]);
            const std::size_t dot = text.find('.');
            add_digits(std::string_view(text).substr(0, dot), out);
            if (dot == std::string::npos) continue;
            append(out, runs[4]);
            add_digits(std::string_view(text).substr(dot + 1), out);
        }
        return out;
    }
};
