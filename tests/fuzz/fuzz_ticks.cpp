// Ticks: what ticks.hpp promises of positions and texts.
#include <algorithm>
#include <string>

#include "glyphs.hpp"
#include "input.hpp"
#include "ticks.hpp"

namespace {

std::size_t decimals_of(const std::string& text) {
    const std::size_t dot = text.find('.');
    return dot == std::string::npos ? 0 : text.size() - dot;
}

void check_ticks(const lineup::Ticks& ticks, double lo, double hi, int n, bool integer) {
    EXPECT(ticks.positions.size() == ticks.texts.size());
    EXPECT(ticks.positions.size() <= static_cast<std::size_t>(n) + 1);
    EXPECT(integer || !ticks.positions.empty());
    bool plain = true;
    for (const std::string& text : ticks.texts) plain &= text.find('e') == std::string::npos;
    for (std::size_t i = 0; i < ticks.positions.size(); ++i) {
        const double position = ticks.positions[i];
        const std::string& text = ticks.texts[i];
        EXPECT(position >= lo && position <= hi);
        EXPECT(i == 0 || position > ticks.positions[i - 1]);
        EXPECT(!integer || position == std::trunc(position));
        EXPECT(std::strtod(text.c_str(), nullptr) == position);
        EXPECT(!plain || decimals_of(text) == decimals_of(ticks.texts[0]));
        EXPECT(text.size() <= (plain ? 24 : 26));
        for (const char character : text) lineup::glyph(character);
    }
}

}  // namespace

void fuzz(Input& in) {
    const double lo = in.value();
    const double hi = in.flag() ? in.value() : std::nextafter(lo, HUGE_VAL);
    const auto n = static_cast<int>(in.flag() ? in.number(1, 8) : in.number(0, 1002));
    const bool integer = in.flag();
    const bool good = lo >= -1e300 && lo < hi && hi <= 1e300 && n >= 1 && n <= 1000;
    lineup::Ticks ticks;
    EXPECT(refused([&] { ticks = lineup::nice_ticks(lo, hi, n, integer); }) != good);
    if (good) check_ticks(ticks, lo, hi, n, integer);
}
