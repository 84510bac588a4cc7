// Vectors of floats, and what only the instruction sets themselves can say about them: masks, and
// moving chosen lanes to the front. One namespace per instruction set with the same names, for code
// that is written once and included into each of them; TARGET there is the attribute of functions.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "isa.hpp"
#include "lanes.hpp"

#if LINEUP_X86
#include <immintrin.h>
#endif

namespace lineup {

namespace plain_lanes {
using Lanes = float __attribute__((vector_size(16)));
using Wide = Lanes2;
using Flags = std::int32_t __attribute__((vector_size(16)));
using Words = std::uint32_t __attribute__((vector_size(16)));
using Truths = std::int64_t __attribute__((vector_size(16)));
constexpr Words kCount = {0, 1, 2, 3};

inline std::uint32_t bits(const Flags& flags) {
#if LINEUP_X86
    return static_cast<std::uint32_t>(_mm_movemask_ps(reinterpret_cast<const __m128&>(flags)));
#else
    std::uint32_t out = 0;
    for (std::size_t i = 0; i < 4; ++i) out |= (flags[i] ? 1U : 0U) << i;
    return out;
#endif
}

// Which are at most the limit; which words are above a bound.
inline std::uint32_t within(const Lanes& lanes, float limit) {
    return bits(lanes <= limit);
}
inline std::uint32_t beyond(const Words& words, std::uint32_t bound) {
    return bits(words > bound);
}

inline std::uint32_t wide_bits(const Truths& truths) {
    return (truths[0] ? 1U : 0U) | (truths[1] ? 2U : 0U);
}

// The chosen lanes to the front of a place with room for all.
template <class Vector, class Value>
inline void pack_lanes(const Vector& lanes, std::uint32_t chosen, Value* to) {
    for (; chosen; chosen &= chosen - 1) *to++ = lanes[std::countr_zero(chosen)];
}

}  // namespace plain_lanes

#if LINEUP_X86

namespace avx2_lanes {
using Lanes = float __attribute__((vector_size(32)));
using Wide = Lanes4;
using Flags = std::int32_t __attribute__((vector_size(32)));
using Words = std::uint32_t __attribute__((vector_size(32)));
using Truths = std::int64_t __attribute__((vector_size(32)));
constexpr Words kCount = {0, 1, 2, 3, 4, 5, 6, 7};

// Which lanes are chosen by a mask, those first, a byte each.
constexpr std::array<std::uint64_t, 256> kChosen = [] {
    std::array<std::uint64_t, 256> chosen{};
    for (std::uint32_t mask = 0; mask < 256; ++mask) {
        int n = 0;
        for (std::uint64_t lane = 0; lane < 8; ++lane) {
            if (mask >> lane & 1U) chosen[mask] |= lane << 8 * n++;
        }
    }
    return chosen;
}();

LINEUP_AVX2 inline std::uint32_t bits(const Flags& flags) {
    return static_cast<std::uint32_t>(_mm256_movemask_ps(reinterpret_cast<const __m256&>(flags)));
}

LINEUP_AVX2 inline std::uint32_t within(const Lanes& lanes, float limit) {
    return bits(lanes <= limit);
}
LINEUP_AVX2 inline std::uint32_t beyond(const Words& words, std::uint32_t bound) {
    return bits(words > bound);
}

LINEUP_AVX2 inline std::uint32_t wide_bits(const Truths& truths) {
    return static_cast<std::uint32_t>(_mm256_movemask_pd(reinterpret_cast<const __m256d&>(truths)));
}

template <class Vector, class Value>
LINEUP_AVX2 inline void pack_lanes(const Vector& lanes, std::uint32_t chosen, Value* to) {
    const __m128i bytes = _mm_cvtsi64_si128(static_cast<long long>(kChosen[chosen]));
    const __m256i packed = _mm256_permutevar8x32_epi32(reinterpret_cast<const __m256i&>(lanes),
                                                       _mm256_cvtepu8_epi32(bytes));
    std::memcpy(to, &packed, sizeof packed);
}

}  // namespace avx2_lanes

namespace avx512_lanes {
using Lanes = float __attribute__((vector_size(64)));
using Wide = Lanes8;
using Flags = std::int32_t __attribute__((vector_size(64)));
using Words = std::uint32_t __attribute__((vector_size(64)));
using Truths = std::int64_t __attribute__((vector_size(64)));
constexpr Words kCount = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

LINEUP_AVX512 inline std::uint32_t bits(const Flags& flags) {
    return _mm512_movepi32_mask(reinterpret_cast<const __m512i&>(flags));
}

// Straight to a mask: compilers take the way through a vector.
LINEUP_AVX512 inline std::uint32_t within(const Lanes& lanes, float limit) {
    return _mm512_cmp_ps_mask(reinterpret_cast<const __m512&>(lanes), _mm512_set1_ps(limit),
                              _CMP_LE_OQ);
}
LINEUP_AVX512 inline std::uint32_t beyond(const Words& words, std::uint32_t bound) {
    return _mm512_cmpgt_epu32_mask(reinterpret_cast<const __m512i&>(words),
                                   _mm512_set1_epi32(static_cast<int>(bound)));
}

LINEUP_AVX512 inline std::uint32_t wide_bits(const Truths& truths) {
    return _mm512_movepi64_mask(reinterpret_cast<const __m512i&>(truths));
}

// By way of a register: some processors are slow to compress into memory.
template <class Vector, class Value>
LINEUP_AVX512 inline void pack_lanes(const Vector& lanes, std::uint32_t chosen, Value* to) {
    const __m512i packed = _mm512_maskz_compress_epi32(static_cast<__mmask16>(chosen),
                                                       reinterpret_cast<const __m512i&>(lanes));
    std::memcpy(to, &packed, sizeof packed);
}

}  // namespace avx512_lanes

#endif

}  // namespace lineup
