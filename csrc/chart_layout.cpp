#include "chart_layout.hpp"

#include <array>
#include <cmath>

namespace lineup {
namespace {

constexpr ChartSizes kNormal{false, {5, 8, 3, 1.25}, 4, 4, 5, 2.0, 2.6, 6, 10, 8, 6, 6};
constexpr ChartSizes kCompact{true, {3, 6, 2, 1.0}, 2, 2, 3, 1.4, 1.8, 1, 2, 1, 1, 4};
constexpr int kXIntervals = 6;
constexpr std::size_t kPointsPerPart = 4;
constexpr std::size_t kSegmentsPerStroke = 12;

int pixel(double coordinate) {
    return static_cast<int>(std::floor(coordinate));
}

Range x_range(std::size_t n) {
    return n > 1 ? Range{0.0, static_cast<double>(n) - 1} : Range{-0.5, 0.5};
}

Range extremes(std::span<const double> values) {
    constexpr std::size_t kLanes = 8;  // side by side, so that the compiler may use vectors
    std::array<double, kLanes> lows;
    std::array<double, kLanes> highs;
    lows.fill(values[0]);
    highs.fill(values[0]);
    std::size_t i = 0;
    for (; i + kLanes <= values.size(); i += kLanes) {
        for (std::size_t lane = 0; lane < kLanes; ++lane) {
            const double value = values[i + lane];
            lows[lane] = value < lows[lane] ? value : lows[lane];
            highs[lane] = value > highs[lane] ? value : highs[lane];
        }
    }
    double lo = *std::min_element(lows.begin(), lows.end());
    double hi = *std::max_element(highs.begin(), highs.end());
    for (; i < values.size(); ++i) {
        lo = std::min(lo, values[i]);
        hi = std::max(hi, values[i]);
    }
    return {lo, hi};
}

// The y-range: 8 % more on either side; around a constant 8 % of it, or 1 around 0.
Range padded(Range range) {
    double pad = 0.08 * (range.hi > range.lo ? range.hi - range.lo : std::abs(range.hi));
    if (pad == 0) pad = 1.0;
    return {range.lo - pad, range.hi + pad};
}

Box place(const ChartStyle& style, const ChartSizes& sizes, Range x, Range y,
          const Ticks& y_ticks) {
    int text = 0;
    for (const std::string& tick : y_ticks.texts) {
        text = std::max(text, text_width(tick, sizes.text));
    }
    const int letter = sizes.text.box_height + 1;
    const int word = style.axis_words ? letter + sizes.gap : 0;
    const int outside = sizes.gap + sizes.tick + word;
    return {.left = sizes.pad_left + text + outside,
            .right = style.width - 1 - sizes.pad_right,
            .top = sizes.pad_top,
            .bottom = style.height - 1 - sizes.pad_bottom - letter - outside,
            .inset = sizes.inset,
            .x_range = x,
            .y_range = y};
}

void place_lines(Layout& layout, const ChartSizes& sizes, const Ticks& xs, const Ticks& ys) {
    const Box& box = layout.box;
    const int width = box.right - box.left + 1;
    const int height = box.bottom - box.top + 1;
    layout.frame = {{box.left, box.top, width, 1},
                    {box.left, box.bottom, width, 1},
                    {box.left, box.top + 1, 1, height - 2},
                    {box.right, box.top + 1, 1, height - 2}};
    for (const double position : xs.positions) {
        const int x = pixel(box.x(position));
        layout.grid.push_back({x, box.top, 1, box.bottom - box.top});
        layout.frame.push_back({x, box.bottom + 1, 1, sizes.tick});
    }
    for (const double position : ys.positions) {
        const int y = pixel(box.y(position));
        layout.grid.push_back({box.left, y, box.right - box.left, 1});
        layout.frame.push_back({box.left - sizes.tick, y, sizes.tick, 1});
    }
}

void place_tick_texts(Layout& layout, const ChartStyle& style, const ChartSizes& sizes,
                      const Ticks& xs, const Ticks& ys) {
    const Box& box = layout.box;
    const int height = sizes.text.box_height;
    for (std::size_t i = 0; i < xs.texts.size(); ++i) {
        const int width = text_width(xs.texts[i], sizes.text);
        const int start = pixel(box.x(xs.positions[i])) - (width - 1) / 2;
        layout.labels.push_back({xs.texts[i], std::clamp(start, 0, style.width - width),
                                 box.bottom + sizes.tick + sizes.gap + 1 + height,
                                 Direction::right});
    }
    for (std::size_t i = 0; i < ys.texts.size(); ++i) {
        const int width = text_width(ys.texts[i], sizes.text);
        const int baseline = pixel(box.y(ys.positions[i])) + height / 2;
        layout.labels.push_back({ys.texts[i], box.left - sizes.tick - sizes.gap - width,
                                 std::clamp(baseline, height, style.height - 1), Direction::right});
    }
}

void place_words(Layout& layout, const ChartStyle& style, const ChartSizes& sizes) {
    const Box& box = layout.box;
    const int across = (box.left + box.right - text_width("time", sizes.text)) / 2;
    layout.labels.push_back(
        {"time", across, style.height - 1 - sizes.pad_bottom, Direction::right});
    const int down = (box.top + box.bottom + text_width("value", sizes.text)) / 2;
    layout.labels.push_back({"value", sizes.pad_left + sizes.text.box_height, down, Direction::up});
}

// The first of values[begin .. end) that is drawn at the height `y`; it is one of those that are
// at least (or at most) `limit`, which leaves room for rounding.
template <class Reaches>
std::size_t first_at(const Box& box, std::span<const double> values, std::size_t begin, double y,
                     const Reaches& reaches) {
    std::size_t i = begin;
    while (!reaches(values[i]) || box.y(values[i]) != y) ++i;
    return i;
}

// First, lowest, highest and last point of every part of a pixel column, in the order of time.
std::vector<Point> thinned(const Box& box, std::span<const double> values, int parts) {
    const double span = box.y_range.hi - box.y_range.lo;
    const double slack = 1e-12 * span;
    const double rate =
        static_cast<double>(values.size()) / (box.x(static_cast<double>(values.size())) - box.x(0));
    const auto column = [&](std::size_t i) {
        return std::floor(box.x(static_cast<double>(i)) * parts);
    };
    std::vector<Point> kept;
    for (std::size_t begin = 0; begin < values.size();) {
        const double here = column(begin);
        const double guess = std::max(0.0, std::ceil(((here + 1) / parts - box.x(0)) * rate));
        std::size_t end = std::clamp(static_cast<std::size_t>(guess), begin + 1, values.size());
        while (end < values.size() && column(end) == here) ++end;
        while (end - 1 > begin && column(end - 1) != here) --end;
        const Range range = extremes(values.subspan(begin, end - begin));
        // Far outside fixed limits many values are drawn at the same height.
        const double above = box.y_range.lo + 5 * span;
        const double below = box.y_range.lo - 4 * span;
        const double high = range.hi > below ? std::min(range.hi, above) - slack : range.lo;
        const double low = range.lo < above ? std::max(range.lo, below) + slack : range.hi;
        std::array<std::size_t, 4> chosen{
            begin,
            first_at(box, values, begin, box.y(range.hi), [&](double v) { return v >= high; }),
            first_at(box, values, begin, box.y(range.lo), [&](double v) { return v <= low; }),
            end - 1};
        std::sort(chosen.begin(), chosen.end());
        const auto last = std::unique(chosen.begin(), chosen.end());
        for (auto i = chosen.begin(); i != last; ++i) {
            kept.push_back({box.x(static_cast<double>(*i)), box.y(values[*i])});
        }
        begin = end;
    }
    return kept;
}

}  // namespace

const ChartSizes& chart_sizes(const ChartStyle& style) {
    return style.width < 400 || style.height < 200 ? kCompact : kNormal;
}

Ticks chart_x_ticks(std::size_t n) {
    const Range range = x_range(n);
    return nice_ticks(range.lo, range.hi, kXIntervals, true);
}

Layout chart_layout(const ChartStyle& style, std::span<const double> values, const Ticks& x_ticks) {
    const ChartSizes& sizes = chart_sizes(style);
    const Range y_range = style.y_limits ? *style.y_limits : padded(extremes(values));
    const Ticks y_ticks = nice_ticks(y_range.lo, y_range.hi, sizes.y_intervals);
    Layout layout{.box = place(style, sizes, x_range(values.size()), y_range, y_ticks),
                  .grid = {},
                  .frame = {},
                  .labels = {}};
    place_lines(layout, sizes, x_ticks, y_ticks);
    place_tick_texts(layout, style, sizes, x_ticks, y_ticks);
    if (style.axis_words) place_words(layout, style, sizes);
    return layout;
}

std::vector<Point> chart_points(const Box& box, std::span<const double> values, int parts) {
    const auto most = kPointsPerPart * static_cast<std::size_t>(parts * box.columns());
    if (parts > 0 && values.size() > most) return thinned(box, values, parts);
    std::vector<Point> points(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
        points[i] = {box.x(static_cast<double>(i)), box.y(values[i])};
    }
    return points;
}

std::size_t segments_per_stroke(const Box& box, std::size_t n) {
    return n <= static_cast<std::size_t>(box.columns()) / 2 ? kSegmentsPerStroke : n;
}

bool has_markers(const ChartStyle& style, const Box& box, std::size_t n) {
    return n == 1 || (style.markers && n <= static_cast<std::size_t>(box.columns()) / 2);
}

}  // namespace lineup
