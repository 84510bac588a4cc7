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

// Canvases that no thread draws on just now: a thread takes one for each chunk of charts.
template <class Canvas>
class Idle {
  public:
    std::unique_ptr<Canvas> take(const ChartStyle& style) {
        const std::lock_guard<std::mutex> lock(guard_);
        if (canvases_.empty()) return std::make_unique<Canvas>(style);
        std::unique_ptr<Canvas> canvas = std::move(canvases_.back());
        canvases_.pop_back();
        return canvas;
    }
    void give_back(std::unique_ptr<Canvas> canvas) {
        const std::lock_guard<std::mutex> lock(guard_);
        canvases_.push_back(std::move(canvas));
    }

  private:
    std::mutex guard_;
    std::vector<std::unique_ptr<Canvas>> canvases_;
};

template <class Canvas>
void render(std::span<const std::span<const double>> series, const ChartStyle& style,
            std::span<std::uint8_t> out, int threads, const Poll& poll) {
    const std::size_t bytes = chart_bytes(style);
    const std::size_t share = series.size() / thread_count(series.size(), 1, threads);
    const std::size_t grain = std::clamp<std::size_t>(share, 1, 16);
    Idle<Canvas> idle;
    parallel_for(series.size(), grain, threads, poll, [&](std::size_t begin, std::size_t end) {
        std::unique_ptr<Canvas> canvas = idle.take(style);
        for (std::size_t i = begin; i < end; ++i) canvas->draw(series[i], out.data() + i * bytes);
        idle.give_back(std::move(canvas));
    });
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
    if (style.engine == ChartEngine::cairo) {
        render<CairoCanvas>(series, style, out, threads, poll);
    } else {
        render<NativeCanvas>(series, style, out, threads, poll);
    }
}

std::string cairo_version() {
    return cairo_version_string();
}

}  // namespace lineup
