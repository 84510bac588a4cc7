#include "stroke.hpp"

#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>

namespace lineup {
namespace {

// An edge is straight where it is off by no more, in pixels: 3 of 255 levels at most.
constexpr float kStraight = 0.012f;
constexpr float kNothing = std::numeric_limits<float>::infinity();

int step_above(double x) {
    return static_cast<int>(std::ceil(x * Stroker::kSteps));
}

int step_below(double x) {
    return static_cast<int>(std::floor(x * Stroker::kSteps));
}

// Whether y[0] to y[n], n up to 8, lie on a straight line.
bool is_straight(const float* y, int n) {
    const float climb = (y[n] - y[0]) / static_cast<float>(n);
    const Float4 line = Float4{0, 1, 2, 3} * climb + y[0];
    const auto is_off = [](Float4 off) { return (off > kStraight) | (off < -kStraight); };
    if (n == 8) {
        return !any(is_off(load4(y) - line) | is_off(load4(y + 4) - line - 4 * climb));
    }
    if (n == 4) return !any(is_off(load4(y) - line));
    for (int i = 1; i < n; ++i) {
        if (std::abs(y[i] - (y[0] + static_cast<float>(i) * climb)) > kStraight) return false;
    }
    return true;
}

}  // namespace

Stroker::Stroker(int columns, int rows, double radius)
    : steps_(columns * kSteps),
      radius_(radius),
      cover_(rows),
      disc_(kPlaces),
      upper_(static_cast<std::size_t>(steps_ + 2 * kDiscSteps)),
      lower_(upper_.size()) {
    if (!(radius > 0 && 2 * radius * kSteps < kDiscSteps - 1)) {
        throw std::invalid_argument("radius: expected up to 1.1 pixels, got " +
                                    std::to_string(radius));
    }
    for (int place = 0; place < kPlaces; ++place) {
        for (int i = 0; i < kDiscSteps; ++i) {
            const double x = ((place + 0.5) / kPlaces + i) / kSteps - radius;
            const double rest = radius * radius - x * x;
            disc_[static_cast<std::size_t>(place)][static_cast<std::size_t>(i)] =
                rest >= 0 ? static_cast<float>(std::sqrt(rest)) : -kNothing;
        }
    }
}

void Stroker::set_window(int columns, int rows) {
    steps_ = columns * kSteps;
    cover_.set_rows(rows);
}

void Stroker::trace(std::span<const Point> points) {
    pieces_.clear();
    int at = std::max(0, step_below(points.front().x - radius_));
    const int stop = std::min(steps_, step_above(points.back().x + radius_));
    std::size_t first = 0;
    for (std::size_t i = 0; i + 1 < points.size(); ++i) {
        // Farther than the radius from both ends nothing but this segment counts.
        const int begin = std::max(at, step_above(points[i].x + radius_));
        const int end = std::min(stop, step_below(points[i + 1].x - radius_));
        if (end - begin < kSteps / 2) continue;
        around(points, first, i, at, begin);
        straight(points[i], points[i + 1], begin, end);
        at = end;
        first = i + 1;
    }
    around(points, first, points.size() - 1, at, stop);
}

// Both edges run parallel to the segment.
void Stroker::straight(Point from, Point to, int begin, int end) {
    const double slope = (to.y - from.y) / (to.x - from.x);
    const double reach = radius_ * std::sqrt(1 + slope * slope);
    const auto level = [&](int step) {
        return from.y + (static_cast<double>(step) / kSteps - from.x) * slope;
    };
    const auto half = static_cast<float>(reach);
    auto y0 = static_cast<float>(level(begin));
    while (begin < end) {
        const int next = std::min(end, (begin / kSteps + 1) * kSteps);
        const auto y1 = static_cast<float>(level(next));
        const auto column = static_cast<unsigned>(begin / kSteps);
        const float width = static_cast<float>(next - begin) / kSteps;
        pieces_.push_back({column, width, y0 - half, y1 - half, nullptr});
        pieces_.push_back({column, -width, y0 + half, y1 + half, nullptr});
        begin = next;
        y0 = y1;
    }
}

// Pieces of an edge known at steps, within one column.
void Stroker::add_edge(const float* edge, int begin, int end, float sign) {
    if (end - begin != kSteps) return add_part(edge, begin, end, sign);
    const auto column = static_cast<unsigned>(begin / kSteps);
    if (is_straight(edge + begin, kSteps)) {
        pieces_.push_back({column, sign, edge[begin], edge[end], nullptr});
        return;
    }
    constexpr int kHalf = kSteps / 2;
    for (int from = begin; from < end; from += kHalf) {
        const float* y = edge + from;
        if (is_straight(y, kHalf)) {
            pieces_.push_back({column, 0.5f * sign, y[0], y[kHalf], nullptr});
        } else {
            pieces_.push_back({column, sign / kSteps, y[0], y[kHalf], y});
        }
    }
}

// The same of less than a column.
void Stroker::add_part(const float* edge, int begin, int end, float sign) {
    const auto column = static_cast<unsigned>(begin / kSteps);
    for (int from = begin; from < end;) {
        int to = end;
        while (!is_straight(edge + from, to - from)) to = (from + to) / 2;
        const float width = sign * static_cast<float>(to - from) / kSteps;
        pieces_.push_back({column, width, edge[from], edge[to], nullptr});
        from = to;
    }
}

// The stroke from step `begin` to step `end`, which only the points first to last and the segments
// that touch them reach.
void Stroker::around(std::span<const Point> points, std::size_t first, std::size_t last, int begin,
                     int end) {
    if (begin >= end) return;
    float* const upper = upper_.data() + kDiscSteps;
    float* const lower = lower_.data() + kDiscSteps;
    std::fill(upper + begin, upper + end + 1, kNothing);
    std::fill(lower + begin, lower + end + 1, -kNothing);
    for (std::size_t i = first; i <= last; ++i) include_point(points[i]);
    const std::size_t stop = std::min(last + 1, points.size() - 1);
    for (std::size_t i = first > 0 ? first - 1 : 0; i < stop; ++i) {
        include_segment(points[i], points[i + 1], begin, end);
    }
    // Beyond the caps, less than a step away from them.
    for (const auto& [step, point] : {std::pair{begin, first}, std::pair{end, last}}) {
        if (upper[step] <= lower[step]) continue;
        upper[step] = lower[step] = static_cast<float>(points[point].y);
    }
    while (begin < end) {
        const int next = std::min(end, (begin / kSteps + 1) * kSteps);
        add_edge(upper, begin, next, 1.0f);
        add_edge(lower, begin, next, -1.0f);
        begin = next;
    }
}

// Steps outside the current stretch may change, too: they are never read.
void Stroker::include_point(Point point) {
    const double start = (point.x - radius_) * kSteps;
    const double first = std::ceil(start);
    if (!(first > -kDiscSteps && first < steps_)) return;
    const auto place = static_cast<std::size_t>((first - start) * kPlaces);
    const Heights& heights = disc_[std::min<std::size_t>(place, kPlaces - 1)];
    const auto y = static_cast<float>(point.y);
    float* upper = upper_.data() + kDiscSteps + static_cast<int>(first);
    float* lower = lower_.data() + kDiscSteps + static_cast<int>(first);
    for (int i = 0; i < kDiscSteps; i += 4) {
        const Float4 height = load4(heights.data() + i);
        const Float4 above = least(load4(upper + i), y - height);
        const Float4 below = most(load4(lower + i), y + height);
        std::memcpy(upper + i, &above, sizeof above);
        std::memcpy(lower + i, &below, sizeof below);
    }
}

void Stroker::include_segment(Point from, Point to, int begin, int end) {
    const double dx = to.x - from.x;
    if (!(dx > 0)) return;  // the points are all there is
    const double dy = to.y - from.y;
    const double slope = dy / dx;
    const double length = std::sqrt(dx * dx + dy * dy);
    const double reach = radius_ * length / dx;
    const double shift = radius_ * dy / length;  // to the right of the upper edge
    const auto include = [&](double side, float* edge, const auto& closer) {
        const int first = std::max(begin, step_above(from.x - side * shift));
        const int last = std::min(end, step_below(to.x - side * shift));
        const auto start = static_cast<float>(
            from.y + (static_cast<double>(first) / kSteps - from.x) * slope + side * reach);
        const auto climb = static_cast<float>(slope / kSteps);
        edge += first;
        for (int i = 0; i <= last - first; ++i) {
            edge[i] = closer(edge[i], start + static_cast<float>(i) * climb);
        }
    };
    include(-1.0, upper_.data() + kDiscSteps, [](float a, float b) { return std::min(a, b); });
    include(1.0, lower_.data() + kDiscSteps, [](float a, float b) { return std::max(a, b); });
}

}  // namespace lineup
