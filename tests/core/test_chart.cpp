#include "chart.hpp"

#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "check.hpp"
#include "glyphs.hpp"
#include "ticks.hpp"

namespace {

using Series = std::vector<double>;
using Pixels = std::vector<std::uint8_t>;
using Texts = std::vector<std::string>;

constexpr double kInf = std::numeric_limits<double>::infinity();

Pixels draw(const std::vector<Series>& series, const lineup::ChartStyle& style, int threads) {
    const std::vector<std::span<const double>> views(series.begin(), series.end());
    Pixels out(series.size() * static_cast<std::size_t>(style.width * style.height) * 3, 7);
    lineup::render_charts(views, style, out, threads);
    return out;
}

bool is_ink(const std::uint8_t* rgb) {
    return rgb[0] == 31 && rgb[1] == 119 && rgb[2] == 180;
}

std::size_t ink(const Pixels& pixels) {
    std::size_t count = 0;
    for (std::size_t i = 0; i < pixels.size(); i += 3) count += is_ink(&pixels[i]);
    return count;
}

void test_ticks() {
    using lineup::nice_ticks;
    CHECK((nice_ticks(0, 100, 5).texts == Texts{"0", "20", "40", "60", "80", "100"}));
    CHECK((nice_ticks(0, 100, 4).texts == Texts{"0", "25", "50", "75", "100"}));
    CHECK((nice_ticks(-0.25, 0.5, 3).texts == Texts{"-0.25", "0.00", "0.25", "0.50"}));
    CHECK((nice_ticks(0, 8, 4, true).texts == Texts{"0", "2", "4", "6", "8"}));
    CHECK((nice_ticks(0, 9, 4, true).texts == Texts{"0", "5"}));  // never 2.5
    CHECK((nice_ticks(-0.5, 0.5, 6, true).texts == Texts{"0"}));
    CHECK((nice_ticks(0, 1e-12, 4).texts == Texts{"0", "2.5e-13", "5e-13", "7.5e-13", "1e-12"}));
    CHECK((nice_ticks(1e12, 1.2e12, 2).texts == Texts{"1e12", "1.1e12", "1.2e12"}));
    CHECK((nice_ticks(1e9, 1e9 + 0.5, 2).texts ==
           Texts{"1000000000.00", "1000000000.25", "1000000000.50"}));
    // Two neighbouring numbers: distinct texts that read back as the positions.
    const double above = std::nextafter(1e12, kInf);
    const lineup::Ticks pair = nice_ticks(1e12, above, 5);
    CHECK((pair.positions == std::vector<double>{1e12, above}));
    for (std::size_t i = 0; i < pair.texts.size(); ++i) {
        CHECK(std::strtod(pair.texts[i].c_str(), nullptr) == pair.positions[i]);
    }
    CHECK(!nice_ticks(0, 5e-324, 5).texts.empty());
    CHECK(!nice_ticks(-1e300, 1e300, 5).texts.empty());
    CHECK_THROWS(nice_ticks(1, 1, 5), std::invalid_argument,
                 "hi: expected more than lo (1), got 1");
    CHECK_THROWS(nice_ticks(0, kInf, 5), std::invalid_argument,
                 "hi: expected a finite number up to 1e300, got inf");
    CHECK_THROWS(nice_ticks(0, 1, 0), std::invalid_argument,
                 "n: expected 1 to 1000 intervals, got 0");
}

void test_pixels() {
    const lineup::ChartStyle style;
    const std::vector<Series> one{{1, 5, 2, 4}};
    const Pixels chart = draw(one, style, 1);
    CHECK(chart[0] == 255 && chart[1] == 255 && chart[2] == 255);
    CHECK(ink(chart) > 500);
    CHECK(draw(one, style, 1) == chart);

    // The same chart among others, whatever the threads.
    std::vector<Series> many(40, one[0]);
    for (std::size_t i = 0; i < many.size(); ++i) many[i].push_back(static_cast<double>(i));
    many[33] = one[0];
    const Pixels serial = draw(many, style, 1);
    CHECK(serial == draw(many, style, 4));
    const auto begin = serial.begin() + 33 * static_cast<std::ptrdiff_t>(chart.size());
    CHECK(std::equal(chart.begin(), chart.end(), begin));

    lineup::ChartStyle plain;
    plain.markers = false;
    CHECK(ink(draw(one, plain, 1)) < ink(chart));
    lineup::ChartStyle words;
    words.axis_words = true;
    CHECK(draw(one, words, 1) != chart);

    // Fixed limits: values beyond them leave through the frame and draw nothing outside it.
    lineup::ChartStyle fixed{.width = 224, .height = 112, .y_limits = lineup::Range{0, 100}};
    const Pixels beyond = draw({{50, 1e150, -1e150, 50}}, fixed, 1);
    CHECK(!is_ink(&beyond[3 * 223]) && ink(beyond) > 50);
}

void test_awkward_series() {
    Series walk(100000);
    for (std::size_t i = 0; i < walk.size(); ++i) {
        walk[i] = std::sin(static_cast<double>(i) * 0.37) * static_cast<double>(i % 977);
    }
    const std::vector<Series> awkward{{3},
                                      {0},
                                      {5, 5, 5},
                                      {1e-12, 2e-12, 0},
                                      {1e12, -1e12, 5},
                                      {1e12, std::nextafter(1e12, kInf)},
                                      {5e-324, 1e-323},
                                      {1e150, -1e150},
                                      walk};
    for (const auto& [width, height] : {std::pair{588, 308}, {224, 112}, {168, 84}}) {
        for (const Series& series : awkward) {
            const lineup::ChartStyle style{.width = width, .height = height};
            CHECK(ink(draw({series}, style, 1)) >= 4);
        }
    }
}

void test_errors() {
    using Bad = std::invalid_argument;
    const lineup::ChartStyle style;
    CHECK_THROWS(draw({{1}, {1, std::nan("")}}, style, 1), Bad,
                 "series[1]: expected finite values, got nan at step 1");
    CHECK_THROWS(draw({{kInf}}, style, 1), Bad,
                 "series[0]: expected finite values, got inf at step 0");
    CHECK_THROWS(draw({{1e151}}, style, 1), Bad,
                 "series[0]: expected magnitudes up to 1e150, got 1.000e+151 at step 0");
    CHECK_THROWS(draw({{}}, style, 1), Bad, "series[0]: expected values, got none");
    CHECK_THROWS(draw({{1}}, {.width = 100}, 1), Bad,
                 "width: expected 168 to 8192 pixels, got 100");
    CHECK_THROWS(draw({{1}}, {.height = 9000}, 1), Bad,
                 "height: expected 84 to 8192 pixels, got 9000");
    CHECK_THROWS(draw({{1}}, {.y_limits = lineup::Range{2, 1}}, 1), Bad,
                 "y_limits: expected lo < hi, got 2.000000, 1.000000");
    CHECK_THROWS(draw({{1}}, {.y_limits = lineup::Range{0, kInf}}, 1), Bad,
                 "y_limits: expected finite values, got inf at step 1");
    Pixels small(10);
    const std::array<double, 2> values{1, 2};
    const std::array<std::span<const double>, 1> series{values};
    CHECK_THROWS(lineup::render_charts(series, style, small), Bad,
                 "out: expected 543312 bytes, got 10");
    CHECK_THROWS(lineup::glyph('?'), Bad, "text: expected a drawable character, got '?'");
}

}  // namespace

int main() {
    test_ticks();
    test_pixels();
    test_awkward_series();
    test_errors();
    return check_result();
}
