#include "chart_ground.hpp"

#include <algorithm>

namespace lineup {

ChartGround::ChartGround(int width, int height)
    : height_(height), pixels_(std::size_t{3} * static_cast<std::size_t>(width)) {}

void ChartGround::set(const Layout& layout) {
    layout_ = &layout;
    begin_ = end_ = 0;
}

void ChartGround::make(int y) {
    begin_ = y;
    end_ = height_;
    std::fill(pixels_.begin(), pixels_.end(), std::uint8_t{255});
    const auto fill = [&](const std::vector<Rectangle>& rectangles, const Ink& ink) {
        for (const Rectangle& r : rectangles) {
            const int below = r.y + r.height;
            if (y < r.y) {
                end_ = std::min(end_, r.y);
            } else if (y < below) {
                end_ = std::min(end_, below);
                ink.fill(pixels_.data() + std::ptrdiff_t{3} * r.x, r.width);
            }
        }
    };
    fill(layout_->grid, grid_);
    fill(layout_->frame, frame_);
}

}  // namespace lineup
