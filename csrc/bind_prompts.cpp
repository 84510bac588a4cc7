// Numbers and prompts in the Python module.
#include <pybind11/stl.h>

#include <memory>
#include <optional>

#include "bind.hpp"
#include "numerals.hpp"
#include "prompts.hpp"

namespace bind {
namespace {

const char* const kFormatNumbers = R"(Return values with a fixed number of decimals, joined.

values: float64 [T]; decimals: 0 to 12.)";

std::string format_numbers(const Floats& values, int decimals, const std::string& separator) {
    require_between("decimals", decimals, 0, 12);
    const auto view = flat("values", values);
    const lineup::Isa isa = requested_isa();
    return without_gil([&] { return lineup::format_numbers(view, decimals, separator, isa); });
}

const char* const kNumerals = R"(Token ids of printed numbers, straight from the values.

digits: (int32 ids, int64 offsets [1111]); the rest int32 ids of the runs between digits; group:
digits per piece, 1 or 3.)";

std::unique_ptr<lineup::Numerals> numerals(const Ragged& digits, const Ints& first,
                                           const Ints& first_negative, const Ints& separator,
                                           const Ints& separator_negative, const Ints& dot,
                                           int group) {
    if (group != 1 && group != 3) refuse("group", "1 or 3");
    const lineup::RaggedView runs = ragged("digits", digits);
    if (runs.size() != lineup::kDigitRuns) refuse("digits offsets", "1111 entries");
    return std::make_unique<lineup::Numerals>(lineup::NumeralTable{
        .digit_ids = runs.ids,
        .digit_offsets = runs.offsets,
        .openings = {flat("first", first), flat("first_negative", first_negative),
                     flat("separator", separator), flat("separator_negative", separator_negative)},
        .dot = flat("dot", dot),
        .group = static_cast<std::size_t>(group),
    });
}

std::span<const std::int32_t> checked_decimals(const Ints& decimals, std::size_t rows) {
    const auto out = flat("decimals", decimals, rows);
    for (const std::int32_t number : out) require_between("decimals", number, 0, 12);
    return out;
}

const char* const kNumberIds = R"(Return token ids of rows of numbers: (ids, offsets [M+1]).

values: float64 [M, T]; decimals: int32 [M], 0 to 12.)";

py::tuple number_ids(const lineup::Numerals& numerals, const Floats& values, const Ints& decimals,
                     int threads) {
    const lineup::Rows view = rows("values", values);
    const auto digits = checked_decimals(decimals, view.n);
    const lineup::Isa isa = requested_isa();
    lineup::RaggedIds out =
        without_gil([&] { return numerals.ids(view, digits, threads, poll_signals, isa); });
    auto* kept = new lineup::Units<std::int32_t>(std::move(out.ids));
    const py::capsule owner(kept,
                            [](void* p) { delete static_cast<lineup::Units<std::int32_t>*>(p); });
    const py::array_t<std::int32_t> ids(static_cast<py::ssize_t>(kept->size()), kept->view().data(),
                                        owner);
    return py::make_tuple(ids, owned(std::move(out.offsets)));
}

lineup::Layout named_layout(int layout) {
    require_between("layout", layout, 0, 1);
    return lineup::Layout{layout};
}

const char* const kPromptTree = R"(Return a group's prompts as (ids, offsets, parent, questions).

layout: 0 candidates first, 1 caption first; ids int32; labels, blocks: (ids, offsets [K+1]), block
row 0 the target; captions: (ids, offsets [G+1]).)";

py::tuple prompt_tree(int layout, const Ints& head, const Ints& middle, const Ints& tail,
                      const Ragged& labels, const Ragged& blocks, const Ints& block_end,
                      const Ragged& captions) {
    const lineup::Layout order = named_layout(layout);
    const lineup::PromptParts pieces{
        .head = flat("head", head),
        .middle = flat("middle", middle),
        .tail = flat("tail", tail),
        .labels = ragged("labels", labels),
        .blocks = ragged("blocks", blocks),
        .block_end = flat("block_end", block_end),
        .captions = ragged("captions", captions),
    };
    const std::size_t k = pieces.labels.size();
    if (k < 2) refuse("labels", "at least 2 candidates");
    if (pieces.blocks.size() != k) refuse("blocks", std::to_string(k) + " rows as in labels");
    lineup::PromptTree tree = without_gil([&] { return lineup::prompt_tree(order, pieces); });
    auto questions = owned(std::move(tree.questions));
    return py::make_tuple(owned(std::move(tree.ids)), owned(std::move(tree.offsets)),
                          owned(std::move(tree.parent)),
                          questions.reshape({static_cast<py::ssize_t>(pieces.captions.size()),
                                             static_cast<py::ssize_t>(k)}));
}

