// The Python module lineup_fast._core: argument checks, outputs, GIL; no arithmetic. Only files
// named bind see pybind11. lineup_fast/kernels.py is its only caller and gives the readable errors;
// what is checked here again is what memory safety needs.
#include <pybind11/stl.h>

#include <thread>

#include "bind.hpp"
#include "chart.hpp"
#include "features.hpp"
#include "numerals.hpp"
#include "overlap.hpp"
#include "patches.hpp"
#include "png.hpp"
#include "ticks.hpp"

namespace {

using namespace bind;

const char* const kFeatures = R"(Return mean, population std, min and max of each row.

series: float64 [N, T], or a tuple as of NeighbourIndex. Returns float64 [N, 4].)";

py::array_t<double> features(const py::object& series, int threads) {
    const lineup::Rows view = series_rows("series", series);
    py::array_t<double> out({view.n, lineup::kFeatures});
    const std::span<double> target(out.mutable_data(), static_cast<std::size_t>(out.size()));
    const lineup::Isa isa = requested_isa();
    without_gil([&] { lineup::features(view, target, threads, poll_signals, isa); });
    return out;
}

const char* const kLongestRun = R"(Return the length of the longest run two series share.

a, b: float64 [T], of any lengths, compared after rounding to decimals.)";

std::size_t longest_run(const Floats& a, const Floats& b, int decimals) {
    const auto left = flat("a", a);
    const auto right = flat("b", b);
    return without_gil([&] { return lineup::longest_run(left, right, decimals); });
}

const char* const kFormatNumbers = R"(Return values with a fixed number of decimals, joined.

values: float64 [T]; decimals: 0 to 12.)";

std::string format_numbers(const Floats& values, int decimals, const std::string& separator) {
    require_between("decimals", decimals, 0, 12);
    const auto view = flat("values", values);
    return without_gil([&] { return lineup::format_numbers(view, decimals, separator); });
}

const char* const kNumberIds = R"(Return token ids of rows of numbers: (ids, offsets [M+1]).

values: float64 [M, T]; digits: (int32 ids, int64 offsets [1111]); the rest int32 ids of the runs
between digits; group: digits per unit, 1 or 3.)";

py::tuple number_ids(const Floats& values, int decimals, const Ragged& digits, const Ints& first,
                     const Ints& first_negative, const Ints& separator,
                     const Ints& separator_negative, const Ints& dot, int group, int threads) {
    require_between("decimals", decimals, 0, 12);
    if (group != 1 && group != 3) refuse("group", "1 or 3");
    const lineup::Rows view = rows("values", values);
    const lineup::RaggedView runs = ragged("digits", digits);
    if (runs.size() != 1110) refuse("digits offsets", "1111 entries");
    const lineup::NumeralTable table{
        .digit_ids = runs.ids,
        .digit_offsets = runs.offsets,
        .first = flat("first", first),
        .first_negative = flat("first_negative", first_negative),
        .separator = flat("separator", separator),
        .separator_negative = flat("separator_negative", separator_negative),
        .dot = flat("dot", dot),
        .group = static_cast<std::size_t>(group),
    };
    lineup::RaggedIds out = without_gil(
        [&] { return lineup::number_ids(view, decimals, table, threads, poll_signals); });
    return py::make_tuple(owned(std::move(out.ids)), owned(std::move(out.offsets)));
}

const char* const kPromptTree = R"(Return a group's prompts as (ids, offsets, parent, questions).

layout: 0 candidates first, 1 caption first; ids int32; labels, blocks: (ids, offsets [K+1]), block
row 0 the target; captions: (ids, offsets [G+1]).)";

py::tuple prompt_tree(int layout, const Ints& head, const Ints& middle, const Ints& tail,
                      const Ragged& labels, const Ragged& blocks, const Ints& block_end,
                      const Ragged& captions) {
    require_between("layout", layout, 0, 1);
    const lineup::PromptParts parts{
        .head = flat("head", head),
        .middle = flat("middle", middle),
        .tail = flat("tail", tail),
        .labels = ragged("labels", labels),
        .blocks = ragged("blocks", blocks),
        .block_end = flat("block_end", block_end),
        .captions = ragged("captions", captions),
    };
    const std::size_t k = parts.labels.size();
    if (k < 2) refuse("labels", "at least 2 candidates");
    if (parts.blocks.size() != k) refuse("blocks", std::to_string(k) + " rows as in labels");
    lineup::PromptTree tree =
        without_gil([&] { return lineup::prompt_tree(lineup::Layout{layout}, parts); });
    auto questions = owned(std::move(tree.questions));
    return py::make_tuple(owned(std::move(tree.ids)), owned(std::move(tree.offsets)),
                          owned(std::move(tree.parent)),
                          questions.reshape({static_cast<py::ssize_t>(parts.captions.size()),
                                             static_cast<py::ssize_t>(k)}));
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
    info["threads"] = std::thread::hardware_concurrency();
    return info;
}

}  // namespace

PYBIND11_MODULE(_core, m, py::mod_gil_not_used()) {
    m.doc() = "Native kernels of lineup_fast; call them through lineup_fast.kernels.";
    m.def("features", &features, kFeatures, py::arg("series"), py::arg("threads") = 0);
    m.def("longest_run", &longest_run, kLongestRun, py::arg("a").noconvert(),
          py::arg("b").noconvert(), py::arg("decimals"));
    bind::add_neighbours(m);
    m.def("format_numbers", &format_numbers, kFormatNumbers, py::arg("values").noconvert(),
          py::arg("decimals"), py::arg("separator"));
    m.def("number_ids", &number_ids, kNumberIds, py::arg("values").noconvert(), py::arg("decimals"),
          py::arg("digits"), py::arg("first").noconvert(), py::arg("first_negative").noconvert(),
          py::arg("separator").noconvert(), py::arg("separator_negative").noconvert(),
          py::arg("dot").noconvert(), py::arg("group"), py::arg("threads") = 0);
    m.def("prompt_tree", &prompt_tree, kPromptTree, py::arg("layout"), py::arg("head").noconvert(),
          py::arg("middle").noconvert(), py::arg("tail").noconvert(), py::arg("labels"),
          py::arg("blocks"), py::arg("block_end").noconvert(), py::arg("captions"));
    m.def("nice_ticks", &nice_ticks, kNiceTicks, py::arg("lo"), py::arg("hi"), py::arg("n"),
          py::arg("integer") = false);
    m.def("render_charts", &render_charts, kRenderCharts, py::arg("series"), py::arg("style"),
          py::arg("out").noconvert(), py::arg("threads") = 0);
    m.def("patches", &patches, kPatches, py::arg("images").noconvert(), py::arg("out").noconvert(),
          py::arg("patch"), py::arg("merge"), py::arg("temporal"), py::arg("threads") = 0);
    m.def("chart_patches", &chart_patches, kChartPatches, py::arg("series"), py::arg("style"),
          py::arg("out").noconvert(), py::arg("threads") = 0);
    m.def("png", &png, kPng, py::arg("image").noconvert());
    m.def("build_info", &build_info, "Return version, compiler, isa, cairo version and cores.");
}
