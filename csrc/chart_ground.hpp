// What lies below the series: white, grid, frame and tick marks, row by row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "chart_layout.hpp"
#include "ink.hpp"

namespace lineup {

class ChartGround {
  public:
    ChartGround(int width, int height);

    // Takes up another chart. The layout is kept by reference until the next one.
    void set(const Layout& layout);

    // The RGB pixels of a row, valid until the next call. Neighbouring rows are mostly equal and
    // made once, so that asking from the top down is fast.
    const std::uint8_t* row(int y) {
        if (y < begin_ || y >= end_) make(y);
        return pixels_.data();
    }

  private:
    void make(int y);

    int height_;
    Ink grid_{kGrid};
    Ink frame_{kFrame};
    const Layout* layout_ = nullptr;
    std::vector<std::uint8_t> pixels_;  // of the rows begin_ to end_, which are equal
    int begin_ = 0;
    int end_ = 0;
};

}  // namespace lineup
