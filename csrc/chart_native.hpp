// The engine "native": characters from masks that Cairo made, everything else by our own exact
// coverage, straight into the caller's pixels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "chart_layout.hpp"
#include "chart_masks.hpp"
#include "ink.hpp"
#include "stroke.hpp"

namespace lineup {

// What charts of one style share: masks and ticks, made when they are first needed.
class NativeCanvas {
  public:
    explicit NativeCanvas(const ChartStyle& style);

    // Draws a chart to `out`, RGB rows from the top.
    void draw(std::span<const double> values, std::uint8_t* out);

  private:
    std::uint8_t* pixel(int x, int y) { return out_ + 3 * (std::ptrdiff_t{y} * style_.width + x); }
    void fill(const std::vector<Rectangle>& rectangles, const Ink& ink);
    void draw_series(const Box& box, std::span<const double> values);
    void stroke_line(const Box& box, const std::vector<Point>& points);
    void draw_marker(const Box& box, Point point);
    void draw_label(const Label& label);

    ChartStyle style_;
    const ChartSizes& sizes_;
    Ink ink_{kInk};
    Ink grid_{kGrid};
    Ink frame_{kFrame};
    Ink text_{kText};
    GlyphMasks glyphs_;
    MarkerMasks markers_;
    Stroker stroker_;
    std::vector<Point> chunk_;
    std::map<std::size_t, Ticks> x_ticks_;  // by the length of the series
    std::uint8_t* out_ = nullptr;
};

}  // namespace lineup
