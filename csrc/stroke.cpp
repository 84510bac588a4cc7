#include "stroke.hpp"

#include <cmath>
#include <cstring>
#include <limits>

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

// Whether edge[from] to edge[to] lie on a straight line.
bool straight_between(const float* edge, int from, int to) {
    const float* y = edge + from;
    const int n = to - from;
    if (n == 1) return true;
    const float climb = (y[n] - y[0]) / static_cast<float>(n);
    Float4 level = Float4{0, 1, 2, 3} * climb + y[0];
    const Float4 four = Float4{} + 4 * climb;
    Float4 over{};
    Float4 under{};
    int i = 0;
    for (; i + 4 <= n; i += 4, level += four) {
        Float4 values;
        std::memcpy(&values, y + i, sizeof values);
        const Float4 off = values - level;
        over = off > over ? off : over;
        under = off < under ? off : under;
    }
    float most =
        std::max({over[0], over[1], over[2], over[3], -under[0], -under[1], -under[2], -under[3]});
    for (; i < n; ++i) {
        most = std::max(most, std::abs(y[i] - (y[0] + static_cast<float>(i) * climb)));
    }
    return most <= kStraight;
}

}  // namespace

Stroker::Stroker(int columns, int rows, double radius)
    : steps_(columns * kSteps),
      radius_(radius),
      cover_(rows),
      upper_(static_cast<std::size_t>(steps_ + 1)),
      lower_(upper_.size()) {}

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
        pieces_.push_back({column, width, y0 - half, y1 - half});
        pieces_.push_back({column, -width, y0 + half, y1 + half});
        begin = next;
        y0 = y1;
    }
}

// Pieces of an edge known at steps, as long as they are straight, within one column.
void Stroker::add_edge(const std::vector<float>& edge, int begin, int end, float sign) {
    const auto column = static_cast<unsigned>(begin / kSteps);
    for (int from = begin; from < end;) {
        int to = end;
        while (!straight_between(edge.data(), from, to)) to = (from + to) / 2;
        const float* y = edge.data();
        pieces_.push_back({column, sign * static_cast<float>(to - from) / kSteps, y[from], y[to]});
        from = to;
    }
}

// The stroke from step `begin` to step `end`, which only the points first to last and the segments
// that touch them reach.
void Stroker::around(std::span<const Point> points, std::size_t first, std::size_t last, int begin,
                     int end) {
    if (begin >= end) return;
    std::fill(upper_.begin() + begin, upper_.begin() + end + 1, kNothing);
    std::fill(lower_.begin() + begin, lower_.begin() + end + 1, -kNothing);
    for (std::size_t i = first; i <= last; ++i) include_point(points[i], begin, end);
    const std::size_t stop = std::min(last + 1, points.size() - 1);
    for (std::size_t i = first > 0 ? first - 1 : 0; i < stop; ++i) {
        include_segment(points[i], points[i + 1], begin, end);
    }
    // Beyond the caps, less than a step away from them.
    for (const auto& [step, point] : {std::pair{begin, first}, std::pair{end, last}}) {
        const auto at = static_cast<std::size_t>(step);
        if (upper_[at] > lower_[at]) upper_[at] = lower_[at] = static_cast<float>(points[point].y);
    }
    while (begin < end) {
        const int next = std::min(end, (begin / kSteps + 1) * kSteps);
        add_edge(upper_, begin, next, 1.0f);
        add_edge(lower_, begin, next, -1.0f);
        begin = next;
    }
}

void Stroker::include_point(Point point, int begin, int end) {
    const int from = std::max(begin, step_above(point.x - radius_));
    const int to = std::min(end, step_below(point.x + radius_));
    const auto y = static_cast<float>(point.y);
    const auto square = static_cast<float>(radius_ * radius_);
    const auto start = static_cast<float>(static_cast<double>(from) / kSteps - point.x);
    float* upper = upper_.data() + from;
    float* lower = lower_.data() + from;
    for (int i = 0; i <= to - from; ++i) {
        const float x = start + static_cast<float>(i) * (1.0f / kSteps);
        const float rest = square - x * x;
        const float height = std::sqrt(rest > 0 ? rest : 0);
        upper[i] = std::min(upper[i], y - height);
        lower[i] = std::max(lower[i], y + height);
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
    include(-1.0, upper_.data(), [](float a, float b) { return std::min(a, b); });
    include(1.0, lower_.data(), [](float a, float b) { return std::max(a, b); });
}

}  // namespace lineup
