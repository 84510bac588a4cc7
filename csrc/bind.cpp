// The Python module lineup_fast._core: argument checks, outputs, GIL; no arithmetic. Only files
// named bind see pybind11. lineup_fast/kernels.py is its only caller and gives the readable errors;
// what is checked here again is what memory safety needs.
#include <pybind11/stl.h>

#include <optional>
#include <thread>

#include "bind.hpp"
#include "chart.hpp"
#include "cuda/device.hpp"
#include "features.hpp"
#include "overlap.hpp"
#include "patches.hpp"
#include "png.hpp"
#include "ticks.hpp"

namespace {

using namespace bind;

const char* const kFeatures = R"(Return mean, population std, min and max of each row.

series: float64 [N, T], rows may overlap, or a tuple as of NeighbourIndex. Returns float64 [N, 4],
which is out if there is one.)";

// An output for n series, or the given one if it is such; with a view on it.
std::span<double> features_out(std::size_t n, std::optional<Floats>& out) {
    const auto height = static_cast<py::ssize_t>(n), width = py::ssize_t{lineup::kFeatures};
    if (!out) out.emplace(std::vector<py::ssize_t>{height, width});
    const bool good = out->ndim() == 2 && out->shape(0) == height && out->shape(1) == width;
    if (!good) refuse("out", "[N, 4]");
    return {out->mutable_data(), static_cast<std::size_t>(out->size())};
}

Floats features(const py::object& series, int threads, std::optional<Floats> out) {
    const lineup::Rows view = series_rows("series", series);
    const std::span<double> target = features_out(view.n, out);
    const lineup::Isa isa = requested_isa();
    without_gil([&] { lineup::features(view, target, threads, poll_signals, isa); });
    return *out;
}

const char* const kCudaFeatures = R"(What features() returns, computed by the current CUDA device.

Raises RuntimeError where there is none, or none was built for.)";

Floats cuda_features(const py::object& series, std::optional<Floats> out) {
    const lineup::Rows view = series_rows("series", series);
    const std::span<double> target = features_out(view.n, out);
    without_gil([&] { lineup::cuda::features(view, target); });
    return *out;
}

const char* const kLongestRun = R"(Return the length of the longest run two series share.

a, b: float64 [T], of any lengths, compared after rounding to decimals.)";

std::size_t longest_run(const Floats& a, const Floats& b, int decimals) {
    const auto left = flat("a", a);
    const auto right = flat("b", b);
    return without_gil([&] { return lineup::longest_run(left, right, decimals, poll_signals); });
}

const char* const kNiceTicks = R"(Return the ticks of an axis: (positions float64 [m], texts).

n: at most so many intervals between lo and hi; integer: whole steps only.)";

py::tuple nice_ticks(double lo, double hi, int n, bool integer) {
    lineup::Ticks ticks = lineup::nice_ticks(lo, hi, n, integer);
    return py::make_tuple(owned(std::move(ticks.positions)), std::move(ticks.texts));
}

const char* const kRenderCharts = R"(Draw charts into out.

series: list of N float64 [T]; style: a ChartStyle; out: uint8 [N, height, width, 3].)";

lineup::ChartStyle chart_style(const py::object& style) {
    lineup::ChartStyle out{
        .width = style.attr("width").cast<int>(),
        .height = style.attr("height").cast<int>(),
        .y_limits = std::nullopt,
        .axis_words = style.attr("axis_words").cast<bool>(),
        .markers = style.attr("markers").cast<bool>(),
        .exact = style.attr("exact").cast<bool>(),
        .engine = style.attr("engine").cast<std::string>() == "cairo" ? lineup::ChartEngine::cairo
                                                                      : lineup::ChartEngine::native,
    };
    using Limits = std::optional<std::pair<double, double>>;
    if (const auto limits = style.attr("y_limits").cast<Limits>()) {
        out.y_limits = lineup::Range{limits->first, limits->second};
    }
    return out;
}

void render_charts(const std::vector<Floats>& series, const py::object& style,
                   Array<std::uint8_t>& out, int threads) {
    std::vector<std::span<const double>> views;
    for (const Floats& values : series) views.push_back(flat("series", values));
    const lineup::ChartStyle chart = chart_style(style);
    const std::span<std::uint8_t> pixels(out.mutable_data(), static_cast<std::size_t>(out.size()));
    without_gil([&] { lineup::render_charts(views, chart, pixels, threads, poll_signals); });
}

const char* const kPatches = R"(Cut images into the patches of Qwen2.5-VL.

images: uint8 [N, H, W, 3]; out: float32 or, for bfloat16 bits, uint16, of all the numbers.)";

