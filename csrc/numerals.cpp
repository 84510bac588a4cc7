#include "numerals.hpp"

#include <array>

namespace lineup {
namespace {

constexpr std::size_t kSerialValues = 1 << 15;  // below this a thread costs more than it saves

std::vector<std::int32_t> copy(std::span<const std::int32_t> ids) {
    return {ids.begin(), ids.end()};
}

// Every digit run as characters.
NumeralWriter<char> text_writer() {
    std::vector<char> digits;
    std::vector<std::int64_t> offsets{0};
    for (std::size_t width = 1, count = 10; width <= 3; ++width, count *= 10) {
        for (std::size_t n = 0; n < count; ++n) {
            for (std::size_t power = count / 10; power > 0; power /= 10) {
                digits.push_back(static_cast<char>('0' + n / power % 10));
            }
            offsets.push_back(static_cast<std::int64_t>(digits.size()));
        }
    }
    return {digits, offsets, std::string_view("."), 3};
}

}  // namespace

std::string format_numbers(std::span<const double> values, int decimals, std::string_view separator,
                           Isa isa) {
    static const NumeralWriter<char> writer = text_writer();
    require_values("values", values);
    const std::string negative = std::string(separator) + '-';
    const Openings<char> openings{.first = {},
                                  .first_negative = std::string_view("-"),
                                  .separator = separator,
                                  .separator_negative = negative};
    Units<char> text;
    writer.row(values, decimals, openings, text, isa);
    return {text.view().data(), text.size()};
}

Numerals::Numerals(const NumeralTable& table)
    : writer_(table.digit_ids, table.digit_offsets, table.dot, table.group),
      first_(copy(table.openings.first)),
      first_negative_(copy(table.openings.first_negative)),
      separator_(copy(table.openings.separator)),
      separator_negative_(copy(table.openings.separator_negative)) {}

void Numerals::append(std::span<const double> values, int decimals, RaggedIds& out, Isa isa) const {
    const Openings<std::int32_t> openings{first_, first_negative_, separator_, separator_negative_};
    writer_.row(values, decimals, openings, out.ids, isa);
    out.offsets.push_back(static_cast<std::int64_t>(out.ids.size()));
}

RaggedIds Numerals::ids(const Rows& values, std::span<const std::int32_t> decimals, int threads,
                        const Poll& poll, Isa isa) const {
    require_values("values", values);
    const bool serial = threads == 1 || values.n * values.steps <= kSerialValues;
    const std::size_t grain = std::max<std::size_t>(1, 4096 / values.steps);
    const std::size_t per_part = serial ? values.n : grain;
    std::vector<RaggedIds> parts((values.n + per_part - 1) / per_part);
    parallel_for(values.n, grain, serial ? 1 : threads, poll,
                 [&](std::size_t begin, std::size_t end) {
                     RaggedIds& part = parts[begin / per_part];
                     for (std::size_t i = begin; i < end; ++i) {
                         append(values.row(i), decimals[i], part, isa);
                     }
                 });
    RaggedIds& out = parts.front();
    for (std::size_t p = 1; p < parts.size(); ++p) {
        const std::int64_t base = out.offsets.back();
        out.ids.append(parts[p].ids.view());
        for (std::size_t i = 1; i < parts[p].offsets.size(); ++i) {
            out.offsets.push_back(base + parts[p].offsets[i]);
        }
    }
    return std::move(out);
}

}  // namespace lineup
