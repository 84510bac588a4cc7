#include "cuda/device.hpp"
#include "cuda/features_body.hpp"
#include "cuda/machine.cuh"

namespace lineup::cuda {

void features(const Rows& series, std::span<double> out) {
    require_device();
    Machine machine;
    features_on(machine, series, out);
}

}  // namespace lineup::cuda
