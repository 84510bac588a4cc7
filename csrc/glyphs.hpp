// Outlines of the characters that charts need: our own, so that no font is ever looked up.
#pragma once

#include <span>
#include <string_view>

namespace lineup {

inline constexpr int kGlyphUnits = 60;

// A character as pen strokes in a box of kGlyphUnits x kGlyphUnits, y upwards from the baseline.
struct Glyph {
    char character;
    int width;              // of the strokes, in units
    std::string_view path;  // M(ove) x y, L(ine) x y, C(urve) x1 y1 x2 y2 x y
};

// All of them.
std::span<const Glyph> glyphs();

// Throws std::invalid_argument for a character that no chart contains.
const Glyph& glyph(char character);

}  // namespace lineup
