// Small shapes that charts repeat, as coverage of pixels: characters and markers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "chart_layout.hpp"

namespace lineup {

// Coverage 0 to 255, rows from the top; (x, y) is its first pixel relative to the pen's pixel.
struct Mask {
    int x = 0;
    int y = 0;
    int width = 0;
    int height = 0;
    int advance = 0;  // from this character's pen to the next one's
    std::vector<std::uint8_t> cover;
};

// Masks of all characters, stroked by Cairo.
class GlyphMasks {
  public:
    explicit GlyphMasks(const TextSizes& sizes);

    const Mask& at(char character, Direction direction) const {
        return masks_[static_cast<std::size_t>(direction)][static_cast<std::size_t>(character)];
    }

  private:
    std::array<std::array<Mask, 128>, 2> masks_;
};

// Masks of a dot at the kPhases x kPhases positions of its centre within a pixel.
class MarkerMasks {
  public:
    static constexpr int kPhaseBits = 4;
    static constexpr int kPhases = 1 << kPhaseBits;
    static constexpr int kSide = 8;    // pixels
    static constexpr int kCentre = 4;  // pixel that the centre lies in
    using Row = std::uint64_t;         // coverage of kSide pixels, the left one the lowest byte
    using Rows = std::array<Row, kSide>;

    // Throws std::invalid_argument if a dot of that radius does not fit.
    explicit MarkerMasks(double radius);

    const Rows& at(int x_phase, int y_phase) const {
        return masks_[static_cast<std::size_t>(y_phase * kPhases + x_phase)];
    }

  private:
    std::array<Rows, std::size_t{kPhases} * kPhases> masks_{};
};

struct ChartMasks {
    GlyphMasks glyphs;
    MarkerMasks markers;
};

// The masks for one of the two sizes, made when they are first asked for and kept.
const ChartMasks& chart_masks(const ChartSizes& sizes);

}  // namespace lineup
