#include "numerals.hpp"

#include <algorithm>
#include <array>
#include <charconv>

namespace lineup {
namespace {

// Sign, 151 digits of kMaxMagnitude, dot, 12 decimals, with room to spare.
using Buffer = std::array<char, 192>;

std::string_view format_number(double value, int decimals, Buffer& buffer) {
    const auto [end, error] = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value,
                                            std::chars_format::fixed, decimals);
    (void)error;  // the buffer fits every value that require_values lets through
    return {buffer.data(), static_cast<std::size_t>(end - buffer.data())};
}

void append(std::vector<std::int32_t>& ids, std::span<const std::int32_t> run) {
    ids.insert(ids.end(), run.begin(), run.end());
}

void append_digits(std::vector<std::int32_t>& ids, std::string_view digits,
                   const NumeralTable& table) {
    constexpr std::size_t kFirstOfLength[] = {0, 0, 10, 110};
    for (std::size_t at = 0; at < digits.size(); at += table.group) {
        const std::string_view unit = digits.substr(at, table.group);
        std::size_t number = 0;
        for (const char digit : unit) number = number * 10 + static_cast<std::size_t>(digit - '0');
        const std::size_t index = kFirstOfLength[unit.size()] + number;
        const auto begin = static_cast<std::size_t>(table.digit_offsets[index]);
        const auto end = static_cast<std::size_t>(table.digit_offsets[index + 1]);
        append(ids, table.digit_ids.subspan(begin, end - begin));
    }
}

void append_row(std::vector<std::int32_t>& ids, std::span<const double> row, int decimals,
                const NumeralTable& table) {
    Buffer buffer;
    for (std::size_t t = 0; t < row.size(); ++t) {
        std::string_view text = format_number(row[t], decimals, buffer);
        const bool negative = text.front() == '-';
        if (negative) text.remove_prefix(1);
        append(ids, t == 0 ? (negative ? table.first_negative : table.first)
                           : (negative ? table.separator_negative : table.separator));
        const std::size_t dot = text.find('.');
        append_digits(ids, text.substr(0, dot), table);
        if (dot == std::string_view::npos) continue;
        append(ids, table.dot);
        append_digits(ids, text.substr(dot + 1), table);
    }
}

}  // namespace

std::string format_numbers(std::span<const double> values, int decimals,
                           std::string_view separator) {
    require_values("values", values);
    Buffer buffer;
    std::string text;
    for (std::size_t t = 0; t < values.size(); ++t) {
        if (t > 0) text += separator;
        text += format_number(values[t], decimals, buffer);
    }
    return text;
}

RaggedIds number_ids(const Rows& values, int decimals, const NumeralTable& table, int threads,
                     const Poll& poll) {
    require_values("values", values);
    std::vector<std::vector<std::int32_t>> rows(values.n);
    parallel_for(values.n, 64, threads, poll, [&](std::size_t begin, std::size_t end) {
        for (std::size_t i = begin; i < end; ++i) {
            append_row(rows[i], values.row(i), decimals, table);
        }
    });
    RaggedIds out;
    out.offsets.push_back(0);
    for (const auto& row : rows) {
        append(out.ids, row);
        out.offsets.push_back(static_cast<std::int64_t>(out.ids.size()));
    }
    return out;
}

}  // namespace lineup
