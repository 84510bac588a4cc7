// Where everything on a chart goes, in pixels: what the engines that draw it share.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "chart.hpp"
#include "chart_text.hpp"
#include "ticks.hpp"

namespace lineup {

// Pixel sizes of what is drawn.
struct ChartSizes {
    bool compact;
    TextSizes text;
    int tick;
    int gap;    // between tick and text, and between text and axis word
    int inset;  // between the frame and the area that shows the data range
    double line;
    double marker;  // radius
    int pad_left;
    int pad_right;
    int pad_top;
    int pad_bottom;
    int y_intervals;
};

const ChartSizes& chart_sizes(const ChartStyle& style);

struct Color {
    int red;
    int green;
    int blue;
};
inline constexpr Color kInk{31, 119, 180};
inline constexpr Color kGrid{230, 230, 230};
inline constexpr Color kFrame{64, 64, 64};
inline constexpr Color kText{32, 32, 32};

inline constexpr std::size_t kMarkersPerFill = 12;

struct Point {
    double x;
    double y;
};

// Pixels of the frame's lines, and the data range that the inset area inside shows.
struct Box {
    int left;
    int right;
    int top;
    int bottom;
    int inset;
    Range x_range;
    Range y_range;

    double x(double value) const {
        const double start = left + 0.5 + inset;
        const double stop = right + 0.5 - inset;
        return start + (value - x_range.lo) / (x_range.hi - x_range.lo) * (stop - start);
    }
    double y(double value) const {
        const double start = bottom + 0.5 - inset;
        const double stop = top + 0.5 + inset;
        const double share = (value - y_range.lo) / (y_range.hi - y_range.lo);
        // The clamp keeps values far outside fixed limits within Cairo's coordinates.
        return start + std::max(-4.0, std::min(5.0, share)) * (stop - start);
    }
    // Pixel columns inside the frame.
    int columns() const { return right - left - 1; }
};

struct Rectangle {
    int x;
    int y;
    int width;
    int height;
};

struct Label {
    std::string text;
    int x;  // the pixel where the baseline begins
    int y;
    Direction direction;
};

struct Layout {
    Box box;
    std::vector<Rectangle> grid;
    std::vector<Rectangle> frame;  // and tick marks; over the series
    std::vector<Label> labels;
};

// Ticks of the x-axis of a chart of n points.
Ticks chart_x_ticks(std::size_t n);

Layout chart_layout(const ChartStyle& style, std::span<const double> values, const Ticks& x_ticks);

// The points of the line. Pixel columns are cut into `parts`; where one has more than four points
// on average, only its first, lowest, highest and last are kept. 0 parts: all points.
std::vector<Point> chart_points(const Box& box, std::span<const double> values, int parts);

// Segments of the line that are stroked at a time: a few where points lie 2 px apart or more, since
// a long stroke costs Cairo several times as much; all where strokes would overlap at many places.
std::size_t segments_per_stroke(const Box& box, std::size_t n);

// Whether dots are drawn: closer than 2 px they would only thicken the line; a lone point has one.
bool has_markers(const ChartStyle& style, const Box& box, std::size_t n);

}  // namespace lineup
