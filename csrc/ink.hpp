// One colour over RGB pixels, with the rounding that Cairo's own blending has.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

#include "chart_layout.hpp"

namespace lineup {

static_assert(std::endian::native == std::endian::little, "pixels are packed for little endian");

class Ink {
  public:
    explicit Ink(Color color)
        : full_(static_cast<std::uint32_t>(color.red | color.green << 8 | color.blue << 16)) {
        for (std::uint32_t a = 0; a < 256; ++a) {
            share_[a] = scaled(full_, a);
            over_white_[a] = share_[a] + scaled(kWhite, 255 - a);
        }
    }

    // Covers n pixels by cover[i] / 255 each.
    void blend(std::uint8_t* pixels, const std::uint8_t* cover, int n) const {
        int i = 0;
        for (; i + 4 <= n; i += 4) {
            std::uint32_t four;
            std::memcpy(&four, cover + i, sizeof four);
            if (four != 0) blend4(pixels + 3 * i, four);
        }
        for (; i < n; ++i) {
            std::uint8_t* pixel = pixels + 3 * i;
            const std::uint32_t below =
                static_cast<std::uint32_t>(pixel[0] | pixel[1] << 8 | pixel[2] << 16);
            const std::uint32_t mixed = mix(below, cover[i]);
            pixel[0] = static_cast<std::uint8_t>(mixed);
            pixel[1] = static_cast<std::uint8_t>(mixed >> 8);
            pixel[2] = static_cast<std::uint8_t>(mixed >> 16);
        }
    }

    // Four pixels, 12 bytes, at once; the lowest byte of `cover` is that of the first pixel.
    void blend4(std::uint8_t* pixels, std::uint32_t cover) const {
        if (cover == ~0U) return fill4(pixels);
        std::uint64_t head;
        std::uint32_t tail;
        std::memcpy(&head, pixels, sizeof head);
        std::memcpy(&tail, pixels + 8, sizeof tail);
        std::array<std::uint32_t, 4> mixed;
        if (head == ~std::uint64_t{0} && tail == ~std::uint32_t{0}) {
            for (std::size_t i = 0; i < 4; ++i) mixed[i] = over_white_[cover >> (8 * i) & 255];
        } else {
            mixed[0] = mix(static_cast<std::uint32_t>(head) & kWhite, cover & 255);
            mixed[1] = mix(static_cast<std::uint32_t>(head >> 24) & kWhite, cover >> 8 & 255);
            mixed[2] =
                mix(static_cast<std::uint32_t>(head >> 48) | (tail & 255) << 16, cover >> 16 & 255);
            mixed[3] = mix(tail >> 8, cover >> 24);
        }
        head =
            std::uint64_t{mixed[0]} | std::uint64_t{mixed[1]} << 24 | std::uint64_t{mixed[2]} << 48;
        tail = mixed[2] >> 16 | mixed[3] << 8;
        std::memcpy(pixels, &head, sizeof head);
        std::memcpy(pixels + 8, &tail, sizeof tail);
    }

    void fill(std::uint8_t* pixels, int n) const {
        for (; n >= 4; n -= 4, pixels += 12) fill4(pixels);
        for (; n > 0; --n, pixels += 3) std::memcpy(pixels, &full_, 3);
    }

  private:
    static constexpr std::uint32_t kWhite = 0xFFFFFF;

    void fill4(std::uint8_t* pixels) const {
        const std::uint64_t head =
            std::uint64_t{full_} | std::uint64_t{full_} << 24 | std::uint64_t{full_} << 48;
        const std::uint32_t tail = full_ >> 16 | full_ << 8;
        std::memcpy(pixels, &head, sizeof head);
        std::memcpy(pixels + 8, &tail, sizeof tail);
    }

    // Every channel times a / 255, rounded.
    static std::uint32_t scaled(std::uint32_t color, std::uint32_t a) {
        std::uint32_t outer = (color & 0xFF00FF) * a + 0x800080;
        std::uint32_t inner = (color >> 8 & 0xFF) * a + 0x80;
        outer = (((outer >> 8 & 0xFF00FF) + outer) >> 8) & 0xFF00FF;
        inner = ((inner >> 8) + inner) >> 8;
        return outer | inner << 8;
    }

    std::uint32_t mix(std::uint32_t below, std::uint32_t a) const {
        return share_[a] + scaled(below, 255 - a);
    }

    std::uint32_t full_;
    std::array<std::uint32_t, 256> share_;
    std::array<std::uint32_t, 256> over_white_;
};

}  // namespace lineup
