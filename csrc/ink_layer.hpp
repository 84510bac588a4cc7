// What one colour covers of each pixel, before it is laid on a ground.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace lineup {

// Coverage 0 to 255 of pixels in groups of four side by side. A group's four bytes are one number,
// its left pixel the lowest byte. Groups that lie above each other are neighbours in memory, and
// each row knows its groups with ink, so that empty ones cost nothing.
class InkLayer {
  public:
    static constexpr int kGroup = 4;

    InkLayer(int columns, int rows)
        : rows_(static_cast<std::size_t>(rows)),
          words_(static_cast<std::size_t>(columns / kGroup) / 64 + 1),
          cover_(rows_ * (static_cast<std::size_t>(columns / kGroup) + 1)),
          marks_(rows_ * words_) {}

    // Covers a group in n rows from `row` on; where there is ink already, both cover.
    void add(int group, int row, int n, std::uint32_t cover) {
        if (cover == 0) return;
        const auto across = static_cast<std::size_t>(group);
        const auto first = static_cast<std::size_t>(row);
        const std::uint64_t mark = std::uint64_t{1} << (across % 64);
        std::uint32_t* here = cover_.data() + across * rows_ + first;
        std::uint64_t* marks = marks_.data() + first * words_ + across / 64;
        for (int i = 0; i < n; ++i) {
            here[i] = here[i] == 0 ? cover : both(here[i], cover);
            *marks |= mark;
            marks += words_;
        }
    }

    // Calls use(group, its four bytes) for the groups of a row that have ink, from left to right,
    // and takes the ink away.
    template <class Use>
    void take_row(int row, Use&& use) {
        const auto down = static_cast<std::size_t>(row);
        std::uint64_t* marks = marks_.data() + down * words_;
        std::uint32_t* cover = cover_.data() + down;
        for (std::size_t word = 0; word < words_; ++word) {
            for (std::uint64_t left = marks[word]; left != 0; left &= left - 1) {
                const auto group = word * 64 + static_cast<std::size_t>(std::countr_zero(left));
                std::uint32_t& here = cover[group * rows_];
                use(static_cast<int>(group), here);
                here = 0;
            }
            marks[word] = 0;
        }
    }

  private:
    // What two inks leave uncovered is the product of what each leaves.
    static std::uint32_t both(std::uint32_t a, std::uint32_t b) {
#if defined(__SSE2__)
        const __m128i zero = _mm_setzero_si128();
        const __m128i one = _mm_unpacklo_epi8(_mm_cvtsi32_si128(static_cast<int>(~a)), zero);
        const __m128i two = _mm_unpacklo_epi8(_mm_cvtsi32_si128(static_cast<int>(~b)), zero);
        __m128i bare = _mm_add_epi16(_mm_mullo_epi16(one, two), _mm_set1_epi16(128));
        bare = _mm_srli_epi16(_mm_add_epi16(bare, _mm_srli_epi16(bare, 8)), 8);
        return ~static_cast<std::uint32_t>(_mm_cvtsi128_si32(_mm_packus_epi16(bare, bare)));
#else
        std::uint32_t out = 0;
        for (int shift = 0; shift < 32; shift += 8) {
            const std::uint32_t bare = (~a >> shift & 255) * (~b >> shift & 255);
            out |= (255 - (bare + 127) / 255) << shift;
        }
        return out;
#endif
    }

    std::size_t rows_;
    std::size_t words_;  // of the marks of a row
    std::vector<std::uint32_t> cover_;
    std::vector<std::uint64_t> marks_;
};

}  // namespace lineup
