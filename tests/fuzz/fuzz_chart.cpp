// Charts of both engines: what is refused, where bytes are written, where ink may be, and that a
// chart does not depend on those around it.
#include <algorithm>

#include "chart.hpp"
#include "chart_layout.hpp"
#include "input.hpp"

namespace {

using lineup::ChartEngine;
using lineup::ChartStyle;
using Pixels = std::vector<std::uint8_t>;
using Series = std::vector<std::vector<double>>;

constexpr std::size_t kGuard = 64;
constexpr std::uint8_t kGuardByte = 0xA5;
constexpr int kTextSlack = 8;  // of 255: one engine strokes characters alone, one whole texts

ChartStyle read_style(Input& in) {
    constexpr int kWidths[] = {588, 600, 224, 168, 8193, 0};
    constexpr int kHeights[] = {308, 300, 112, 84, 83, 112};
    ChartStyle style;
    const std::size_t size = in.number(0, 15);
    style.width = size < 6 ? kWidths[size] : static_cast<int>(in.number(160, 415));
    style.height = size < 6 ? kHeights[size] : static_cast<int>(in.number(80, 335));
    const std::uint8_t flags = in.byte();
    style.axis_words = flags & 1;
    style.markers = flags & 2;
    style.exact = flags & 4;
    style.engine = flags & 8 ? ChartEngine::cairo : ChartEngine::native;
    if (flags & 16) style.y_limits = lineup::Range{in.value(), in.value()};
    return style;
}

std::vector<double> read_series(Input& in) {
    const std::size_t kind = in.number(0, 9);
    if (kind < 7) return in.values(in.number(kind == 0 ? 0 : 1, 60));
    // Long ones: steps of few sizes at a magnitude, so that columns hold ties, spikes, constants.
    std::vector<double> values(in.number(1, 3000));
    Noise noise(in.bits(2));
    const double size = in.value(), offset = in.value();
    const std::uint64_t choices = in.number(1, 40);
    for (double& x : values) x = offset + size * static_cast<double>(noise.below(choices));
    return values;
}

bool fits(const ChartStyle& style) {
    if (style.width < lineup::kLeastChartWidth || style.width > lineup::kMostChartSide)
        return false;
    if (style.height < lineup::kLeastChartHeight || style.height > lineup::kMostChartSide)
        return false;
    if (!style.y_limits) return true;
    const auto [lo, hi] = *style.y_limits;
    return is_good(lo) && is_good(hi) && lo < hi;
}

Pixels draw(const Series& series, const ChartStyle& style, int threads) {
    const std::vector<std::span<const double>> views(series.begin(), series.end());
    const std::size_t size = series.size() * lineup::chart_bytes(style);
    Pixels pixels(size + 2 * kGuard, kGuardByte);
    lineup::render_charts(views, style, std::span(pixels).subspan(kGuard, size), threads);
    for (std::size_t i = 0; i < kGuard; ++i) {
        EXPECT(pixels[i] == kGuardByte && pixels[kGuard + size + i] == kGuardByte);
    }
    return {pixels.begin() + kGuard, pixels.end() - kGuard};
}

lineup::Box frame_of(const ChartStyle& style, std::span<const double> values) {
    return lineup::chart_layout(style, values, lineup::chart_x_ticks(values.size())).box;
}

// There is colour, only within the frame. Outside it the engines agree but for rounding; inside, a
// pixel of one is hardly ever white where the other is full ink.
void check_chart(const ChartStyle& style, const std::vector<double>& values, const Pixels& chart) {
    const lineup::Box box = frame_of(style, values);
    ChartStyle other_style = style;
    other_style.engine =
        style.engine == ChartEngine::cairo ? ChartEngine::native : ChartEngine::cairo;
    const Pixels other = draw({values}, other_style, 1);
    std::size_t ink = 0, astray = 0;
    for (int y = 0; y < style.height; ++y) {
        for (int x = 0; x < style.width; ++x) {
            const auto at = static_cast<std::size_t>(3 * (y * style.width + x));
            const bool inside = x >= box.left && x <= box.right && y >= box.top && y <= box.bottom;
            const int tint = chart[at + 2] - chart[at];  // everything but the line is grey
            EXPECT(inside ? tint >= 0 : tint == 0 && chart[at + 1] == chart[at]);
            ink += tint > 40 ? 1 : 0;
            const int off = std::abs(chart[at] - other[at]);
            EXPECT(inside || off <= kTextSlack);
            astray += off > 128 ? 1 : 0;
        }
    }
    EXPECT(style.y_limits || ink > 0);
    const bool all_points = style.exact || values.size() <= static_cast<std::size_t>(box.columns());
    EXPECT(!all_points || astray <= ink / 20 + 2);
}

}  // namespace

void fuzz(Input& in) {
    const ChartStyle style = read_style(in);
    Series series;
    for (std::size_t n = in.number(0, 3); n > 0; --n) series.push_back(read_series(in));
    bool good = fits(style);
    for (const auto& values : series) good = good && !values.empty() && all_good(values);
    Pixels all;
    EXPECT(refused([&] { all = draw(series, style, 2); }) != good);
    if (!good) return;
    const auto bytes = static_cast<std::ptrdiff_t>(lineup::chart_bytes(style));
    for (std::size_t i = 0; i < series.size(); ++i) {
        const auto begin = all.begin() + static_cast<std::ptrdiff_t>(i) * bytes;
        const Pixels chart(begin, begin + bytes);
        EXPECT(chart == draw({series[i]}, style, 1));
        check_chart(style, series[i], chart);
    }
}