const char* const kPrompts = R"(Write whole prompts; return (ids, offsets [B*G*K+1]).

layout, head, middle, tail, labels: as of prompt_tree; values: float64 [B*K, T], decimals int32
[B*K]; captions: (ids, offsets [B*G+1]). out: int32 with room for all, returned as ids; None: a new
array.)";

py::tuple prompts(const lineup::Numerals& numerals, int layout, const Ints& head,
                  const Ints& middle, const Ints& tail, const Ragged& labels, const Floats& values,
                  const Ints& decimals, const Ragged& captions, std::optional<Ints> out,
                  int threads) {
    const lineup::Layout order = named_layout(layout);
    const lineup::Rows view = rows("values", values);
    const auto digits = checked_decimals(decimals, view.n);
    const lineup::PromptParts pieces{
        .head = flat("head", head),
        .middle = flat("middle", middle),
        .tail = flat("tail", tail),
        .labels = ragged("labels", labels),
        .blocks = {},
        .block_end = {},
        .captions = ragged("captions", captions),
    };
    const std::size_t k = pieces.labels.size();
    if (k < 2) refuse("labels", "at least 2 candidates");
    if (view.n % k != 0) refuse("values", std::to_string(k) + " rows per group");
    if (pieces.captions.size() == 0 || pieces.captions.size() % (view.n / k) != 0) {
        refuse("captions", "equally many for each of " + std::to_string(view.n / k) + " groups");
    }
    if (out && out->ndim() != 1) refuse("out", "one dimension");
    const lineup::Isa isa = requested_isa();
    const auto write = [&](std::span<std::int32_t> target) {
        return without_gil([&] {
            return lineup::whole_prompts(order, pieces, numerals, view, digits, target, threads,
                                         poll_signals, isa);
        });
    };
    const auto all_of = [](Ints& array) {
        return std::span(array.mutable_data(), static_cast<std::size_t>(array.size()));
    };
    std::vector<std::int64_t> offsets = write(out ? all_of(*out) : std::span<std::int32_t>());
    if (!out) {
        out.emplace(static_cast<py::ssize_t>(offsets.back()));
        write(all_of(*out));
    } else if (offsets.back() > out->size()) {
        refuse("out", "room for " + std::to_string(offsets.back()) + " ids, got " +
                          std::to_string(out->size()));
    }
    return py::make_tuple(*out, owned(std::move(offsets)));
}

}  // namespace

void add_prompts(py::module_& m) {
    using py::arg;
    m.def("format_numbers", &format_numbers, kFormatNumbers, arg("values").noconvert(),
          arg("decimals"), arg("separator"));
    // A plain type: a metaclass of pybind11's own could not be written down in the stubs.
    const py::metaclass plain(reinterpret_cast<PyObject*>(&PyType_Type));
    py::class_<lineup::Numerals>(m, "Numerals", plain, kNumerals)
        .def(py::init(&numerals), arg("digits"), arg("first").noconvert(),
             arg("first_negative").noconvert(), arg("separator").noconvert(),
             arg("separator_negative").noconvert(), arg("dot").noconvert(), arg("group"))
        .def("ids", &number_ids, kNumberIds, arg("values").noconvert(), arg("decimals").noconvert(),
             arg("threads") = 0)
        .def("prompts", &prompts, kPrompts, arg("layout"), arg("head").noconvert(),
             arg("middle").noconvert(), arg("tail").noconvert(), arg("labels"),
             arg("values").noconvert(), arg("decimals").noconvert(), arg("captions"),
             arg("out").noconvert() = py::none(), arg("threads") = 0);
    m.def("prompt_tree", &prompt_tree, kPromptTree, arg("layout"), arg("head").noconvert(),
          arg("middle").noconvert(), arg("tail").noconvert(), arg("labels"), arg("blocks"),
          arg("block_end").noconvert(), arg("captions"));
}

}  // namespace bind
