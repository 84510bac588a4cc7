// What a build without CUDA answers.
#include <stdexcept>

#include "cuda/device.hpp"

namespace lineup::cuda {

std::string summary() {
    return "not built";
}

void require_device() {
    throw std::runtime_error(
        "cuda: expected a build with CUDA kernels, got one without. With nvcc 13: "
        "pip install . -C cmake.define.LINEUP_CUDA=ON");
}

void features(const Rows&, std::span<double>) {
    require_device();
}

void neighbours(const PlacedSeries&, const Overlap&, std::size_t, std::span<std::int32_t>, int,
                const Poll&) {
    require_device();
}

}  // namespace lineup::cuda
