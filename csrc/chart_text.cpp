#include "chart_text.hpp"

#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>

#include "glyphs.hpp"

namespace lineup {
namespace {

int advance(const Glyph& glyph, const TextSizes& sizes) {
    const double width = static_cast<double>(glyph.width * sizes.box_width) / kGlyphUnits;
    return static_cast<int>(std::floor(width + 0.5)) + sizes.spacing;
}

// Calls pen(op, numbers) for each step of a glyph's path.
template <class Pen>
void follow(std::string_view path, Pen&& pen) {
    const char* at = path.data();
    const char* const end = at + path.size();
    while (at != end) {
        const char op = *at++;
        const std::size_t count = op == 'C' ? 6 : 2;
        std::array<double, 6> numbers{};
        for (std::size_t i = 0; i < count; ++i) {
            while (at != end && *at == ' ') ++at;
            int number = 0;
            at = std::from_chars(at, end, number).ptr;
            numbers[i] = number;
        }
        pen(op, numbers);
        while (at != end && *at == ' ') ++at;
    }
}

}  // namespace

int text_width(std::string_view text, const TextSizes& sizes) {
    int width = 1 - sizes.spacing;
    for (const char character : text) width += advance(glyph(character), sizes);
    return width;
}

void draw_text(cairo_t* context, std::string_view text, int x, int y, const TextSizes& sizes,
               Direction direction) {
    int pen_x = 0;
    for (const char character : text) {
        const Glyph& shape = glyph(character);
        follow(shape.path, [&](char op, std::array<double, 6> at) {
            for (std::size_t i = 0; i < at.size(); i += 2) {
                const double across = pen_x + at[i] * sizes.box_width / kGlyphUnits;
                const double up = at[i + 1] * sizes.box_height / kGlyphUnits;
                at[i] = direction == Direction::up ? x + 0.5 - up : x + 0.5 + across;
                at[i + 1] = direction == Direction::up ? y + 0.5 - across : y + 0.5 - up;
            }
            if (op == 'M') cairo_move_to(context, at[0], at[1]);
            if (op == 'L') cairo_line_to(context, at[0], at[1]);
            if (op == 'C') cairo_curve_to(context, at[0], at[1], at[2], at[3], at[4], at[5]);
        });
        pen_x += advance(shape, sizes);
    }
    cairo_set_line_width(context, sizes.pen);
    cairo_stroke(context);
}

}  // namespace lineup
