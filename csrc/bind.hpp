// What the files of the Python module share: views on arrays, their checks, outputs, the GIL.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdlib>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "isa.hpp"
#include "prompts.hpp"
#include "values.hpp"

namespace bind {

namespace py = pybind11;

template <class T>
using Array = py::array_t<T, py::array::c_style>;
using Floats = Array<double>;
using Ints = Array<std::int32_t>;
using Longs = Array<std::int64_t>;
using Ragged = std::pair<Ints, Longs>;

[[noreturn]] inline void refuse(const std::string& name, const std::string& expected) {
    throw std::invalid_argument(name + ": expected " + expected);
}

inline lineup::Rows rows(const std::string& name, const Floats& array) {
    if (array.ndim() != 2 || array.size() == 0) refuse(name, "two dimensions, no empty side");
    return {array.data(), static_cast<std::size_t>(array.shape(0)),
            static_cast<std::size_t>(array.shape(1))};
}

// Rows of contiguous values: an array [N, T], whose rows may overlap as sliding windows do, or a
// tuple (values [V], at [N], steps) of windows that begin anywhere in an array.
lineup::Rows series_rows(const std::string& name, const py::object& series);

template <class T>
std::span<const T> flat(const std::string& name, const Array<T>& array) {
    if (array.ndim() != 1) refuse(name, "one dimension");
    return {array.data(), static_cast<std::size_t>(array.size())};
}

template <class T>
std::span<const T> flat(const std::string& name, const Array<T>& array, std::size_t size) {
    if (array.ndim() != 1 || static_cast<std::size_t>(array.size()) != size) {
        refuse(name, std::to_string(size) + " entries");
    }
    return flat(name, array);
}

inline lineup::RaggedView ragged(const std::string& name, const Ragged& array) {
    const auto ids = flat(name, array.first);
    const auto offsets = flat(name + " offsets", array.second);
    bool good = !offsets.empty() && offsets.front() == 0 &&
                offsets.back() == static_cast<std::int64_t>(ids.size());
    for (std::size_t i = 1; good && i < offsets.size(); ++i) good = offsets[i - 1] <= offsets[i];
    if (!good) refuse(name + " offsets", "rising from 0 to " + std::to_string(ids.size()));
    return {ids, offsets};
}

inline void require_between(const std::string& name, std::int64_t value, std::int64_t low,
                            std::int64_t high) {
    if (value < low || value > high) {
        refuse(name, std::to_string(low) + " to " + std::to_string(high));
    }
}

template <class T>
py::array_t<T> owned(std::vector<T>&& values) {
    auto* kept = new std::vector<T>(std::move(values));
    const py::capsule owner(kept, [](void* p) { delete static_cast<std::vector<T>*>(p); });
    return py::array_t<T>(static_cast<py::ssize_t>(kept->size()), kept->data(), owner);
}

// The instruction set of this call: the best one, or what LINEUP_ISA names. To be called with the
// GIL, under which Python changes the environment.
inline lineup::Isa requested_isa() {
    const char* name = std::getenv("LINEUP_ISA");
    return lineup::named_isa(name == nullptr ? "" : name);
}

struct Interrupted {};  // a signal handler raised; its exception waits in the interpreter

// Lets Python's signal handlers run, so that Ctrl+C stops a long kernel.
inline void poll_signals() {
    const py::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() != 0) throw Interrupted{};
}

// Runs the kernel with the GIL released; no Python object may be touched in it.
template <class Kernel>
auto without_gil(Kernel&& kernel) {
    try {
        const py::gil_scoped_release released;
        return kernel();
    } catch (const Interrupted&) {
        throw py::error_already_set();
    }
}

// The index of neighbours and its one-call form.
void add_neighbours(py::module_& m);

// Numbers as text and ids, prompt trees, whole prompts.
void add_prompts(py::module_& m);

}  // namespace bind
