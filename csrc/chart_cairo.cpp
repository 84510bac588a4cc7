#include "chart_cairo.hpp"

#include <cstring>
#include <new>
#include <numbers>
#include <stdexcept>
#include <string>

namespace lineup {

void require_success(cairo_t* context) {
    const cairo_status_t status = cairo_status(context);
    if (status == CAIRO_STATUS_NO_MEMORY) throw std::bad_alloc();
    if (status != CAIRO_STATUS_SUCCESS) {
        throw std::runtime_error(std::string("cairo: ") + cairo_status_to_string(status));
    }
}

CairoCanvas::CairoCanvas(const ChartStyle& style)
    : style_(style),
      sizes_(chart_sizes(style)),
      surface_(cairo_image_surface_create(CAIRO_FORMAT_RGB24, style.width, style.height)),
      context_(cairo_create(surface_.get())) {
    cairo_set_line_cap(context_.get(), CAIRO_LINE_CAP_ROUND);
    cairo_set_line_join(context_.get(), CAIRO_LINE_JOIN_ROUND);
    require_success(context_.get());
}

void CairoCanvas::draw(std::span<const double> values) {
    const Layout layout = chart_layout(style_, values, chart_x_ticks(values.size()));
    cairo_set_source_rgb(context_.get(), 1, 1, 1);
    cairo_paint(context_.get());
    fill(layout.grid, kGrid);
    draw_series(layout.box, values);
    fill(layout.frame, kFrame);
    source(kText);
    for (const Label& label : layout.labels) {
        draw_text(context_.get(), label.text, label.x, label.y, sizes_.text, label.direction);
    }
    require_success(context_.get());
    cairo_surface_flush(surface_.get());
}

void CairoCanvas::source(Color color) {
    cairo_set_source_rgb(context_.get(), color.red / 255.0, color.green / 255.0,
                         color.blue / 255.0);
}

void CairoCanvas::fill(const std::vector<Rectangle>& rectangles, Color color) {
    for (const Rectangle& r : rectangles) {
        cairo_rectangle(context_.get(), r.x, r.y, r.width, r.height);
    }
    source(color);
    cairo_fill(context_.get());
}

void CairoCanvas::draw_series(const Box& box, std::span<const double> values) {
    const std::vector<Point> points = chart_points(box, values, style_.exact ? 0 : 1);
    cairo_save(context_.get());
    cairo_rectangle(context_.get(), box.left, box.top, box.right - box.left + 1,
                    box.bottom - box.top + 1);
    cairo_clip(context_.get());
    source(kInk);
    stroke_line(box, points);
    if (has_markers(style_, box, values.size())) fill_markers(points);
    cairo_restore(context_.get());
}

void CairoCanvas::stroke_line(const Box& box, const std::vector<Point>& points) {
    cairo_set_line_width(context_.get(), sizes_.line);
    const std::size_t most = segments_per_stroke(box, points.size());
    for (std::size_t i = 0; i + 1 < points.size();) {
        const std::size_t end = std::min(points.size() - 1, i + most);
        cairo_move_to(context_.get(), points[i].x, points[i].y);
        while (i < end) {
            ++i;
            cairo_line_to(context_.get(), points[i].x, points[i].y);
        }
        cairo_stroke(context_.get());
    }
}

void CairoCanvas::fill_markers(const std::vector<Point>& points) {
    for (std::size_t i = 0; i < points.size();) {
        const std::size_t end = std::min(points.size(), i + kMarkersPerFill);
        for (; i < end; ++i) {
            cairo_new_sub_path(context_.get());
            cairo_arc(context_.get(), points[i].x, points[i].y, sizes_.marker, 0.0,
                      2 * std::numbers::pi);
        }
        cairo_fill(context_.get());
    }
}

void CairoCanvas::take_rows(int begin, int end, std::uint8_t* out) {
    const unsigned char* data = cairo_image_surface_get_data(surface_.get());
    const int stride = cairo_image_surface_get_stride(surface_.get());
    for (int row = begin; row < end; ++row) {
        const unsigned char* line = data + static_cast<std::ptrdiff_t>(row) * stride;
        for (int column = 0; column < style_.width; ++column) {
            std::uint32_t rgb;  // 0x00RRGGBB in the machine's byte order
            std::memcpy(&rgb, line + 4 * column, sizeof rgb);
            *out++ = static_cast<std::uint8_t>(rgb >> 16);
            *out++ = static_cast<std::uint8_t>(rgb >> 8);
            *out++ = static_cast<std::uint8_t>(rgb);
        }
    }
}

}  // namespace lineup
