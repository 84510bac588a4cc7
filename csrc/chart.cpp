#include "chart.hpp"

#include <cairo.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <numbers>
#include <stdexcept>
#include <string>
#include <vector>

#include "chart_text.hpp"
#include "ticks.hpp"
#include "values.hpp"

namespace lineup {
namespace {

// Pixel sizes of what is drawn.
struct Sizes {
    TextSizes text;
    int tick;
    int gap;    // between tick and text, and between text and axis word
    int inset;  // between the frame and the area that shows the data range
    double line;
    double marker;  // radius
    int pad_left;
    int pad_right;
    int pad_top;
    int pad_bottom;
    int y_intervals;
};

constexpr Sizes kNormal{{5, 8, 3, 1.25}, 4, 4, 5, 2.0, 2.6, 6, 10, 8, 6, 6};
constexpr Sizes kCompact{{3, 6, 2, 1.0}, 2, 2, 3, 1.4, 1.8, 1, 2, 1, 1, 4};
constexpr int kXIntervals = 6;
constexpr int kSegmentsPerStroke = 12;  // one long stroke costs Cairo several times as much
constexpr std::size_t kMarkersPerFill = 12;
constexpr int kPointsPerColumn = 4;

struct Color {
    int red;
    int green;
    int blue;
};
constexpr Color kInk{31, 119, 180};
constexpr Color kGrid{230, 230, 230};
constexpr Color kFrame{64, 64, 64};
constexpr Color kText{32, 32, 32};

struct Point {
    double x;
    double y;
};

// Pixels of the frame's lines, and the data range that the inset area inside shows.
struct Box {
    int left;
    int right;
    int top;
    int bottom;
    int inset;
    Range x_range;
    Range y_range;

    double x(double value) const {
        const double start = left + 0.5 + inset;
        const double stop = right + 0.5 - inset;
        return start + (value - x_range.lo) / (x_range.hi - x_range.lo) * (stop - start);
    }
    double y(double value) const {
        const double start = bottom + 0.5 - inset;
        const double stop = top + 0.5 + inset;
        const double share = (value - y_range.lo) / (y_range.hi - y_range.lo);
        // The clamp keeps values far outside fixed limits within Cairo's coordinates.
        return start + std::max(-4.0, std::min(5.0, share)) * (stop - start);
    }
};

int pixel(double coordinate) {
    return static_cast<int>(std::floor(coordinate));
}

// The y-range: 8 % more on either side; around a constant 8 % of it, or 1 around 0.
Range padded(std::span<const double> values) {
    const auto [lo, hi] = std::minmax_element(values.begin(), values.end());
    double pad = 0.08 * (*hi > *lo ? *hi - *lo : std::abs(*hi));
    if (pad == 0) pad = 1.0;
    return {*lo - pad, *hi + pad};
}

// First, lowest, highest and last point of every pixel column, in the order of time.
std::vector<Point> thinned(const std::vector<Point>& points) {
    std::vector<Point> kept;
    std::size_t begin = 0;
    while (begin < points.size()) {
        const double column = std::floor(points[begin].x);
        std::size_t end = begin;
        std::size_t top = begin;
        std::size_t bottom = begin;
        for (; end < points.size() && std::floor(points[end].x) == column; ++end) {
            if (points[end].y < points[top].y) top = end;
            if (points[end].y > points[bottom].y) bottom = end;
        }
        std::array<std::size_t, 4> chosen{begin, top, bottom, end - 1};
        std::sort(chosen.begin(), chosen.end());
        const auto last = std::unique(chosen.begin(), chosen.end());
        for (auto i = chosen.begin(); i != last; ++i) kept.push_back(points[*i]);
        begin = end;
    }
    return kept;
}

// A reused image surface with a context to draw on it.
class Canvas {
  public:
    explicit Canvas(const ChartStyle& style)
        : style_(style),
          sizes_(style.width < 400 || style.height < 200 ? kCompact : kNormal),
          surface_(cairo_image_surface_create(CAIRO_FORMAT_RGB24, style.width, style.height)),
          context_(cairo_create(surface_.get())) {
        cairo_set_line_cap(context_.get(), CAIRO_LINE_CAP_ROUND);
        cairo_set_line_join(context_.get(), CAIRO_LINE_JOIN_ROUND);
        require_success();
    }

