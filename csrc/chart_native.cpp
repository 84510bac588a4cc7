#include "chart_native.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

namespace lineup {
namespace {

constexpr int kParts = 8;  // of a pixel column, in which long series are thinned out

static_assert(Cover::kColumns == InkLayer::kGroup);

}  // namespace

NativeCanvas::NativeCanvas(const ChartStyle& style)
    : style_(style),
      sizes_(chart_sizes(style)),
      masks_(chart_masks(sizes_)),
      ground_(style.width, style.height),
      layer_(style.width, style.height),
      stroker_(style.width, style.height, sizes_.line / 2) {}

void NativeCanvas::draw(std::span<const double> values) {
    const auto [ticks, is_new] = x_ticks_.try_emplace(values.size());
    if (is_new) ticks->second = chart_x_ticks(values.size());
    layout_ = chart_layout(style_, values, ticks->second);
    ground_.set(layout_);
    const std::vector<Point> points = chart_points(layout_.box, values, style_.exact ? 0 : kParts);
    const bool dots = has_markers(style_, layout_.box, values.size());
    stroke_line(points, dots);
    if (!dots) return;
    for (const Point& point : points) add_marker(point);
}

// In the same strokes as with Cairo: where two meet, both cover.
void NativeCanvas::stroke_line(const std::vector<Point>& points, bool dots) {
    // The window is what lies inside the frame. Its blocks are groups of the layer.
    const Box& box = layout_.box;
    const int left = box.left / InkLayer::kGroup * InkLayer::kGroup;
    const int top = box.top + 1;
    stroker_.set_window(box.right - left, box.bottom - top);
    const auto paint = [&](int block, int row, int n, std::uint32_t coverage) {
        layer_.add(left / InkLayer::kGroup + block, top + row, n, coverage);
    };
    const std::size_t most = segments_per_stroke(box, points.size());
    for (std::size_t i = 0; i + 1 < points.size();) {
        const std::size_t end = std::min(points.size() - 1, i + most);
        chunk_.clear();
        for (std::size_t j = i; j <= end; ++j) {
            chunk_.push_back({points[j].x - left, points[j].y - top});
        }
        if (dots) {
            stroker_.stroke_below_dots(chunk_, paint);
        } else {
            stroker_.stroke(chunk_, paint);
        }
        i = end;
    }
}

void NativeCanvas::add_marker(Point point) {
    constexpr int kPhases = MarkerMasks::kPhases;
    const int x = static_cast<int>(std::floor(point.x * kPhases + 0.5));
    const int y = static_cast<int>(std::floor(point.y * kPhases + 0.5));
    const int left = (x >> MarkerMasks::kPhaseBits) - MarkerMasks::kCentre;
    const int top = (y >> MarkerMasks::kPhaseBits) - MarkerMasks::kCentre;
    const int group = left / InkLayer::kGroup;
    const int shift = 8 * (left % InkLayer::kGroup);
    const int inside = layout_.box.top + 1;
    const MarkerMasks::Rows& rows = masks_.markers.at(x & (kPhases - 1), y & (kPhases - 1));
    const int end = std::min(MarkerMasks::kSide, layout_.box.bottom - top);
    for (int row = std::max(0, inside - top); row < end; ++row) {
        const MarkerMasks::Row cover = rows[static_cast<std::size_t>(row)];
        if (cover == 0) continue;
        const MarkerMasks::Row here = cover << shift;
        layer_.add(group, top + row, 1, static_cast<std::uint32_t>(here));
        layer_.add(group + 1, top + row, 1, static_cast<std::uint32_t>(here >> 32));
        layer_.add(group + 2, top + row, 1,
                   static_cast<std::uint32_t>(cover >> 32 >> (32 - shift)));
    }
}

void NativeCanvas::take_rows(int begin, int end, std::uint8_t* out) {
    const std::size_t stride = std::size_t{3} * static_cast<std::size_t>(style_.width);
    std::uint8_t* row = out;
    for (int y = begin; y < end; ++y, row += stride) {
        std::memcpy(row, ground_.row(y), stride);
        layer_.take_row(y, [&](int group, std::uint32_t cover) {
            ink_.blend4(row + std::ptrdiff_t{3} * InkLayer::kGroup * group, cover);
        });
    }
    for (const Label& label : layout_.labels) write_label(label, begin, end, out);
}

void NativeCanvas::write_label(const Label& label, int begin, int end, std::uint8_t* out) const {
    int pen = 0;
    for (const char character : label.text) {
        const Mask& mask = masks_.glyphs.at(character, label.direction);
        const int x = label.x + mask.x + (label.direction == Direction::right ? pen : 0);
        const int y = label.y + mask.y - (label.direction == Direction::up ? pen : 0);
        const int left = std::max(0, -x);
        const int right = std::min(mask.width, style_.width - x);
        const int last = std::min(mask.height, end - y);
        for (int row = std::max(0, begin - y); row < last; ++row) {
            std::uint8_t* pixel = out + 3 * (std::ptrdiff_t{y + row - begin} * style_.width + x);
            text_.blend(pixel + 3 * left, mask.cover.data() + row * mask.width + left,
                        right - left);
        }
        pen += mask.advance;
    }
}

}  // namespace lineup
