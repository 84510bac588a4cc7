// The kernels that an NVIDIA GPU runs, with host memory on both sides: inputs are copied to the
// device once, results back. A build without LINEUP_CUDA has none.cpp in their place, where all but
// summary() throw. Errors of CUDA are std::runtime_error; there is never a fallback.
//
// They use the current device of the calling thread; threads may call them at the same time.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "neighbours.hpp"

namespace lineup::cuda {

// "not built", or with which toolkit for which architectures, and the devices or why there is none.
std::string summary();

// Throws std::runtime_error that says why there is no device, if so.
void require_device();

// φ as lineup::features has it, to the last bit.
void features(const Rows& series, std::span<double> out);

// The k neighbours of every member to out [N, k], as NeighbourIndex::search finds them. `threads`
// prepare it on the processor; poll is called between launches.
void neighbours(const PlacedSeries& members, const Overlap& overlap, std::size_t k,
                std::span<std::int32_t> out, int threads, const Poll& poll = {});

}  // namespace lineup::cuda
