#include "chart_masks.hpp"

#include <cairo.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <memory>
#include <numbers>
#include <stdexcept>
#include <string>
#include <string_view>

#include "chart_cairo.hpp"
#include "cover.hpp"
#include "glyphs.hpp"

namespace lineup {
namespace {

// Coverage from a surface with one byte a pixel, cut down to what is not empty; whole groups wide.
Mask trimmed(const unsigned char* data, int stride, int side, int origin) {
    const auto at = [&](int x, int y) { return data[std::ptrdiff_t{y} * stride + x]; };
    int left = side;
    int right = -1;
    int top = side;
    int bottom = -1;
    for (int y = 0; y < side; ++y) {
        for (int x = 0; x < side; ++x) {
            if (at(x, y) == 0) continue;
            left = std::min(left, x);
            right = std::max(right, x);
            top = std::min(top, y);
            bottom = y;
        }
    }
    right = left + (right - left + 4) / 4 * 4 - 1;
    Mask mask{left - origin, top - origin, right - left + 1, bottom - top + 1, 0, {}};
    for (int y = top; y <= bottom; ++y) {
        for (int x = left; x <= right; ++x) mask.cover.push_back(at(x, y));
    }
    return mask;
}

double height_at(const std::vector<Point>& edge, double x) {
    std::size_t i = 1;
    while (i + 1 < edge.size() && edge[i].x < x) ++i;
    const Point& a = edge[i - 1];
    const Point& b = edge[i];
    return a.y + (std::clamp(x, a.x, b.x) - a.x) / (b.x - a.x) * (b.y - a.y);
}

Mask stroked(std::string_view text, Direction direction, const TextSizes& sizes) {
    constexpr int kSide = 48;
    constexpr int kOrigin = kSide / 2;
    const CairoSurface surface(cairo_image_surface_create(CAIRO_FORMAT_A8, kSide, kSide));
    const CairoContext context(cairo_create(surface.get()));
    cairo_set_line_cap(context.get(), CAIRO_LINE_CAP_ROUND);
    cairo_set_line_join(context.get(), CAIRO_LINE_JOIN_ROUND);
    draw_text(context.get(), text, kOrigin, kOrigin, sizes, direction);
    require_success(context.get());
    cairo_surface_flush(surface.get());
    return trimmed(cairo_image_surface_get_data(surface.get()),
                   cairo_image_surface_get_stride(surface.get()), kSide, kOrigin);
}

// A circle as Cairo flattens it: both edges from left to right, around the origin.
struct Circle {
    std::vector<Point> upper;
    std::vector<Point> lower;
};

Circle flattened(double radius) {
    const CairoSurface surface(cairo_image_surface_create(CAIRO_FORMAT_A8, 1, 1));
    const CairoContext context(cairo_create(surface.get()));
    cairo_arc(context.get(), 0, 0, radius, 0, 2 * std::numbers::pi);
    require_success(context.get());
    const std::unique_ptr<cairo_path_t, void (*)(cairo_path_t*)> path(
        cairo_copy_path_flat(context.get()), cairo_path_destroy);
    std::vector<Point> around;  // from the right end over the lower half: y grows downwards
    for (int i = 0; i < path->num_data; i += path->data[i].header.length) {
        const cairo_path_data_t* step = path->data + i;
        if (step->header.length > 1) around.push_back({step[1].point.x, step[1].point.y});
    }
    const auto less = [](const Point& a, const Point& b) { return a.x < b.x; };
    const auto left = std::min_element(around.begin(), around.end(), less);
    Circle circle;
    circle.lower.assign(around.begin(), left + 1);
    std::reverse(circle.lower.begin(), circle.lower.end());
    circle.upper.assign(left, around.end());
    return circle;
}

// Coverage of the circle around (x, y).
MarkerMasks::Rows covered(const Circle& circle, double x, double y, Cover& cover) {
    constexpr int kSide = MarkerMasks::kSide;
    std::vector<double> cuts;  // where an edge bends or a column begins
    for (const Point& point : circle.upper) cuts.push_back(point.x + x);
    for (const Point& point : circle.lower) cuts.push_back(point.x + x);
    const auto [first, last] = std::minmax_element(cuts.begin(), cuts.end());
    const double begin = *first;
    const double end = *last;
    for (int column = 0; column <= kSide; ++column) {
        if (column > begin && column < end) cuts.push_back(column);
    }
    std::sort(cuts.begin(), cuts.end());
    MarkerMasks::Rows rows{};
    for (int block = 0; block < kSide; block += Cover::kColumns) {
        for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
            const int column = static_cast<int>(std::floor(0.5 * (cuts[i] + cuts[i + 1]))) - block;
            if (column < 0 || column >= Cover::kColumns || cuts[i] == cuts[i + 1]) continue;
            const auto edge = [&](const std::vector<Point>& points, double at) {
                return static_cast<float>(y + height_at(points, at - x));
            };
            const auto width = static_cast<float>(cuts[i + 1] - cuts[i]);
            cover.add(column, width, edge(circle.upper, cuts[i]), edge(circle.upper, cuts[i + 1]));
            cover.add(column, -width, edge(circle.lower, cuts[i]), edge(circle.lower, cuts[i + 1]));
        }
        cover.flush([&](int row, int n, std::uint32_t coverage) {
            for (int i = row; i < row + n; ++i) {
                rows[static_cast<std::size_t>(i)] |= MarkerMasks::Row{coverage} << (8 * block);
            }
        });
    }
    return rows;
}

}  // namespace

GlyphMasks::GlyphMasks(const TextSizes& sizes) {
    for (const Glyph& glyph : lineup::glyphs()) {
        const std::string_view text(&glyph.character, 1);
        for (const Direction direction : {Direction::right, Direction::up}) {
            Mask& mask = masks_[static_cast<std::size_t>(direction)]
                               [static_cast<std::size_t>(glyph.character)];
            mask = stroked(text, direction, sizes);
            mask.advance = text_width(text, sizes) - 1 + sizes.spacing;
        }
    }
}

MarkerMasks::MarkerMasks(double radius) {
    if (!(radius > 0 && radius < 2.9)) {
        throw std::invalid_argument("radius: expected up to 2.9 pixels, got " +
                                    std::to_string(radius));
    }
    const Circle circle = flattened(radius);
    Cover cover(kSide);
    for (std::size_t i = 0; i < masks_.size(); ++i) {
        const double x = kCentre + static_cast<double>(i % kPhases) / kPhases;
        const double y = kCentre + static_cast<double>(i / kPhases) / kPhases;
        masks_[i] = covered(circle, x, y, cover);
    }
}

const ChartMasks& chart_masks(const ChartSizes& sizes) {
    // Whoever is first leaves them here, for good. No lock, which a fork could leave closed.
    static std::array<std::atomic<const ChartMasks*>, 2> kept;
    std::atomic<const ChartMasks*>& here = kept[sizes.compact ? 1 : 0];
    if (const ChartMasks* masks = here.load(std::memory_order_acquire)) return *masks;
    auto made = std::make_unique<const ChartMasks>(
        ChartMasks{GlyphMasks(sizes.text), MarkerMasks(sizes.marker)});
    const ChartMasks* other = nullptr;
    if (!here.compare_exchange_strong(other, made.get(), std::memory_order_acq_rel)) return *other;
    return *made.release();
}

}  // namespace lineup
