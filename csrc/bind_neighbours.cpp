// Neighbours in the Python module.
#include <cstdint>
#include <memory>
#include <optional>

#include "bind.hpp"
#include "cuda/device.hpp"
#include "neighbours.hpp"

namespace bind {
namespace {

// (values [V], at [N], steps)
lineup::Rows scattered_rows(const std::string& name, const py::tuple& windows) {
    const bool good = windows.size() == 3 && py::isinstance<Floats>(windows[0]) &&
                      py::isinstance<Longs>(windows[1]) && py::isinstance<py::int_>(windows[2]);
    if (!good) refuse(name, "values float64 [V], at int64 [N] and steps");
    const auto values = flat(name, py::reinterpret_borrow<Floats>(windows[0]));
    const auto at = flat(name, py::reinterpret_borrow<Longs>(windows[1]));
    const auto steps = windows[2].cast<std::int64_t>();
    const std::int64_t last = static_cast<std::int64_t>(values.size()) - steps;
    require_between(name + " steps", steps, 1, static_cast<std::int64_t>(values.size()));
    if (at.empty()) refuse(name, "at least one window");
    for (const std::int64_t from : at) require_between(name + " at", from, 0, last);
    const auto length = static_cast<std::size_t>(steps);
    return {values.data(), at.size(), length, length, at.data(), values.size()};
}

}  // namespace

lineup::Rows series_rows(const std::string& name, const py::object& series) {
    if (py::isinstance<py::tuple>(series)) return scattered_rows(name, series.cast<py::tuple>());
    using Windows = py::array_t<double, 0>;  // of any strides
    if (!py::isinstance<Windows>(series)) refuse(name, "an array of float64");
    const auto array = py::reinterpret_borrow<Windows>(series);
    if (array.ndim() != 2 || array.size() == 0) refuse(name, "two dimensions, no empty side");
    constexpr auto width = static_cast<py::ssize_t>(sizeof(double));
    const auto n = static_cast<std::size_t>(array.shape(0));
    const auto steps = static_cast<std::size_t>(array.shape(1));
    const bool good = (steps == 1 || array.strides(1) == width) && array.strides(0) >= 0 &&
                      array.strides(0) % width == 0;
    if (!good) refuse(name, "rows of contiguous values");
    const std::size_t stride = n == 1 ? steps : static_cast<std::size_t>(array.strides(0) / width);
    return {array.data(), n, steps, stride};
}

namespace {

lineup::PlacedSeries placed(const Floats& z, const py::object& series, const Ints& source,
                            const Longs& start, const Ints& group) {
    const lineup::Rows values = series_rows("series", series);
    const lineup::Rows points = rows("z", z);
    if (points.n != values.n) refuse("z", std::to_string(values.n) + " rows as in series");
    if (values.n > (std::size_t{1} << 31) - 1) refuse("series", "fewer than 2^31 rows");
    return {points, values, flat("group", group, values.n), flat("source", source, values.n),
            flat("start", start, values.n)};
}

lineup::Overlap overlap(std::int64_t max_run, int decimals, const std::string& rule) {
    require_between("max_run", max_run, 0, (std::int64_t{1} << 31) - 1);
    if (rule != "run" && rule != "window") refuse("rule", "run or window");
    return {static_cast<std::size_t>(max_run), decimals,
            rule == "run" ? lineup::OverlapRule::run : lineup::OverlapRule::window};
}

// The index, and the arrays that it refers to.
class Index {
  public:
    Index(Floats z, py::object series, std::int64_t max_run, int decimals, const std::string& rule,
          Ints source, Longs start, Ints group, int threads)
        : z_(std::move(z)),
          series_(std::move(series)),
          source_(std::move(source)),
          start_(std::move(start)),
          group_(std::move(group)) {
        const lineup::PlacedSeries members = placed(z_, series_, source_, start_, group_);
        const lineup::Overlap rules = overlap(max_run, decimals, rule);
        const lineup::Isa isa = requested_isa();
        without_gil([&] { index_.emplace(members, rules, threads, poll_signals, isa); });
    }

    py::array_t<std::int32_t> search(std::int64_t k, int threads) const {
        require_between("k", k, 1, std::int64_t{1} << 20);
        const auto size = static_cast<std::size_t>(k);
        py::array_t<std::int32_t> out({index_->size(), size});
        const std::span<std::int32_t> pools(out.mutable_data(), index_->size() * size);
        const lineup::Isa isa = requested_isa();
        without_gil([&] { index_->search(size, pools, threads, poll_signals, isa); });
        return out;
    }

    py::array_t<std::int32_t> query(const Floats& z, const py::object& series, std::int64_t k,
                                    const Ints& source, const Longs& start, const Ints& group,
                                    int threads) const {
        require_between("k", k, 1, std::int64_t{1} << 20);
        const lineup::PlacedSeries asked = placed(z, series, source, start, group);
        if (asked.z.steps != index_->dims()) refuse("z", std::to_string(index_->dims()) + " dims");
        if (asked.series.steps != index_->steps()) {
            refuse("series", std::to_string(index_->steps()) + " steps");
        }
        const auto size = static_cast<std::size_t>(k);
        py::array_t<std::int32_t> out({asked.z.n, size});
        const std::span<std::int32_t> pools(out.mutable_data(), asked.z.n * size);
        const lineup::Isa isa = requested_isa();
        without_gil([&] { index_->query(asked, size, pools, threads, poll_signals, isa); });
        return out;
    }

