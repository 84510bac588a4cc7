// Copies past the cache, where the machine can: for megabytes that nobody reads at once.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace lineup {

// Copies n bytes; another thread may read them after finish_streams().
inline void stream(void* to, const void* from, std::size_t n) {
#if defined(__SSE2__)
    auto* target = static_cast<char*>(to);
    const auto* source = static_cast<const char*>(from);
    const std::size_t head = std::min(n, (0 - reinterpret_cast<std::uintptr_t>(to)) % 16);
    std::memcpy(target, source, head);
    std::size_t i = head;
    for (; i + 16 <= n; i += 16) {
        __m128i part;
        std::memcpy(&part, source + i, sizeof part);
        _mm_stream_si128(reinterpret_cast<__m128i*>(target + i), part);
    }
    std::memcpy(target + i, source + i, n - i);
#else
    std::memcpy(to, from, n);
#endif
}

inline void finish_streams() {
#if defined(__SSE2__)
    _mm_sfence();
#endif
}

}  // namespace lineup
