// Exact area coverage of shapes that are one interval high in every pixel column.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <vector>

#include "float4.hpp"

namespace lineup {

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

    // Adds what lies below an edge through y[0] to y[4], each `width` of the column apart.
    void add_steps(int column, float width, const float* y) {
        const Float4 from = load4(y);
        const Float4 to = load4(y + 1);
        const Float4 lo = least(from, to);
        const Float4 hi = most(from, to);
        const Float4 steep = hi - lo;
        for (int i = 0; i < 4; ++i) {
            if (steep[i] > 1 || !(lo[i] >= 0 && hi[i] <= limit_)) {
                for (i = 0; i < 4; ++i) add(column, width, lo[i], hi[i]);
                return;
            }
        }
        for (int i = 0; i < 4; ++i) {
            lowest_ = std::min(lowest_, lo[i]);
            highest_ = std::max(highest_, hi[i]);
        }
        add_flat(Float4{} + width, lo, hi, Int4{} + column);
    }

    // Adds (sign 1) or takes away (-1) what lies below the part from (x0, y0) to (x1, y1) of a line
    // with that slope, x0 < x1 counted from the first of the columns: all at once, what is outside
    // them cut off.
    void add_line(float sign, float x0, float y0, float x1, float y1, float slope) {
        const Float4 begin = least(most(Float4{0, 1, 2, 3}, Float4{} + x0), Float4{} + x1);
        const Float4 end = least(most(Float4{1, 2, 3, 4}, Float4{} + x0), Float4{} + x1);
        const Float4 bottom = Float4{} + std::min(y0, y1);
        const Float4 top = Float4{} + std::max(y0, y1);
        const Float4 from = least(most((begin - x0) * slope + y0, bottom), top);
        const Float4 to = least(most((end - x0) * slope + y0, bottom), top);
        const Float4 lo = least(from, to);
        const Float4 hi = most(from, to);
        lowest_ = std::min(lowest_, bottom[0]);
        highest_ = std::max(highest_, top[0]);
        if (bottom[0] < 0 || top[0] > limit_) {
            const Float4 width = (end - begin) * sign;
            for (int i = 0; i < kColumns; ++i) cut(i, width[i], lo[i], hi[i]);
        } else if (std::abs(slope) <= 1) {
            add_flat((end - begin) * sign, lo, hi, Int4{0, 1, 2, 3});
        } else {
            const float change = sign / std::abs(slope);
            add_bends(change, lo);
            add_bends(-change, hi);
        }
    }

    // Calls paint(y, n, coverage of the four columns as bytes) from the top down for the rows that
    // were touched, n of the same coverage at a time, and starts anew.
    template <class Paint>
    void flush(Paint&& paint) {
        const int from = static_cast<int>(std::clamp(lowest_, 0.0f, limit_));
        const int to = static_cast<int>(std::clamp(highest_, -1.0f, limit_ - 0.5f));
        float* first = first_.data() + from * kColumns;
        float* second = second_.data() + from * kColumns;
        Float4 slope{};
        Float4 sum{};
        for (int y = from; y <= to;) {
            slope += take(second);
            sum += take(first) + slope;
            const std::uint32_t bytes = levels(sum);
            int n = 1;
            first += kColumns;
            second += kColumns;
            if ((bytes == 0 || bytes == ~0U) && is_level(slope)) {
                // Far from edges nothing changes for many rows.
                while (y + n + kSteadyRows <= to + 1 && is_steady(first, second)) {
                    n += kSteadyRows;
                    first += kSteadyRows * kColumns;
                    second += kSteadyRows * kColumns;
                }
                sum += slope * static_cast<float>(n - 1);
            }
            paint(y, n, bytes);
            y += n;
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
    static constexpr int kSteadyRows = 4;
    static constexpr float kFlat = 1e-6f;  // a height that makes no difference

    // Whether the coverage stays the same within a fraction of a level until the slope changes.
    static bool is_level(Float4 slope) { return !any((slope > 1e-5f) | (slope < -1e-5f)); }

    // Whether nothing changes in the next kSteadyRows rows.
    static bool is_steady(const float* first, const float* second) {
        Int4 bits{};
        for (int i = 0; i < kSteadyRows * kColumns; i += kColumns) {
            Int4 one;
            Int4 two;
            std::memcpy(&one, first + i, sizeof one);
            std::memcpy(&two, second + i, sizeof two);
            bits |= one | two;
        }
        return !any(bits);
    }

    // Reads four numbers and leaves zeros.
    static Float4 take(float* at) {
        const Float4 values = load4(at);
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
        const float height = stop - start;
        if (height <= 1) {
            const float mean = 0.5f * (start + stop);
            const float beyond = std::max(stop - 1, 0.0f);
            const float two = 0.5f * beyond * beyond / std::max(height, kFlat);
            first[0] += width * (1 - mean + two);
            first[kColumns] += width * (mean - 2 * two);
            first[2 * kColumns] += width * two;
        } else {
            const float slope = width / (hi - lo);
            bend(column, slope, lo);
            bend(column, -slope, hi);
        }
    }

    // What below() does for four pieces that rise by a row at most.
    void add_flat(Float4 width, Float4 lo, Float4 hi, Int4 columns) {
        const Int4 rows = __builtin_convertvector(lo, Int4);
        const Float4 start = lo - __builtin_convertvector(rows, Float4);
        const Float4 height = hi - lo;
        const Float4 stop = start + height;
        const Float4 mean = (start + stop) * 0.5f;
        const Float4 beyond = most(stop - 1.0f, Float4{});
        const Float4 two = beyond * beyond * 0.5f / most(height, Float4{} + kFlat);
        scatter(first_.data(), rows * kColumns + columns, width * (1.0f - mean + two),
                width * (mean - two * 2.0f), width * two);
    }

    // What bend() does, in all columns.
    void add_bends(float slope, Float4 y) {
        const Int4 rows = __builtin_convertvector(y, Int4);
        const Float4 after = y - __builtin_convertvector(rows, Float4);
        const Float4 before = 1.0f - after;
        const Float4 one = before * before * 0.5f;
        const Float4 three = after * after * 0.5f;
        scatter(second_.data(), rows * kColumns + Int4{0, 1, 2, 3}, one * slope,
                (1.0f - one - three) * slope, three * slope);
    }

    // Adds to each of four places and to what is one and two rows below it.
    static void scatter(float* to, Int4 places, Float4 a, Float4 b, Float4 c) {
        for (int i = 0; i < 4; ++i) {
            float* at = to + places[i];
            at[0] += a[i];
            at[kColumns] += b[i];
            at[2 * kColumns] += c[i];
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
