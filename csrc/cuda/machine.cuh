// Runs bodies on the current CUDA device. Everything is on the default stream and waits for what
// came before it; an error of CUDA is a std::runtime_error.
#pragma once

#include <cuda_runtime.h>

#include <span>
#include <stdexcept>
#include <string>
#include <utility>

#include "cuda/grid.hpp"

namespace lineup::cuda {

inline void check(cudaError_t error, const std::string& expected) {
    if (error == cudaSuccess) return;
    cudaGetLastError();  // so that the next call does not meet it again
    throw std::runtime_error("cuda: expected " + expected + ", got " + cudaGetErrorName(error) +
                             ": " + cudaGetErrorString(error));
}

template <class T>
class DeviceBuffer {
  public:
    explicit DeviceBuffer(std::size_t n) : n_(n) {
        if (n == 0) return;
        check(cudaMalloc(&data_, n * sizeof(T)),
              std::to_string(n * sizeof(T)) + " bytes of device memory");
    }
    DeviceBuffer(DeviceBuffer&& other) noexcept
        : data_(std::exchange(other.data_, nullptr)), n_(std::exchange(other.n_, 0)) {}
    DeviceBuffer& operator=(DeviceBuffer&&) = delete;
    ~DeviceBuffer() { cudaFree(data_); }

    T* data() { return data_; }
    const T* data() const { return data_; }
    std::size_t size() const { return n_; }

  private:
    T* data_ = nullptr;
    std::size_t n_;
};

template <class Body>
__global__ void __launch_bounds__(Body::kThreads) run_body(const Body body) {
    __shared__ typename Body::Shared shared;
    typename Body::State state;
    const std::size_t phases = body.phases(blockIdx.x);
    for (std::size_t phase = 0; phase < phases; ++phase) {
        body.step(phase, blockIdx.x, threadIdx.x, state, shared);
        __syncthreads();
    }
}

struct Machine {
    template <class T>
    using Buffer = DeviceBuffer<T>;

    template <class T>
    Buffer<T> room(std::size_t n) {
        return Buffer<T>(n);
    }

    template <class T>
    Buffer<std::remove_const_t<T>> upload(std::span<T> from) {
        Buffer<std::remove_const_t<T>> to(from.size());
        if (from.empty()) return to;
        check(cudaMemcpy(to.data(), from.data(), from.size_bytes(), cudaMemcpyHostToDevice),
              "to copy to the device");
        return to;
    }

    template <class T>
    void download(const Buffer<T>& from, std::span<T> to) {
        check(cudaMemcpy(to.data(), from.data(), to.size_bytes(), cudaMemcpyDeviceToHost),
              "a kernel to end well");
    }

    template <class Body>
    void launch(std::size_t blocks, const Body& body) {
        run_body<<<static_cast<unsigned>(blocks), static_cast<unsigned>(Body::kThreads)>>>(body);
        check(cudaGetLastError(), "a kernel to start");
    }
};

}  // namespace lineup::cuda
