// How device kernels are written, so that the same code runs on a GPU and, thread after thread, in
// a test on a processor. A body is a struct of plain values and device pointers with
//
//   kThreads                              threads of a block
//   Shared, State                         memory of a block and of a thread, without first values
//   phases(block)                         how many phases the block goes through
//   step(phase, block, thread, state, shared)
//
// Between two phases all threads of a block wait for each other. Within a phase no thread may read
// what another one writes, and two may only write the same value; blocks know nothing of each
// other. What launches bodies is a machine: machine.cuh for GPUs, tests/core/emulated.hpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "values.hpp"

#ifdef __CUDACC__
#define LINEUP_DEVICE __host__ __device__
#else
#define LINEUP_DEVICE
#endif

namespace lineup::cuda {

// Rows in memory of the device; see lineup::Rows.
struct DeviceRows {
    const double* data;
    std::size_t n;
    std::size_t steps;
    std::size_t stride;
    const std::int64_t* at;

    LINEUP_DEVICE const double* row(std::size_t i) const {
        return data + (at == nullptr ? i * stride : static_cast<std::size_t>(at[i]));
    }
};

// Rows copied to a machine, each value once also where rows overlap.
template <class Machine>
struct UploadedRows {
    typename Machine::template Buffer<double> values;
    typename Machine::template Buffer<std::int64_t> at;
    DeviceRows view;

    UploadedRows(Machine& machine, const Rows& rows)
        : values(machine.upload(rows.all())),
          at(machine.upload(std::span(rows.at, rows.at == nullptr ? 0 : rows.n))),
          view{values.data(), rows.n, rows.steps, rows.stride,
               rows.at == nullptr ? nullptr : at.data()} {}
};

}  // namespace lineup::cuda
