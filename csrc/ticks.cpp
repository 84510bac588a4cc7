#include "ticks.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <system_error>
#include <utility>

namespace lineup {
namespace {

constexpr double kMaxAbs = 1e300;
constexpr int kLowestExponent = -326;  // below the smallest float64
constexpr std::size_t kLongestPlain = 10;

// The exact decimal number digits x 10^exponent.
struct Decimal {
    std::int64_t digits;
    int exponent;
};

// The float64 nearest to the decimal; the caller keeps clear of overflow.
double nearest(Decimal number) {
    std::array<char, 32> text;
    char* end = std::to_chars(text.data(), text.data() + 20, number.digits).ptr;
    *end++ = 'e';
    end = std::to_chars(end, text.data() + text.size(), number.exponent).ptr;
    double value = 0;
    const auto result = std::from_chars(text.data(), end, value);
    return result.ec == std::errc::result_out_of_range ? 0.0 : value;
}

Decimal stripped(Decimal number) {
    if (number.digits == 0) return {0, 0};
    while (number.digits % 10 == 0) {
        number.digits /= 10;
        ++number.exponent;
    }
    return number;
}

std::string unsigned_digits(std::int64_t digits) {
    return std::to_string(digits < 0 ? -digits : digits);
}

// `decimals` is enough for the number, so that only zeros are dropped.
std::string plain_text(Decimal number, int decimals) {
    number = stripped(number);
    std::string text = unsigned_digits(number.digits);
    const auto places = static_cast<std::size_t>(decimals);
    text.append(static_cast<std::size_t>(number.exponent + decimals), '0');
    if (text.size() <= places) text.insert(0, places + 1 - text.size(), '0');
    if (number.digits == 0) text.assign(places + 1, '0');
    if (places > 0) text.insert(text.size() - places, 1, '.');
    return number.digits < 0 ? "-" + text : text;
}

std::string scientific_text(Decimal number) {
    number = stripped(number);
    if (number.digits == 0) return "0";
    std::string text = unsigned_digits(number.digits);
    const int power = number.exponent + static_cast<int>(text.size()) - 1;
    if (text.size() > 1) text.insert(1, 1, '.');
    return (number.digits < 0 ? "-" : "") + text + "e" + std::to_string(power);
}

std::size_t longest(const std::vector<std::string>& texts) {
    std::size_t size = 0;
    for (const std::string& text : texts) size = std::max(size, text.size());
    return size;
}

std::vector<std::string> tick_texts(const std::vector<Decimal>& marks) {
    int decimals = 0;
    for (const Decimal mark : marks) decimals = std::max(decimals, -stripped(mark).exponent);
    std::vector<std::string> plain;
    for (const Decimal mark : marks) plain.push_back(plain_text(mark, decimals));
    if (longest(plain) <= kLongestPlain) return plain;
    std::vector<std::string> scientific;
    for (const Decimal mark : marks) scientific.push_back(scientific_text(mark));
    return longest(scientific) < longest(plain) ? scientific : plain;
}

// value / step up to about 1e-15 of the quotient, for values and steps that may be subnormal.
double quotient(double value, Decimal step) {
    constexpr int kLift = 40;
    if (step.exponent > -280) return value / nearest(step);
    return value * 1e40 / nearest({step.digits, step.exponent + kLift});
}

// Ticks at the multiples of the step whose nearest float64 lies in [lo, hi]; nothing if they are
// more than n + 1 or not distinct.
std::optional<Ticks> ticks_at(Decimal step, double lo, double hi, int n) {
    const double reach = quotient(std::max(std::abs(lo), std::abs(hi)), step);
    if (!(reach < 0x1p55)) return std::nullopt;  // several multiples for each float64
    const auto slack =
        static_cast<std::int64_t>(2 + reach * 1e-15);  // what the quotients may be off
    const auto first = static_cast<std::int64_t>(std::floor(quotient(lo, step))) - slack;
    const auto last = static_cast<std::int64_t>(std::ceil(quotient(hi, step))) + slack;
    Ticks ticks;
    std::vector<Decimal> marks;
    for (std::int64_t k = first; k <= last; ++k) {
        const Decimal mark{k * step.digits, step.exponent};
        const double position = nearest(mark);
        if (position < lo) continue;
        if (position > hi) break;
        if (!marks.empty() && position == ticks.positions.back()) return std::nullopt;
        if (marks.size() == static_cast<std::size_t>(n) + 1) return std::nullopt;
        ticks.positions.push_back(position);
        marks.push_back(mark);
    }
    ticks.texts = tick_texts(marks);
    return ticks;
}

// The shortest decimal number whose nearest float64 is the value.
Decimal shortest(double value) {
    std::array<char, 32> text;  // like -1.25e-07
    char* const begin = text.data();
    char* const end = std::to_chars(begin, begin + 32, value, std::chars_format::scientific).ptr;
    char* const mark = std::find(begin, end, 'e');
    char* const point = std::find(begin, mark, '.');
    Decimal number{0, 0};
    std::from_chars(mark[1] == '+' ? mark + 2 : mark + 1, end, number.exponent);
    if (point != mark) {
        number.exponent -= static_cast<int>(mark - point) - 1;
        std::copy(point + 1, mark, point);
    }
    std::from_chars(begin, point == mark ? mark : mark - 1, number.digits);
    return number;
}

Ticks ticks_at_ends(double lo, double hi) {
    return {{lo, hi}, tick_texts({shortest(lo), shortest(hi)})};
}

std::string shown(double value) {
    std::array<char, 32> text;
    return {text.data(), std::to_chars(text.data(), text.data() + text.size(), value).ptr};
}

void check(double lo, double hi, int n) {
    for (const auto& [name, value] : {std::pair{"lo", lo}, std::pair{"hi", hi}}) {
        if (!(std::abs(value) <= kMaxAbs)) {
            throw std::invalid_argument(
                std::string(name) + ": expected a finite number up to 1e300, got " + shown(value));
        }
    }
    if (!(lo < hi)) {
        throw std::invalid_argument("hi: expected more than lo (" + shown(lo) + "), got " +
                                    shown(hi));
    }
    if (n < 1 || n > 1000) {
        throw std::invalid_argument("n: expected 1 to 1000 intervals, got " + std::to_string(n));
    }
}

}  // namespace

Ticks nice_ticks(double lo, double hi, int n, bool integer) {
    check(lo, hi, n);
    const double smallest = (hi - lo) / n;
    int exponent = kLowestExponent;
    if (smallest > 0) {
        exponent = std::max(exponent, static_cast<int>(std::floor(std::log10(smallest))) - 2);
    }
    for (;; ++exponent) {
        for (const Decimal unit : {Decimal{1, 0}, Decimal{2, 0}, Decimal{25, -1}, Decimal{5, 0}}) {
            const Decimal step{unit.digits, unit.exponent + exponent};
            if (integer && step.exponent < 0) continue;
            const double width = nearest(step);
            if (width == 0 || width < smallest) continue;
            std::optional<Ticks> ticks = ticks_at(step, lo, hi, n);
            if (!ticks) continue;
            return ticks->positions.empty() && !integer ? ticks_at_ends(lo, hi) : *std::move(ticks);
        }
    }
}

}  // namespace lineup
