// Line charts of series, as RGB pixels in the caller's buffer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "parallel.hpp"

namespace lineup {

struct Range {
    double lo;
    double hi;
};

// native: our own exact coverage, fast. cairo: everything by Cairo, slow. They agree within a few
// levels of 255 where the line, its markers and texts are, and exactly elsewhere.
enum class ChartEngine { native, cairo };

// Below 400 x 200 pixels, texts and lines are drawn smaller.
struct ChartStyle {
    int width = 588;
    int height = 308;
    std::optional<Range> y_limits = std::nullopt;  // none: the range of the series padded by 8 %
    bool axis_words = false;                       // "time" and "value" beside the axes
    bool markers = true;  // a dot on every point, as long as they are 2 px apart or more
    bool exact = false;   // every point of the line, however long
    ChartEngine engine = ChartEngine::native;
};

inline constexpr int kLeastChartWidth = 168;
inline constexpr int kLeastChartHeight = 84;
inline constexpr int kMostChartSide = 8192;

// Draws chart i of `series` to out[i * height * width * 3 ...], rows from the top, RGB.
// White ground, frame, light grid, a few ticks with texts, one line with markers. Of long series,
// unless the style is exact, the first, lowest, highest and last point is drawn of every pixel
// column (cairo) or eighth of one (native). Values beyond fixed limits are cut off at the frame.
// Throws std::invalid_argument on an empty series, NaN, infinities, magnitudes above 1e150, a style
// out of range, or a buffer of another size.
void render_charts(std::span<const std::span<const double>> series, const ChartStyle& style,
                   std::span<std::uint8_t> out, int threads = 0, const Poll& poll = {});

// Draws the same charts one by one, in strips of n rows (the last may be lower) from the top down,
// and calls use(i, first row, the strip's pixels) on the thread that drew chart i.
using UseStrip = std::function<void(std::size_t, int, const std::uint8_t*)>;
void draw_charts(std::span<const std::span<const double>> series, const ChartStyle& style, int n,
                 int threads, const Poll& poll, const UseStrip& use);

// Bytes of one chart.
std::size_t chart_bytes(const ChartStyle& style);

// Throws what render_charts throws on bad series and styles.
void require_charts(std::span<const std::span<const double>> series, const ChartStyle& style);

// Version of the Cairo library in use, like "1.16.0".
std::string cairo_version();

}  // namespace lineup
