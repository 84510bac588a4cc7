#include "chart.hpp"

#include <cairo.h>

#include <algorithm>
#include <array>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "chart_cairo.hpp"
#include "chart_native.hpp"
#include "values.hpp"

namespace lineup {
namespace {

void require_side(const char* name, int side, int least) {
    if (side < least || side > kMostChartSide) {
        throw std::invalid_argument(std::string(name) + ": expected " + std::to_string(least) +
                                    " to " + std::to_string(kMostChartSide) + " pixels, got " +
                                    std::to_string(side));
    }
}

void require_style(const ChartStyle& style) {
    require_side("width", style.width, kLeastChartWidth);
    require_side("height", style.height, kLeastChartHeight);
    if (!style.y_limits) return;
    const std::array<double, 2> limits{style.y_limits->lo, style.y_limits->hi};
    require_values("y_limits", limits);
    if (!(limits[0] < limits[1])) {
        throw std::invalid_argument("y_limits: expected lo < hi, got " + std::to_string(limits[0]) +
                                    ", " + std::to_string(limits[1]));
    }
}

// What a thread needs to draw charts; those that no thread uses just now wait here.
template <class Canvas>
class Desks {
  public:
    struct Desk {
        explicit Desk(const ChartStyle& style) : canvas(style) {}
        Canvas canvas;
        std::vector<std::uint8_t> strip;  // for rows that do not go straight to their place
    };

    std::unique_ptr<Desk> take(const ChartStyle& style) {
        const std::lock_guard<std::mutex> lock(guard_);
        if (idle_.empty()) return std::make_unique<Desk>(style);
        std::unique_ptr<Desk> desk = std::move(idle_.back());
        idle_.pop_back();
        return desk;
    }

    void give_back(std::unique_ptr<Desk> desk) {
        const std::lock_guard<std::mutex> lock(guard_);
        idle_.push_back(std::move(desk));
    }

  private:
    std::mutex guard_;
    std::vector<std::unique_ptr<Desk>> idle_;
};

// Calls draw(desk, i) for every chart.
template <class Canvas, class Draw>
void for_charts(std::size_t n, const ChartStyle& style, int threads, const Poll& poll,
                const Draw& draw) {
    const std::size_t share = n / thread_count(n, 1, threads);
    const std::size_t grain = std::clamp<std::size_t>(share / 8, 1, 16);
    Desks<Canvas> desks;
    const auto draw_each = [&](std::size_t begin, std::size_t end, Pulse& pulse) {
        auto desk = desks.take(style);
        for (std::size_t i = begin; i < end; ++i, pulse()) draw(*desk, i);
        desks.give_back(std::move(desk));
    };
    parallel_for(n, grain, threads, poll, draw_each);
}

template <class Draw>
void for_charts(std::size_t n, const ChartStyle& style, int threads, const Poll& poll,
                const Draw& draw) {
    if (style.engine == ChartEngine::cairo) {
        for_charts<CairoCanvas>(n, style, threads, poll, draw);
    } else {
        for_charts<NativeCanvas>(n, style, threads, poll, draw);
    }
}

}  // namespace

std::size_t chart_bytes(const ChartStyle& style) {
    return std::size_t{3} * static_cast<std::size_t>(style.width) *
           static_cast<std::size_t>(style.height);
}

void require_charts(std::span<const std::span<const double>> series, const ChartStyle& style) {
    require_style(style);
    for (std::size_t i = 0; i < series.size(); ++i) {
        if (series[i].empty()) {
            throw std::invalid_argument("series[" + std::to_string(i) +
                                        "]: expected values, got none");
        }
        require_values("series[" + std::to_string(i) + "]", series[i]);
    }
}

void render_charts(std::span<const std::span<const double>> series, const ChartStyle& style,
                   std::span<std::uint8_t> out, int threads, const Poll& poll) {
    require_style(style);
    const std::size_t bytes = chart_bytes(style);
    if (out.size() != bytes * series.size()) {
        throw std::invalid_argument("out: expected " + std::to_string(bytes * series.size()) +
                                    " bytes, got " + std::to_string(out.size()));
    }
    require_charts(series, style);
    for_charts(series.size(), style, threads, poll, [&](auto& desk, std::size_t i) {
        desk.canvas.draw(series[i]);
        desk.canvas.take_rows(0, style.height, out.data() + i * bytes);
    });
}

void draw_charts(std::span<const std::span<const double>> series, const ChartStyle& style, int n,
                 int threads, const Poll& poll, const UseStrip& use) {
    require_charts(series, style);
    const std::size_t stride = std::size_t{3} * static_cast<std::size_t>(style.width);
    for_charts(series.size(), style, threads, poll, [&](auto& desk, std::size_t i) {
        desk.strip.resize(static_cast<std::size_t>(n) * stride);
        desk.canvas.draw(series[i]);
        for (int y = 0; y < style.height; y += n) {
            desk.canvas.take_rows(y, std::min(style.height, y + n), desk.strip.data());
            use(i, y, desk.strip.data());
        }
    });
}

std::string cairo_version() {
    return cairo_version_string();
}

}  // namespace lineup
