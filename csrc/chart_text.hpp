// Text on charts: glyph outlines stroked with a round pen, placed on whole pixels.
#pragma once

#include <cairo.h>

#include <string_view>

namespace lineup {

// In pixels, of the pen's centre line; the ink is one pixel wider and higher.
struct TextSizes {
    int box_width;
    int box_height;
    int spacing;  // between characters
    double pen;   // width of the stroke
};

enum class Direction { right, up };

// Width of the inked pixels.
int text_width(std::string_view text, const TextSizes& sizes);

// Strokes the text in the current colour; (x, y) is the pixel where its baseline begins.
void draw_text(cairo_t* context, std::string_view text, int x, int y, const TextSizes& sizes,
               Direction direction = Direction::right);

}  // namespace lineup
