// Four numbers side by side; the compiler takes the vectors that the machine has.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace lineup {

typedef float Float4 __attribute__((vector_size(16)));
typedef int Int4 __attribute__((vector_size(16)));

inline Float4 load4(const float* at) {
    Float4 values;
    std::memcpy(&values, at, sizeof values);
    return values;
}

inline Float4 least(Float4 a, Float4 b) {
#if defined(__SSE2__)
    return reinterpret_cast<Float4>(
        _mm_min_ps(reinterpret_cast<__m128>(a), reinterpret_cast<__m128>(b)));
#else
    return a < b ? a : b;
#endif
}

inline Float4 most(Float4 a, Float4 b) {
#if defined(__SSE2__)
    return reinterpret_cast<Float4>(
        _mm_max_ps(reinterpret_cast<__m128>(a), reinterpret_cast<__m128>(b)));
#else
    return a > b ? a : b;
#endif
}

// Whether any bit is set.
inline bool any(Int4 bits) {
#if defined(__SSE2__)
    const auto same = _mm_cmpeq_epi32(reinterpret_cast<__m128i>(bits), _mm_setzero_si128());
    return _mm_movemask_epi8(same) != 0xFFFF;
#else
    return (bits[0] | bits[1] | bits[2] | bits[3]) != 0;
#endif
}

// Coverage, 0 to 1 up to rounding, as bytes: the first number is the lowest byte.
inline std::uint32_t levels(Float4 coverage) {
    const Float4 rounded = coverage * 255.0f + 0.5f;
#if defined(__SSE2__)
    const __m128i whole = _mm_cvttps_epi32(reinterpret_cast<__m128>(rounded));
    const __m128i words = _mm_packs_epi32(whole, whole);
    return static_cast<std::uint32_t>(_mm_cvtsi128_si32(_mm_packus_epi16(words, words)));
#else
    std::uint32_t bytes = 0;
    for (int i = 0; i < 4; ++i) {
        bytes |= static_cast<std::uint32_t>(std::clamp(rounded[i], 0.0f, 255.0f)) << (8 * i);
    }
    return bytes;
#endif
}

}  // namespace lineup
