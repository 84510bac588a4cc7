#include "cuda/device.hpp"

#include <cuda_runtime.h>

#include <stdexcept>

namespace lineup::cuda {
namespace {

std::string version_text(int version) {
    return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

// Why no device can be used; empty if one can.
std::string problem() {
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error == cudaSuccess && count > 0) return "";
    cudaGetLastError();
    int driver = 0;
    cudaDriverGetVersion(&driver);
    if (driver == 0) return "no NVIDIA driver";
    if (error == cudaErrorInsufficientDriver) {
        return "a driver for CUDA " + version_text(driver) + ", too old for " +
               version_text(CUDART_VERSION);
    }
    return std::string("no GPU (") + cudaGetErrorString(error) + ")";
}

}  // namespace

std::string summary() {
    std::string text = version_text(CUDART_VERSION) + " for " LINEUP_CUDA_ARCHITECTURES "; ";
    const std::string reason = problem();
    if (!reason.empty()) return text + "no device: " + reason;
    int count = 0;
    cudaGetDeviceCount(&count);
    text += std::to_string(count) + (count == 1 ? " device: " : " devices: ");
    for (int i = 0; i < count; ++i) {
        cudaDeviceProp device;
        if (cudaGetDeviceProperties(&device, i) != cudaSuccess) continue;
        if (i > 0) text += ", ";
        text += device.name;
    }
    return text;
}

void require_device() {
    const std::string reason = problem();
    if (reason.empty()) return;
    throw std::runtime_error("cuda: expected an NVIDIA GPU and its driver, got " + reason);
}

}  // namespace lineup::cuda