    void draw(std::span<const double> values) {
        const auto n = static_cast<double>(values.size());
        const Range x_range = values.size() > 1 ? Range{0.0, n - 1} : Range{-0.5, 0.5};
        const Range y_range = style_.y_limits ? *style_.y_limits : padded(values);
        const Ticks x_ticks = nice_ticks(x_range.lo, x_range.hi, kXIntervals, true);
        const Ticks y_ticks = nice_ticks(y_range.lo, y_range.hi, sizes_.y_intervals);
        const Box box = place(x_range, y_range, y_ticks);
        cairo_set_source_rgb(context_.get(), 1, 1, 1);
        cairo_paint(context_.get());
        draw_grid(box, x_ticks, y_ticks);
        draw_series(box, values);
        draw_frame(box, x_ticks, y_ticks);
        draw_tick_texts(box, x_ticks, y_ticks);
        if (style_.axis_words) draw_words(box);
        require_success();
    }

    // Copies the pixels, RGB rows from the top.
    void copy(std::uint8_t* out) {
        cairo_surface_flush(surface_.get());
        const unsigned char* data = cairo_image_surface_get_data(surface_.get());
        const int stride = cairo_image_surface_get_stride(surface_.get());
        for (int row = 0; row < style_.height; ++row) {
            const unsigned char* line = data + static_cast<std::ptrdiff_t>(row) * stride;
            for (int column = 0; column < style_.width; ++column) {
                std::uint32_t rgb;  // 0x00RRGGBB in the machine's byte order
                std::memcpy(&rgb, line + 4 * column, sizeof rgb);
                *out++ = static_cast<std::uint8_t>(rgb >> 16);
                *out++ = static_cast<std::uint8_t>(rgb >> 8);
                *out++ = static_cast<std::uint8_t>(rgb);
            }
        }
    }

  private:
    struct Free {
        void operator()(cairo_surface_t* surface) const { cairo_surface_destroy(surface); }
        void operator()(cairo_t* context) const { cairo_destroy(context); }
    };

    void require_success() const {
        const cairo_status_t status = cairo_status(context_.get());
        if (status == CAIRO_STATUS_NO_MEMORY) throw std::bad_alloc();
        if (status != CAIRO_STATUS_SUCCESS) {
            throw std::runtime_error(std::string("cairo: ") + cairo_status_to_string(status));
        }
    }

    void source(Color color) {
        cairo_set_source_rgb(context_.get(), color.red / 255.0, color.green / 255.0,
                             color.blue / 255.0);
    }

    Box place(Range x_range, Range y_range, const Ticks& y_ticks) const {
        int text = 0;
        for (const std::string& tick : y_ticks.texts) {
            text = std::max(text, text_width(tick, sizes_.text));
        }
        const int letter = sizes_.text.box_height + 1;
        const int word = style_.axis_words ? letter + sizes_.gap : 0;
        const int outside = sizes_.gap + sizes_.tick + word;
        return {.left = sizes_.pad_left + text + outside,
                .right = style_.width - 1 - sizes_.pad_right,
                .top = sizes_.pad_top,
                .bottom = style_.height - 1 - sizes_.pad_bottom - letter - outside,
                .inset = sizes_.inset,
                .x_range = x_range,
                .y_range = y_range};
    }

    void draw_grid(const Box& box, const Ticks& xs, const Ticks& ys) {
        for (const double x : xs.positions) {
            cairo_rectangle(context_.get(), pixel(box.x(x)), box.top, 1, box.bottom - box.top);
        }
        for (const double y : ys.positions) {
            cairo_rectangle(context_.get(), box.left, pixel(box.y(y)), box.right - box.left, 1);
        }
        source(kGrid);
        cairo_fill(context_.get());
    }

    void draw_series(const Box& box, std::span<const double> values) {
        std::vector<Point> points(values.size());
        for (std::size_t i = 0; i < values.size(); ++i) {
            points[i] = {box.x(static_cast<double>(i)), box.y(values[i])};
        }
        const auto columns = static_cast<std::size_t>(box.right - box.left - 1);
        if (points.size() > kPointsPerColumn * columns) points = thinned(points);
        cairo_save(context_.get());
        cairo_rectangle(context_.get(), box.left, box.top, box.right - box.left + 1,
                        box.bottom - box.top + 1);
        cairo_clip(context_.get());
        source(kInk);
        stroke_line(points);
        // Markers closer than 2 px would only thicken the line; a lone point always has one.
        if (values.size() == 1 || (style_.markers && values.size() <= columns / 2)) {
            fill_markers(points);
        }
        cairo_restore(context_.get());
    }

    void stroke_line(const std::vector<Point>& points) {
        cairo_set_line_width(context_.get(), sizes_.line);
        for (std::size_t i = 0; i + 1 < points.size();) {
            const std::size_t end = std::min(points.size() - 1, i + kSegmentsPerStroke);
            cairo_move_to(context_.get(), points[i].x, points[i].y);
            while (i < end) {
                ++i;
                cairo_line_to(context_.get(), points[i].x, points[i].y);
            }
            cairo_stroke(context_.get());
        }
    }

