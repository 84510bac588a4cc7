// The engine "cairo": everything on a chart drawn by Cairo.
#pragma once

#include <cairo.h>

#include <cstdint>
#include <memory>
#include <span>

#include "chart_layout.hpp"

namespace lineup {

struct CairoFree {
    void operator()(cairo_surface_t* surface) const { cairo_surface_destroy(surface); }
    void operator()(cairo_t* context) const { cairo_destroy(context); }
};
using CairoSurface = std::unique_ptr<cairo_surface_t, CairoFree>;
using CairoContext = std::unique_ptr<cairo_t, CairoFree>;

// Throws std::bad_alloc or std::runtime_error if drawing on the context failed.
void require_success(cairo_t* context);

// A reused image surface with a context to draw on it.
class CairoCanvas {
  public:
    explicit CairoCanvas(const ChartStyle& style);

    // Takes up a chart.
    void draw(std::span<const double> values);

    // Writes rows begin to end of the chart, RGB.
    void take_rows(int begin, int end, std::uint8_t* out);

  private:
    void source(Color color);
    void fill(const std::vector<Rectangle>& rectangles, Color color);
    void draw_series(const Box& box, std::span<const double> values);
    void stroke_line(const Box& box, const std::vector<Point>& points);
    void fill_markers(const std::vector<Point>& points);

    ChartStyle style_;
    const ChartSizes& sizes_;
    CairoSurface surface_;
    CairoContext context_;
};

}  // namespace lineup