    std::size_t nbytes() const { return index_->bytes(); }

    py::array_t<bool> admissible(const Ints& pool, int threads) const {
        if (pool.ndim() != 2 || static_cast<std::size_t>(pool.shape(0)) != index_->size()) {
            refuse("pool", std::to_string(index_->size()) + " rows");
        }
        const std::span<const std::int32_t> view(pool.data(),
                                                 static_cast<std::size_t>(pool.size()));
        py::array_t<bool> out({pool.shape(0), pool.shape(1)});
        const std::span<bool> flags(out.mutable_data(), view.size());
        const auto k = static_cast<std::size_t>(pool.shape(1));
        without_gil([&] { index_->admissible(view, k, flags, threads, poll_signals); });
        return out;
    }

  private:
    Floats z_;
    py::object series_;
    Ints source_;
    Longs start_;
    Ints group_;
    std::optional<lineup::NeighbourIndex> index_;
};

const char* const kIndex = R"(Index of series for their nearest admissible neighbours.

z: float64 [N, D]; series: float64 [N, T], whose rows may overlap in memory, or a tuple (values
float64 [V], at int64 [N], steps), kept; rule: "run" or "window"; source, group: int32 [N]; start:
int64 [N].)";

const char* const kSearch = R"(Return the k neighbours of every member: int32 [N, k], -1 padded.)";

const char* const kQuery = R"(Return the k neighbours of series from outside: int32 [M, k].)";

const char* const kAdmissible = R"(Return which entries of a pool int32 [N, k] may stand there.)";

const char* const kNeighbours = R"(Return the k nearest admissible rows of each row.

z: float64 [N, D]; series: as of NeighbourIndex; rule: "run" or "window"; source, group: int32 [N];
start: int64 [N]. Returns int32 [N, k], padded with -1.)";

py::array_t<std::int32_t> neighbours(const Floats& z, const py::object& series, std::int64_t k,
                                     std::int64_t max_run, int decimals, const std::string& rule,
                                     const Ints& source, const Longs& start, const Ints& group,
                                     int threads) {
    return Index(z, series, max_run, decimals, rule, source, start, group, threads)
        .search(k, threads);
}

const char* const kCudaNeighbours =
    R"(What neighbours() returns, computed by the current CUDA device; threads prepare it.

Raises RuntimeError where there is none, or none was built for.)";

py::array_t<std::int32_t> cuda_neighbours(const Floats& z, const py::object& series, std::int64_t k,
                                          std::int64_t max_run, int decimals,
                                          const std::string& rule, const Ints& source,
                                          const Longs& start, const Ints& group, int threads) {
    const lineup::PlacedSeries members = placed(z, series, source, start, group);
    const lineup::Overlap rules = overlap(max_run, decimals, rule);
    require_between("k", k, 1, std::int64_t{1} << 20);
    const auto size = static_cast<std::size_t>(k);
    py::array_t<std::int32_t> out({members.z.n, size});
    const std::span<std::int32_t> pools(out.mutable_data(), members.z.n * size);
    without_gil(
        [&] { lineup::cuda::neighbours(members, rules, size, pools, threads, poll_signals); });
    return out;
}

}  // namespace

void add_neighbours(py::module_& m) {
    using py::arg;
    // A plain type: a metaclass of pybind11's own could not be written down in the stubs.
    const py::metaclass plain(reinterpret_cast<PyObject*>(&PyType_Type));
    py::class_<Index>(m, "NeighbourIndex", plain, kIndex)
        .def(py::init<Floats, py::object, std::int64_t, int, const std::string&, Ints, Longs, Ints,
                      int>(),
             arg("z").noconvert(), arg("series"), arg("max_run"), arg("decimals"), arg("rule"),
             arg("source").noconvert(), arg("start").noconvert(), arg("group").noconvert(),
             arg("threads") = 0)
        .def_property_readonly("nbytes", &Index::nbytes, "Bytes that the index itself takes.")
        .def("search", &Index::search, kSearch, arg("k"), arg("threads") = 0)
        .def("query", &Index::query, kQuery, arg("z").noconvert(), arg("series"), arg("k"),
             arg("source").noconvert(), arg("start").noconvert(), arg("group").noconvert(),
             arg("threads") = 0)
        .def("admissible", &Index::admissible, kAdmissible, arg("pool").noconvert(),
             arg("threads") = 0);
    m.def("neighbours", &neighbours, kNeighbours, arg("z").noconvert(), arg("series"), arg("k"),
          arg("max_run"), arg("decimals"), arg("rule"), arg("source").noconvert(),
          arg("start").noconvert(), arg("group").noconvert(), arg("threads") = 0);
    m.def("cuda_neighbours", &cuda_neighbours, kCudaNeighbours, arg("z").noconvert(), arg("series"),
          arg("k"), arg("max_run"), arg("decimals"), arg("rule"), arg("source").noconvert(),
          arg("start").noconvert(), arg("group").noconvert(), arg("threads") = 0);
}

}  // namespace bind
