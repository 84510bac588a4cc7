#include "outline.hpp"

namespace lineup {
namespace {

// From the radius beside one segment to the radius beside the next one, on the side where the
// normals point. Where the two lines cross, both reach beyond the crossing; else there is a gap.
void turn(Edge& edge, Point end, Point arriving, Point start, Point leaving) {
    if (end.x <= start.x) {
        edge.go_to(end);
        edge.go_to(start);
        return;
    }
    const double in = arriving.y / arriving.x;
    const double out = leaving.y / leaving.x;
    // At the start of the second line the first one is so much higher or lower.
    const double apart = end.y + (start.x - end.x) * in - start.y;
    const double x = in == out ? end.x : start.x + apart / (out - in);
    const double crossing = std::clamp(x, start.x, end.x);
    edge.go_to({crossing, end.y + (crossing - end.x) * in});
}

}  // namespace

void outline(std::span<const Point> points, double radius, Outline& out) {
    Point before{};  // the segment before, and its upper normal
    Point normal{};
    for (std::size_t i = 0; i + 1 < points.size(); ++i) {
        const Point from = points[i];
        const Point along{points[i + 1].x - from.x, points[i + 1].y - from.y};
        const double scale = radius / std::sqrt(along.x * along.x + along.y * along.y);
        const Point up{along.y * scale, -along.x * scale};
        const Point above{from.x + up.x, from.y + up.y};
        const Point below{from.x - up.x, from.y - up.y};
        if (i == 0) {
            const Point leftmost = above.x < below.x ? above : below;
            out.upper.start(leftmost);
            out.lower.start(leftmost);
            out.upper.go_to(above);
            out.lower.go_to(below);
        } else {
            turn(out.upper, {from.x + normal.x, from.y + normal.y}, before, above, along);
            turn(out.lower, {from.x - normal.x, from.y - normal.y}, before, below, along);
        }
        before = along;
        normal = up;
    }
    const Point to = points.back();
    const Point above{to.x + normal.x, to.y + normal.y};
    const Point below{to.x - normal.x, to.y - normal.y};
    const Point rightmost = above.x > below.x ? above : below;
    out.upper.go_to(above);
    out.lower.go_to(below);
    out.upper.go_to(rightmost);
    out.lower.go_to(rightmost);
    out.upper.rewind();
    out.lower.rewind();
}

}  // namespace lineup
