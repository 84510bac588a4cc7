// The two edges of a stroke whose joins and ends are hidden below dots.
#pragma once

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "chart_layout.hpp"

namespace lineup {

// Corners of an edge from left to right, and a place on it.
class Edge {
  public:
    void start(Point corner) {
        corners_.clear();
        corners_.push_back(corner);
    }
    // To a corner, which is not left of the last one.
    void go_to(Point corner) {
        corner.x = std::max(corner.x, corners_.back().x);
        corners_.push_back(corner);
    }
    Point last() const { return corners_.back(); }

    // Goes to the beginning.
    void rewind() {
        next_ = 0;
        at_ = corners_.front();
        turn();
    }

    // Goes on to x = `stop`, calls line(from, to, slope) for every straight part on the way, and
    // says whether the edge goes on from there.
    template <class Line>
    bool follow(double stop, const Line& line) {
        while (next_ < corners_.size() && at_.x < stop) {
            Point to = corners_[next_];
            if (to.x > stop) to = {stop, at_.y + (stop - at_.x) * slope_};
            if (at_.x < to.x) line(at_, to, slope_);
            at_ = to;
            if (to.x < corners_[next_].x) return true;
            turn();
        }
        return next_ < corners_.size();
    }

  private:
    // Heads for the next corner.
    void turn() {
        if (++next_ >= corners_.size()) return;
        const Point& to = corners_[next_];
        slope_ = at_.x < to.x ? (to.y - at_.y) / (to.x - at_.x) : 0;
    }

    std::vector<Point> corners_;
    std::size_t next_ = 0;
    Point at_{};
    double slope_ = 0;
};

struct Outline {
    Edge upper;
    Edge lower;
};

// Outlines the stroke through the points, in which x rises. Within the radius of a point the
// outline is straight where the stroke would be round, and the ends are cut off there.
void outline(std::span<const Point> points, double radius, Outline& out);

}  // namespace lineup
