// Vectors of doubles as the compilers know them, for code that is written once and compiled for
// each instruction set with the widest vector it has. Everything here is always inlined, so that
// it takes the instruction set of the function it ends up in; vectors are never passed by value,
// which would have no fixed ABI.
#pragma once

#include <array>
#include <cstddef>
#include <cstring>
#include <utility>

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

// Calls step(0), …, step(n - 1) without a loop: arrays of vectors stay in registers only where
// every index is a constant.
template <std::size_t n, class Step>
[[gnu::always_inline]] inline void unrolled(const Step& step) {
    const auto each = [&]<std::size_t... at>(std::index_sequence<at...>)
        __attribute__((always_inline)) {
        (step(at), ...);
    };
    each(std::make_index_sequence<n>{});
}

// One vector at a time: compilers copy an array of them through memory, in narrower pieces.
template <class V>
[[gnu::always_inline]] inline void load(const double* from, V& to) {
    std::memcpy(&to, from, sizeof to);
}

template <class V>
[[gnu::always_inline]] inline void keep_extremes(const V& x, V& low, V& high) {
    low = x < low ? x : low;
    high = x > high ? x : high;
}

template <class V>
[[gnu::always_inline]] inline std::array<double, kSums> unpacked(const Sums<V>& sums) {
    std::array<double, kSums> out;
    std::memcpy(&out, &sums, sizeof out);
    return out;
}

// Combines the first n parts into the first one, halves with halves.
template <std::size_t n, class Parts, class Combine>
[[gnu::always_inline]] inline void halved(Parts& parts, const Combine& with) {
    if constexpr (n > 1) {
        const auto pair = [&](std::size_t i) __attribute__((always_inline)) {
            with(parts[i], parts[i + n / 2]);
        };
        unrolled<n / 2>(pair);
        halved<n / 2>(parts, with);
    }
}

// All 16 parts combined: whole vectors first, in place, then the lanes of the one that is left.
// The order is the same whatever the vector.
template <class V, class Combine>
[[gnu::always_inline]] inline double folded(Sums<V>& sums, const Combine& with) {
    halved<kSums / kLanesOf<V>>(sums, with);
    std::array<double, kLanesOf<V>> lanes;
    std::memcpy(&lanes, &sums[0], sizeof lanes);
    halved<kLanesOf<V>>(lanes, with);
    return lanes[0];
}

template <class V>
[[gnu::always_inline]] inline double total(Sums<V>& sums) {
    return folded<V>(
        sums, [](auto& a, const auto& b) __attribute__((always_inline)) { a += b; });
}

template <class V>
[[gnu::always_inline]] inline double least(Sums<V>& low) {
    return folded<V>(
        low, [](auto& a, const auto& b) __attribute__((always_inline)) { a = b < a ? b : a; });
}

template <class V>
[[gnu::always_inline]] inline double greatest(Sums<V>& high) {
    return folded<V>(
        high, [](auto& a, const auto& b) __attribute__((always_inline)) { a = b > a ? b : a; });
}

}  // namespace lineup
