#include "chart_native.hpp"

#include <cmath>
#include <cstring>

#include "stroke.hpp"

namespace lineup {
namespace {

constexpr int kParts = 4;  // of a pixel column, in which long series are thinned out

int advance(char character, const TextSizes& sizes) {
    return text_width(std::string_view(&character, 1), sizes) - 1 + sizes.spacing;
}

}  // namespace

NativeCanvas::NativeCanvas(const ChartStyle& style)
    : style_(style),
      sizes_(chart_sizes(style)),
      glyphs_(sizes_.text),
      markers_(sizes_.marker),
      stroker_(style.width, style.height, sizes_.line / 2) {}

void NativeCanvas::draw(std::span<const double> values, std::uint8_t* out) {
    out_ = out;
    const auto [ticks, is_new] = x_ticks_.try_emplace(values.size());
    if (is_new) ticks->second = chart_x_ticks(values.size());
    const Layout layout = chart_layout(style_, values, ticks->second);
    std::memset(out, 255, chart_bytes(style_));
    fill(layout.grid, grid_);
    draw_series(layout.box, values);
    fill(layout.frame, frame_);
    for (const Label& label : layout.labels) draw_label(label);
}

void NativeCanvas::fill(const std::vector<Rectangle>& rectangles, const Ink& ink) {
    for (const Rectangle& r : rectangles) {
        for (int y = r.y; y < r.y + r.height; ++y) ink.fill(pixel(r.x, y), r.width);
    }
}

void NativeCanvas::draw_series(const Box& box, std::span<const double> values) {
    const std::vector<Point> points = chart_points(box, values, style_.exact ? 0 : kParts);
    stroke_line(box, points);
    if (!has_markers(style_, box, values.size())) return;
    for (const Point& point : points) draw_marker(box, point);
}

// In the same strokes as with Cairo: where two meet, both cover.
void NativeCanvas::stroke_line(const Box& box, const std::vector<Point>& points) {
    // The window ends before the frame's right line, which covers what would be there.
    stroker_.set_window(box.right - box.left, box.bottom - box.top + 1);
    const auto paint = [&](int column, int row, Float4 coverage) {
        const Float4 none = Float4{} + 0.5f;
        const Float4 full = Float4{} + 255.5f;
        Float4 levels = coverage * 255.0f + none;
        levels = levels > none ? levels : none;
        levels = levels < full ? levels : full;
        const Int4 whole = __builtin_convertvector(levels, Int4);
        std::array<std::uint32_t, 4> cover;
        std::memcpy(cover.data(), &whole, sizeof whole);
        if ((cover[0] | cover[1] | cover[2] | cover[3]) == 0) return;
        ink_.blend4(pixel(box.left + column, box.top + row), cover);
    };
    const std::size_t most = segments_per_stroke(box, points.size());
    for (std::size_t i = 0; i + 1 < points.size();) {
        const std::size_t end = std::min(points.size() - 1, i + most);
        chunk_.clear();
        for (std::size_t j = i; j <= end; ++j) {
            chunk_.push_back({points[j].x - box.left, points[j].y - box.top});
        }
        stroker_.stroke(chunk_, paint);
        i = end;
    }
}

void NativeCanvas::draw_marker(const Box& box, Point point) {
    constexpr int kPhases = MarkerMasks::kPhases;
    constexpr int kSide = MarkerMasks::kSide;
    const int x = static_cast<int>(std::floor(point.x * kPhases + 0.5));
    const int y = static_cast<int>(std::floor(point.y * kPhases + 0.5));
    const int left = (x >> MarkerMasks::kPhaseBits) - MarkerMasks::kCentre;
    const int top = (y >> MarkerMasks::kPhaseBits) - MarkerMasks::kCentre;
    if (top + kSide <= box.top || top > box.bottom) return;
    const MarkerMasks::Cover& mask = markers_.at(x & (kPhases - 1), y & (kPhases - 1));
    for (int row = std::max(0, box.top - top); row < std::min(kSide, box.bottom + 1 - top); ++row) {
        ink_.blend(pixel(left, top + row), mask.data() + row * kSide, kSide);
    }
}

void NativeCanvas::draw_label(const Label& label) {
    int pen = 0;
    for (const char character : label.text) {
        const Mask& mask = glyphs_.at(character, label.direction);
        const int across = label.direction == Direction::right ? pen : 0;
        const int up = label.direction == Direction::up ? pen : 0;
        const int x = label.x + across + mask.x;
        const int y = label.y - up + mask.y;
        const int begin = std::max(0, -x);
        const int end = std::min(mask.width, style_.width - x);
        for (int row = std::max(0, -y); row < std::min(mask.height, style_.height - y); ++row) {
            text_.blend(pixel(x + begin, y + row), mask.cover.data() + row * mask.width + begin,
                        end - begin);
        }
        pen += advance(character, sizes_.text);
    }
}

}  // namespace lineup
