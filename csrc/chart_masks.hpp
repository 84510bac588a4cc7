// Small shapes that charts repeat, as coverage of pixels: characters and markers.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "chart_layout.hpp"
#include "cover.hpp"

namespace lineup {

// Coverage 0 to 255, rows from the top; (x, y) is its first pixel relative to the pen's pixel.
struct Mask {
    int x = 0;
    int y = 0;
    int width = 0;
    int height = 0;
    std::vector<std::uint8_t> cover;
};

// Masks of characters, each stroked by Cairo when it is first needed.
class GlyphMasks {
  public:
    explicit GlyphMasks(const TextSizes& sizes) : sizes_(sizes) {}

    const Mask& at(char character, Direction direction);

  private:
    TextSizes sizes_;
    std::map<std::pair<char, Direction>, Mask> masks_;
};

// Masks of a dot at the kPhases x kPhases positions of its centre within a pixel, each made when it
// is first needed.
class MarkerMasks {
  public:
    static constexpr int kPhaseBits = 4;
    static constexpr int kPhases = 1 << kPhaseBits;
    static constexpr int kSide = 8;    // pixels
    static constexpr int kCentre = 4;  // pixel that the centre lies in
    using Cover = std::array<std::uint8_t, std::size_t{kSide} * kSide>;

    // Throws std::invalid_argument if a dot of that radius does not fit.
    explicit MarkerMasks(double radius);

    const Cover& at(int x_phase, int y_phase);

  private:
    void make(double x, double y, Cover& mask);

    // The circle as Cairo flattens it: both edges from left to right, around the origin.
    std::vector<Point> upper_;
    std::vector<Point> lower_;
    lineup::Cover cover_{kSide};
    std::vector<Cover> masks_;
    std::vector<char> made_;
};

}  // namespace lineup
