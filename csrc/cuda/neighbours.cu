#include "cuda/device.hpp"
#include "cuda/machine.cuh"
#include "cuda/neighbours_rounds.hpp"

namespace lineup::cuda {

void neighbours(const PlacedSeries& members, const Overlap& overlap, std::size_t k,
                std::span<std::int32_t> out, int threads, const Poll& poll) {
    require_device();
    Machine machine;
    neighbours_on(machine, members, overlap, k, out, threads, poll);
}

}  // namespace lineup::cuda
