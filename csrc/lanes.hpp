// Vectors of doubles as the compilers know them, for code that is written once and compiled for
// each instruction set with the widest vector it has. Everything here is always inlined, so that
// it takes the instruction set of the function it ends up in; vectors are never passed by value,
// which would have no fixed ABI.
#pragma once

#include <array>
#include <cstddef>
#include <cstring>

#include "isa.hpp"

namespace lineup {

using Lanes2 = double __attribute__((vector_size(16)));
using Lanes4 = double __attribute__((vector_size(32)));
using Lanes8 = double __attribute__((vector_size(64)));

template <class V>
inline constexpr std::size_t kLanesOf = sizeof(V) / sizeof(double);

// Results that are sums keep 16 partial sums whatever the vector, so that all instruction sets
// give the same bits.
inline constexpr std::size_t kSums = 16;
template <class V>
using Sums = std::array<V, kSums / kLanesOf<V>>;

template <class V>
[[gnu::always_inline]] inline void load(const double* from, Sums<V>& to) {
    std::memcpy(&to, from, sizeof to);
}

template <class V>
[[gnu::always_inline]] inline void fill(double value, Sums<V>& to) {
    for (V& lanes : to) lanes = V{} + value;
}

template <class V>
[[gnu::always_inline]] inline void keep_extremes(const Sums<V>& x, Sums<V>& low, Sums<V>& high) {
    for (std::size_t v = 0; v < x.size(); ++v) {
        low[v] = x[v] < low[v] ? x[v] : low[v];
        high[v] = x[v] > high[v] ? x[v] : high[v];
    }
}

template <class V>
[[gnu::always_inline]] inline std::array<double, kSums> unpacked(const Sums<V>& sums) {
    std::array<double, kSums> out;
    std::memcpy(&out, &sums, sizeof out);
    return out;
}

template <class V>
[[gnu::always_inline]] inline double total(const Sums<V>& sums) {
    std::array<double, kSums> parts = unpacked<V>(sums);
    for (std::size_t half = kSums / 2; half > 0; half /= 2) {
        for (std::size_t i = 0; i < half; ++i) parts[i] += parts[i + half];
    }
    return parts[0];
}

template <class V>
[[gnu::always_inline]] inline double least(const Sums<V>& low) {
    const std::array<double, kSums> parts = unpacked<V>(low);
    double out = parts[0];
    for (const double part : parts) out = part < out ? part : out;
    return out;
}

template <class V>
[[gnu::always_inline]] inline double greatest(const Sums<V>& high) {
    const std::array<double, kSums> parts = unpacked<V>(high);
    double out = parts[0];
    for (const double part : parts) out = part > out ? part : out;
    return out;
}

}  // namespace lineup
