// Exact area coverage of shapes that are one interval high in every pixel column.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
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

    // Fewer rows, or as many as at first. Nothing may have been added since the last flush.
    void set_rows(int rows) { lowest_ = limit_ = static_cast<float>(rows); }

    // Adds what lies below a straight piece of an edge, from y0 to y1 over `width` (up to 1) of a
    // column; a negative width takes it away. y from the top of row 0; what is outside the rows is
    // cut off. In the end every upper edge needs a lower one.
    void add(int column, float width, float y0, float y1) {
        const float lo = std::min(y0, y1);
        const float hi = std::max(y0, y1);
        lowest_ = std::min(lowest_, lo);
        highest_ = std::max(highest_, hi);
        if (lo >= 0 && hi <= limit_) {
            below(column, width, lo, hi);
        } else {
            cut(column, width, lo, hi);
        }
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
            slope += take(second);
            sum += take(first) + slope;
            row(y, sum);
        }
        // Edges reach up to three rows farther; the last rows of the arrays are there for that.
        const int beyond = std::min(std::max(to + 1, from) + 3, rows_ + 4);
        for (int y = std::max(to + 1, from); y < beyond; ++y) {
            take(first);
            take(second);
            first += kColumns;
            second += kColumns;
        }
        lowest_ = limit_;
        highest_ = -1.0f;
    }

  private:
    // Reads four numbers and leaves zeros.
    static Float4 take(float* at) {
        Float4 values;
        std::memcpy(&values, at, sizeof values);
        const Float4 zeros{};
        std::memcpy(at, &zeros, sizeof zeros);
        return values;
    }

    // An edge that leaves the rows.
    void cut(int column, float width, float lo, float hi) {
        if (lo >= limit_) return;
        if (lo < 0) {
            const float above = hi <= 0 ? width : width * (lo / (lo - hi));
            first_[static_cast<std::size_t>(column)] += above;
            if (hi <= 0) return;
            width -= above;
            lo = 0;
        }
        if (hi > limit_) {
            width *= (limit_ - lo) / (hi - lo);
            hi = limit_;
        }
        below(column, width, lo, hi);
    }

    void below(int column, float width, float lo, float hi) {
        const int row = static_cast<int>(lo);
        const float start = lo - static_cast<float>(row);
        const float stop = hi - static_cast<float>(row);
        float* first = first_.data() + row * kColumns + column;
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

    int rows_;  // of the arrays, but for the last four
    float limit_;
    std::vector<float> first_;
    std::vector<float> second_;
    float lowest_;
    float highest_ = -1.0f;
};

}  // namespace lineup