// Calls use() with the numbers of `out` as float32 or bfloat16.
template <class Use>
void with_numbers(py::array& out, const Use& use) {
    const auto size = static_cast<std::size_t>(out.size());
    if ((out.flags() & py::array::c_style) == 0) refuse("out", "C-contiguous numbers");
    if (py::isinstance<py::array_t<float>>(out)) {
        use(std::span(static_cast<float*>(out.mutable_data()), size));
    } else if (py::isinstance<py::array_t<std::uint16_t>>(out)) {
        use(std::span(reinterpret_cast<lineup::BFloat16*>(out.mutable_data()), size));
    } else {
        refuse("out", "float32 or uint16");
    }
}

void patches(const Array<std::uint8_t>& images, py::array& out, std::size_t patch,
             std::size_t merge, std::size_t temporal, int threads) {
    if (images.ndim() != 4 || images.shape(3) != 3) refuse("images", "uint8 [N, H, W, 3]");
    const lineup::PatchShape shape{.height = static_cast<std::size_t>(images.shape(1)),
                                   .width = static_cast<std::size_t>(images.shape(2)),
                                   .patch = patch,
                                   .merge = merge,
                                   .temporal = temporal};
    const std::span pixels(images.data(), static_cast<std::size_t>(images.size()));
    with_numbers(out, [&](auto numbers) {
        without_gil([&] { lineup::patches(pixels, shape, numbers, threads, poll_signals); });
    });
}

const char* const kChartPatches = R"(Draw charts and cut them into patches, as patches() does.

series: list of N float64 [T]; style: a ChartStyle; out: float32 or uint16.)";

void chart_patches(const std::vector<Floats>& series, const py::object& style, py::array& out,
                   int threads) {
    std::vector<std::span<const double>> views;
    for (const Floats& values : series) views.push_back(flat("series", values));
    const lineup::ChartStyle chart = chart_style(style);
    with_numbers(out, [&](auto numbers) {
        without_gil([&] { lineup::chart_patches(views, chart, numbers, threads, poll_signals); });
    });
}

const char* const kPng = R"(Return the PNG file of an image.

image: uint8 [H, W, 3].)";

py::bytes png(const Array<std::uint8_t>& image) {
    if (image.ndim() != 3 || image.shape(2) != 3) refuse("image", "uint8 [H, W, 3]");
    const std::span pixels(image.data(), static_cast<std::size_t>(image.size()));
    const lineup::PngFile file = without_gil([&] {
        return lineup::png(pixels, static_cast<std::size_t>(image.shape(1)),
                           static_cast<std::size_t>(image.shape(0)));
    });
    return {reinterpret_cast<const char*>(file.bytes.get()), file.size};
}

std::string isa() {
#if defined(__x86_64__)
    return std::string("x86-64 ") + lineup::isa_name(requested_isa());
#elif defined(__aarch64__)
    return "aarch64";
#else
    return "generic";
#endif
}

const char* compiler() {
#if defined(__clang__)
    return "clang " __clang_version__;
#else
    return "gcc " __VERSION__;
#endif
}

py::dict build_info() {
    py::dict info;
    info["version"] = LINEUP_VERSION;
    info["compiler"] = compiler();
    info["isa"] = isa();
    info["cairo"] = lineup::cairo_version();
    info["cuda"] = lineup::cuda::summary();
    info["threads"] = std::thread::hardware_concurrency();
    return info;
}

}  // namespace

PYBIND11_MODULE(_core, m, py::mod_gil_not_used()) {
    m.doc() = "Native kernels of lineup_fast; call them through lineup_fast.kernels.";
    m.def("features", &features, kFeatures, py::arg("series"), py::arg("threads") = 0,
          py::arg("out").noconvert() = py::none());
    m.def("cuda_features", &cuda_features, kCudaFeatures, py::arg("series"),
          py::arg("out").noconvert() = py::none());
    m.def("require_cuda", &lineup::cuda::require_device,
          "Raise RuntimeError that says why there is no CUDA device, if so.");
    m.def("longest_run", &longest_run, kLongestRun, py::arg("a").noconvert(),
          py::arg("b").noconvert(), py::arg("decimals"));
    bind::add_neighbours(m);
    bind::add_prompts(m);
    m.def("nice_ticks", &nice_ticks, kNiceTicks, py::arg("lo"), py::arg("hi"), py::arg("n"),
          py::arg("integer") = false);
    m.def("render_charts", &render_charts, kRenderCharts, py::arg("series"), py::arg("style"),
          py::arg("out").noconvert(), py::arg("threads") = 0);
    m.def("patches", &patches, kPatches, py::arg("images").noconvert(), py::arg("out").noconvert(),
          py::arg("patch"), py::arg("merge"), py::arg("temporal"), py::arg("threads") = 0);
    m.def("chart_patches", &chart_patches, kChartPatches, py::arg("series"), py::arg("style"),
          py::arg("out").noconvert(), py::arg("threads") = 0);
    m.def("png", &png, kPng, py::arg("image").noconvert());
    m.def("build_info", &build_info,
          "Return version, compiler, isa, cairo version, CUDA and cores.");
}