    void fill_markers(const std::vector<Point>& points) {
        for (std::size_t i = 0; i < points.size();) {
            const std::size_t end = std::min(points.size(), i + kMarkersPerFill);
            for (; i < end; ++i) {
                cairo_new_sub_path(context_.get());
                cairo_arc(context_.get(), points[i].x, points[i].y, sizes_.marker, 0.0,
                          2 * std::numbers::pi);
            }
            cairo_fill(context_.get());
        }
    }

    void draw_frame(const Box& box, const Ticks& xs, const Ticks& ys) {
        cairo_t* context = context_.get();
        const int width = box.right - box.left + 1;
        const int height = box.bottom - box.top + 1;
        cairo_rectangle(context, box.left, box.top, width, 1);
        cairo_rectangle(context, box.left, box.bottom, width, 1);
        cairo_rectangle(context, box.left, box.top + 1, 1, height - 2);
        cairo_rectangle(context, box.right, box.top + 1, 1, height - 2);
        for (const double x : xs.positions) {
            cairo_rectangle(context, pixel(box.x(x)), box.bottom + 1, 1, sizes_.tick);
        }
        for (const double y : ys.positions) {
            cairo_rectangle(context, box.left - sizes_.tick, pixel(box.y(y)), sizes_.tick, 1);
        }
        source(kFrame);
        cairo_fill(context);
    }

    void draw_tick_texts(const Box& box, const Ticks& xs, const Ticks& ys) {
        source(kText);
        const int height = sizes_.text.box_height;
        for (std::size_t i = 0; i < xs.texts.size(); ++i) {
            const int width = text_width(xs.texts[i], sizes_.text);
            const int start = pixel(box.x(xs.positions[i])) - (width - 1) / 2;
            draw_text(context_.get(), xs.texts[i], std::clamp(start, 0, style_.width - width),
                      box.bottom + sizes_.tick + sizes_.gap + 1 + height, sizes_.text);
        }
        for (std::size_t i = 0; i < ys.texts.size(); ++i) {
            const int width = text_width(ys.texts[i], sizes_.text);
            const int baseline = pixel(box.y(ys.positions[i])) + height / 2;
            draw_text(context_.get(), ys.texts[i], box.left - sizes_.tick - sizes_.gap - width,
                      std::clamp(baseline, height, style_.height - 1), sizes_.text);
        }
    }

    void draw_words(const Box& box) {
        const int across = (box.left + box.right - text_width("time", sizes_.text)) / 2;
        draw_text(context_.get(), "time", across, style_.height - 1 - sizes_.pad_bottom,
                  sizes_.text);
        const int down = (box.top + box.bottom + text_width("value", sizes_.text)) / 2;
        draw_text(context_.get(), "value", sizes_.pad_left + sizes_.text.box_height, down,
                  sizes_.text, Direction::up);
    }

    const ChartStyle& style_;
    const Sizes& sizes_;
    std::unique_ptr<cairo_surface_t, Free> surface_;
    std::unique_ptr<cairo_t, Free> context_;
};

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

}  // namespace

void render_charts(std::span<const std::span<const double>> series, const ChartStyle& style,
                   std::span<std::uint8_t> out, int threads, const Poll& poll) {
    require_style(style);
    const std::size_t bytes = std::size_t{3} * static_cast<std::size_t>(style.width) *
                              static_cast<std::size_t>(style.height);
    if (out.size() != bytes * series.size()) {
        throw std::invalid_argument("out: expected " + std::to_string(bytes * series.size()) +
                                    " bytes, got " + std::to_string(out.size()));
    }
    for (std::size_t i = 0; i < series.size(); ++i) {
        const std::string name = "series[" + std::to_string(i) + "]";
        if (series[i].empty()) throw std::invalid_argument(name + ": expected values, got none");
        require_values(name, series[i]);
    }
    // Chunks are large enough for a canvas each to cost little, small enough to share the work.
    const std::size_t share = series.size() / thread_count(series.size(), 1, threads);
    const std::size_t grain = std::clamp<std::size_t>(share, 1, 16);
    parallel_for(series.size(), grain, threads, poll, [&](std::size_t begin, std::size_t end) {
        Canvas canvas(style);
        for (std::size_t i = begin; i < end; ++i) {
            canvas.draw(series[i]);
            canvas.copy(out.data() + i * bytes);
        }
    });
}

std::string cairo_version() {
    return cairo_version_string();
}

}  // namespace lineup
