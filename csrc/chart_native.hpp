// The engine "native": characters and dots from masks, the line by our own exact coverage, laid on
// the ground row by row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "chart_ground.hpp"
#include "chart_layout.hpp"
#include "chart_masks.hpp"
#include "ink.hpp"
#include "ink_layer.hpp"
#include "stroke.hpp"

namespace lineup {

// What charts of one style share.
class NativeCanvas {
  public:
    explicit NativeCanvas(const ChartStyle& style);

    // Takes up a chart.
    void draw(std::span<const double> values);

    // Writes rows begin to end of the chart, RGB. Every row once, from the top down.
    void take_rows(int begin, int end, std::uint8_t* out);

  private:
    void stroke_line(const std::vector<Point>& points, bool dots);
    void add_marker(Point point);
    void write_label(const Label& label, int begin, int end, std::uint8_t* out) const;

    ChartStyle style_;
    const ChartSizes& sizes_;
    const ChartMasks& masks_;
    Ink ink_{kInk};
    Ink text_{kText};
    ChartGround ground_;
    InkLayer layer_;
    Stroker stroker_;
    std::vector<Point> chunk_;
    std::map<std::size_t, Ticks> x_ticks_;  // by the length of the series
    Layout layout_{};
};

}  // namespace lineup
