// Exact area coverage of shapes that are one interval high in every pixel column.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace lineup {

// Four numbers side by side; the compiler takes the vectors that the machine has.
typedef float Float4 __attribute__((vector_size(16)));
typedef int Int4 __attribute__((vector_size(16)));

// The space between an upper and a lower edge in kColumns neighbouring pixel columns. Coverage is
// kept as first and second differences down the columns, so that a straight piece of an edge costs
// the same whatever its slope: a flat one changes two or three first differences, a steep one
// six second differences.
class Cover {
  public:
    static constexpr int kColumns = 4;

    explicit Cover(int rows)
        : rows_(rows),
          limit_(static_cast<float>(rows)),
          first_(static_cast<std::size_t>((rows + 4) * kColumns)),
          second_(first_.size()),
          lowest_(limit_) {}

    // Adds what lies between two straight pieces of the edges over `width` (up to 1) of a column;
    // y from the top of row 0, upper <= lower at both ends. What is outside the rows is cut off.
    void add(int column, float width, float upper0, float upper1, float lower0, float lower1) {
        below(column, width, upper0, upper1);
        below(column, -width, lower0, lower1);
        lowest_ = std::min(lowest_, std::min(upper0, upper1));
        highest_ = std::max(highest_, std::max(lower0, lower1));
    }

    // Calls row(y, coverage of the four columns, 0 to 1 up to rounding) from the top down for the
    // rows that were touched, and starts anew.
    template <class Row>
    void flush(Row&& row) {
        const int from = static_cast<int>(std::clamp(lowest_, 0.0f, limit_));
        const int to = static_cast<int>(std::clamp(highest_, -1.0f, limit_ - 0.5f));
        float* first = first_.data() + from * kColumns;
        float* second = second_.data() + from * kColumns;
        Float4 slope{};
        Float4 sum{};
        for (int y = from; y <= to; ++y, first += kColumns, second += kColumns) {
            slope += load(second);
            sum += load(first) + slope;
            row(y, sum);
        }
        const std::size_t begin = static_cast<std::size_t>(from * kColumns);
        const std::size_t end =
            std::min(first_.size(), static_cast<std::size_t>(std::max(to, from) + 4) * kColumns);
        std::fill(first_.begin() + static_cast<std::ptrdiff_t>(begin),
                  first_.begin() + static_cast<std::ptrdiff_t>(end), 0.0f);
        std::fill(second_.begin() + static_cast<std::ptrdiff_t>(begin),
                  second_.begin() + static_cast<std::ptrdiff_t>(end), 0.0f);
        lowest_ = limit_;
        highest_ = -1.0f;
    }

  private:
    static Float4 load(const float* from) { return Float4{from[0], from[1], from[2], from[3]}; }

    // Adds what lies below an edge that runs from y0 to y1.
    void below(int column, float width, float y0, float y1) {
        float lo = std::min(y0, y1);
        float hi = std::max(y0, y1);
        float* first = first_.data() + column;
        if (lo < 0) {
            const float above = hi <= 0 ? width : width * (lo / (lo - hi));
            first[0] += above;
            width -= above;
            if (hi <= 0) return;
            lo = 0;
        }
        if (hi > limit_) {
            if (lo >= limit_) return;
            width *= (limit_ - lo) / (hi - lo);
            hi = limit_;
        }
        const int row = static_cast<int>(lo);
        const float start = lo - static_cast<float>(row);
        const float stop = hi - static_cast<float>(row);
        first += row * kColumns;
        if (stop <= 1) {
            const float mean = 0.5f * (start + stop);
            first[0] += width * (1 - mean);
            first[kColumns] += width * mean;
        } else if (stop <= 2) {
            const float inside = 1 - start;
            const float beyond = stop - 1;
            const float half = 0.5f * width / (stop - start);
            const float one = half * inside * inside;  // covered of this row
            const float two = half * beyond * beyond;  // not covered of the next
            first[0] += one;
            first[kColumns] += width - one - two;
            first[2 * kColumns] += two;
        } else {
            const float slope = width / (hi - lo);
            bend(column, slope, lo);
            bend(column, -slope, hi);
        }
    }

    // The difference of a row grows by `slope` at y: a quadratic B-spline, since rows are boxes.
    void bend(int column, float slope, float y) {
        const int row = static_cast<int>(y);
        const float after = y - static_cast<float>(row);
        const float before = 1 - after;
        float* second = second_.data() + row * kColumns + column;
        const float one = 0.5f * before * before;
        const float three = 0.5f * after * after;
        second[0] += slope * one;
        second[kColumns] += slope * (1 - one - three);
        second[2 * kColumns] += slope * three;
    }

    int rows_;
    float limit_;
    std::vector<float> first_;
    std::vector<float> second_;
    float lowest_;
    float highest_ = -1.0f;
};

}  // namespace lineup
