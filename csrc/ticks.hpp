// Nice ticks of a chart axis and their texts.
#pragma once

#include <string>
#include <vector>

namespace lineup {

struct Ticks {
    std::vector<double> positions;   // rising
    std::vector<std::string> texts;  // the float64 nearest to texts[i] is positions[i]
};

// Multiples of the smallest step 1, 2, 2.5 or 5 x 10^e that needs at most n intervals between lo
// and hi and gives distinct float64 positions; whole steps only if `integer`. If no multiple lies
// in the range, which happens for n = 1 and between neighbouring float64, lo and hi themselves (or
// nothing if `integer`).
// Texts are plain decimals, all with the decimals that the ticks need. Where the longest would
// have more than 10 characters and scientific texts (2.5e-13) are shorter, those are used.
// Throws std::invalid_argument unless lo < hi, both finite up to 1e300, and 1 <= n <= 1000.
Ticks nice_ticks(double lo, double hi, int n, bool integer = false);

}  // namespace lineup
