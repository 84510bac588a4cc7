#include "chart_masks.hpp"

#include <cairo.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <numbers>
#include <stdexcept>
#include <string>
#include <string_view>

#include "chart_cairo.hpp"

namespace lineup {
namespace {

// Coverage from a surface with one byte a pixel, cut down to what is not empty.
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
    Mask mask{left - origin, top - origin, right - left + 1, bottom - top + 1, {}};
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

}  // namespace

const Mask& GlyphMasks::at(char character, Direction direction) {
    const auto [found, is_new] = masks_.try_emplace({character, direction});
    if (!is_new) return found->second;
    constexpr int kSide = 48;
    constexpr int kOrigin = kSide / 2;
    const CairoSurface surface(cairo_image_surface_create(CAIRO_FORMAT_A8, kSide, kSide));
    const CairoContext context(cairo_create(surface.get()));
    cairo_set_line_cap(context.get(), CAIRO_LINE_CAP_ROUND);
    cairo_set_line_join(context.get(), CAIRO_LINE_JOIN_ROUND);
    draw_text(context.get(), std::string_view(&character, 1), kOrigin, kOrigin, sizes_, direction);
    require_success(context.get());
    cairo_surface_flush(surface.get());
    found->second = trimmed(cairo_image_surface_get_data(surface.get()),
                            cairo_image_surface_get_stride(surface.get()), kSide, kOrigin);
    return found->second;
}

MarkerMasks::MarkerMasks(double radius)
    : masks_(std::size_t{kPhases} * kPhases), made_(masks_.size()) {
    if (!(radius > 0 && radius < 2.9)) {
        throw std::invalid_argument("radius: expected up to 2.9 pixels, got " +
                                    std::to_string(radius));
    }
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
    lower_.assign(around.begin(), left + 1);
    std::reverse(lower_.begin(), lower_.end());
    upper_.assign(left, around.end());
}

const MarkerMasks::Cover& MarkerMasks::at(int x_phase, int y_phase) {
    const auto index = static_cast<std::size_t>(y_phase * kPhases + x_phase);
    if (!made_[index]) {
        make(kCentre + static_cast<double>(x_phase) / kPhases,
             kCentre + static_cast<double>(y_phase) / kPhases, masks_[index]);
        made_[index] = 1;
    }
    return masks_[index];
}

void MarkerMasks::make(double x, double y, Cover& mask) {
    std::vector<double> cuts;  // where an edge bends or a column begins
    for (const Point& point : upper_) cuts.push_back(point.x + x);
    for (const Point& point : lower_) cuts.push_back(point.x + x);
    const auto [first, last] = std::minmax_element(cuts.begin(), cuts.end());
    const double begin = *first;
    const double end = *last;
    for (int column = 0; column <= kSide; ++column) {
        if (column > begin && column < end) cuts.push_back(column);
    }
    std::sort(cuts.begin(), cuts.end());
    for (int block = 0; block < kSide; block += lineup::Cover::kColumns) {
        for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
            const int column = static_cast<int>(std::floor(0.5 * (cuts[i] + cuts[i + 1]))) - block;
            if (column < 0 || column >= lineup::Cover::kColumns || cuts[i] == cuts[i + 1]) continue;
            const auto edge = [&](const std::vector<Point>& points, double at) {
                return static_cast<float>(y + height_at(points, at - x));
            };
            const auto width = static_cast<float>(cuts[i + 1] - cuts[i]);
            cover_.add(column, width, edge(upper_, cuts[i]), edge(upper_, cuts[i + 1]));
            cover_.add(column, -width, edge(lower_, cuts[i]), edge(lower_, cuts[i + 1]));
        }
        cover_.flush([&](int row, Float4 coverage) {
            for (int i = 0; i < lineup::Cover::kColumns; ++i) {
                mask[static_cast<std::size_t>(row * kSide + block + i)] =
                    static_cast<std::uint8_t>(std::clamp(coverage[i] * 255 + 0.5f, 0.0f, 255.0f));
            }
        });
    }
}

}  // namespace lineup
