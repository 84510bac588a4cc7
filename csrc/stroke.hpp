// Strokes of lines that run from left to right, as exact pixel coverage.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "chart_layout.hpp"
#include "cover.hpp"
#include "outline.hpp"

namespace lineup {

// Strokes with round caps and joins, cut off at a window. Every vertical cut through the stroke of
// a line that never turns back is one interval: its ends are followed from left to right, exactly
// along the straight parts and in steps of 1 / kSteps pixel around the points.
class Stroker {
  public:
    static constexpr int kSteps = 8;

    // The largest window's size in pixels, and half the width of the line.
    Stroker(int columns, int rows, double radius);

    // A window up to the first one's size.
    void set_window(int columns, int rows);

    // Calls paint(block, row, n, coverage as bytes) for n rows of a block of Cover::kColumns
    // columns of the window, each at most once. x must not fall from point to point; coordinates
    // are relative to the window.
    template <class Paint>
    void stroke(std::span<const Point> points, Paint&& paint) {
        block_ = 0;
        trace(points);
        for (const Piece& piece : pieces_) {
            if (piece.column / Cover::kColumns != block_) finish(paint);
            block_ = piece.column / Cover::kColumns;
            const auto column = static_cast<int>(piece.column % Cover::kColumns);
            if (piece.steps != nullptr) {
                cover_.add_steps(column, piece.width, piece.steps);
            } else {
                cover_.add(column, piece.width, piece.y0, piece.y1);
            }
        }
        finish(paint);
    }

    // The same, faster, of a stroke whose joins and ends dots will hide: straight from corner to
    // corner. x must rise from point to point.
    template <class Paint>
    void stroke_below_dots(std::span<const Point> points, Paint&& paint) {
        outline(points, radius_, outline_);
        const int stop = steps_ / kSteps;
        block_ = static_cast<unsigned>(points.front().x - radius_) / Cover::kColumns;
        for (; static_cast<int>(block_) * Cover::kColumns < stop; ++block_) {
            const int left = static_cast<int>(block_) * Cover::kColumns;
            const double right = std::min(stop, left + Cover::kColumns);
            const auto add = [&](float sign) {
                return [this, left, sign](Point from, Point to, double slope) {
                    cover_.add_line(sign, static_cast<float>(from.x - left),
                                    static_cast<float>(from.y), static_cast<float>(to.x - left),
                                    static_cast<float>(to.y), static_cast<float>(slope));
                };
            };
            const bool above = outline_.upper.follow(right, add(1.0f));
            const bool below = outline_.lower.follow(right, add(-1.0f));
            finish(paint);
            if (!above && !below) return;
        }
    }

  private:
    // A piece of an edge within one column: straight, or through five heights that are steps apart.
    // width > 0: of the upper edge.
    struct Piece {
        unsigned column;
        float width;  // of a jagged piece: of a step
        float y0;
        float y1;
        const float* steps;
    };

    template <class Paint>
    void finish(Paint&& paint) {
        cover_.flush([&](int row, int n, std::uint32_t coverage) {
            paint(static_cast<int>(block_), row, n, coverage);
        });
    }

    void trace(std::span<const Point> points);
    void straight(Point from, Point to, int begin, int end);
    void around(std::span<const Point> points, std::size_t first, std::size_t last, int begin,
                int end);
    void add_edge(const float* edge, int begin, int end, float sign);
    void add_part(const float* edge, int begin, int end, float sign);
    void include_point(Point point);
    void include_segment(Point from, Point to, int begin, int end);

    // Half heights of a disc at the steps from its left end on, for places of that end between two
    // steps; below zero without bound where the disc is over.
    static constexpr int kPlaces = 64;
    static constexpr int kDiscSteps = 20;
    using Heights = std::array<float, kDiscSteps>;

    int steps_;  // across the window
    double radius_;
    Cover cover_;
    std::vector<Piece> pieces_;
    std::vector<Heights> disc_;
    std::vector<float> upper_;  // edges at the steps around points, from step -kDiscSteps on
    std::vector<float> lower_;
    Outline outline_;
    unsigned block_ = 0;
};

}  // namespace lineup
