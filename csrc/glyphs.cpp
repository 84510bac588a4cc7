#include "glyphs.hpp"

#include <array>
#include <stdexcept>
#include <string>

namespace lineup {
namespace {

// clang-format off
constexpr std::array kGlyphs = {
    Glyph{'0', 60,
          "M30 60 C52 60 60 48 60 30 C60 12 52 0 30 0 C8 0 0 12 0 30 C0 48 8 60 30 60"},
    Glyph{'1', 60, "M10 47 L40 60 L40 0 M16 0 L60 0"},
    Glyph{'2', 60,
          "M2 48 C6 56 16 60 30 60 C48 60 60 54 60 43 C60 32 48 26 30 17 C14 9 2 5 0 0 L60 0"},
    Glyph{'3', 60,
          "M2 54 C8 58 18 60 28 60 C46 60 57 55 57 45 C57 36 46 31 28 31 L20 31 "
          "M28 31 C48 31 60 26 60 15 C60 5 48 0 28 0 C16 0 6 2 0 6"},
    Glyph{'4', 60, "M40 0 L40 60 L0 20 L60 20"},
    Glyph{'5', 60,
          "M54 60 L6 60 L4 34 C12 37 20 38 30 38 C48 38 60 31 60 19 C60 7 48 0 28 0 C16 0 6 2 0 6"},
    Glyph{'6', 60,
          "M54 56 C48 59 42 60 34 60 C12 60 0 46 0 24 C0 8 12 0 30 0"
          " C48 0 60 7 60 19 C60 31 48 37 31 37 C16 37 2 32 0 20"},
    Glyph{'7', 60, "M0 60 L60 60 L22 0"},
    Glyph{'8', 60,
          "M30 60 C46 60 56 54 56 46 C56 37 46 31 30 31 C14 31 4 37 4 46 C4 54 14 60 30 60 "
          "M30 31 C48 31 60 25 60 16 C60 6 48 0 30 0 C12 0 0 6 0 16 C0 25 12 31 30 31"},
    Glyph{'9', 60,
          "M6 4 C12 1 18 0 26 0 C48 0 60 14 60 36 C60 52 48 60 30 60"
          " C12 60 0 53 0 41 C0 29 12 23 29 23 C44 23 58 28 60 40"},
    Glyph{'.', 0, "M0 0 L0 3"},
    Glyph{'-', 48, "M0 30 L48 30"},
    Glyph{'e', 52,
          "M1 22 L52 22 C52 36 42 42 28 42 C10 42 0 34 0 21 C0 8 10 0 29 0 C38 0 45 2 50 6"},
    Glyph{'t', 30, "M12 56 L12 12 C12 3 16 0 24 0 L30 0 M0 42 L30 42"},
    Glyph{'i', 0, "M0 0 L0 42 M0 58 L0 61"},
    Glyph{'m', 84,
          "M0 0 L0 42 M0 28 C2 38 10 42 22 42 C36 42 42 36 42 24 L42 0 "
          "M42 26 C44 38 52 42 64 42 C78 42 84 36 84 24 L84 0"},
    Glyph{'v', 54, "M0 42 L27 0 L54 42"},
    Glyph{'a', 50,
          "M4 37 C10 41 18 42 26 42 C42 42 50 36 50 24 L50 0 "
          "M50 25 L28 25 C10 25 0 20 0 12 C0 4 8 0 20 0 C36 0 50 8 50 20"},
    Glyph{'l', 0, "M0 0 L0 62"},
    Glyph{'u', 50, "M0 42 L0 16 C0 5 8 0 20 0 C36 0 50 6 50 20 M50 42 L50 0"},
};
// clang-format on

}  // namespace

std::span<const Glyph> glyphs() {
    return kGlyphs;
}

const Glyph& glyph(char character) {
    for (const Glyph& candidate : kGlyphs) {
        if (candidate.character == character) return candidate;
    }
    throw std::invalid_argument(std::string("text: expected a drawable character, got '") +
                                character + "'");
}

}  // namespace lineup
