#include "tree_split.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "float_lanes.hpp"

namespace lineup {
namespace {

constexpr std::size_t kBlock = 16;    // lanes of the widest vector
constexpr std::size_t kTiny = 64;     // values that are ranked by counting
constexpr std::size_t kSample = 128;  // at most, of more values
constexpr float kInf = std::numeric_limits<float>::infinity();

struct Cut {
    float value;
    std::size_t less;  // values below it
};

struct Sides {
    std::size_t widest;
    bool coarse;  // the points lie so close together that they have to be measured anew
};

// Where the middle of a stretch must be, as a sample of it tells: between low and high.
struct Bracket {
    float low, high;
};

// What has too many equal values for samples.
Cut nth_of(const float* keys, std::size_t n, std::size_t rank) {
    std::vector<float> copy(keys, keys + n);
    std::nth_element(copy.begin(), copy.begin() + static_cast<std::ptrdiff_t>(rank), copy.end());
    const float value = copy[rank];
    const auto below = std::count_if(keys, keys + n, [=](float key) { return key < value; });
    return {value, static_cast<std::size_t>(below)};
}

namespace plain {
using namespace plain_lanes;
#define TARGET
#include "ranks_body.hpp"
#include "tree_split_body.hpp"
#undef TARGET
}  // namespace plain

#if LINEUP_X86

namespace avx2 {
using namespace avx2_lanes;
#define TARGET LINEUP_AVX2
#include "ranks_body.hpp"
#include "tree_split_body.hpp"
#undef TARGET
}  // namespace avx2

namespace avx512 {
using namespace avx512_lanes;
#define TARGET LINEUP_AVX512
#include "ranks_body.hpp"
#include "tree_split_body.hpp"
#undef TARGET
}  // namespace avx512

#endif

}  // namespace

void measure(PointColumns& columns, std::size_t begin, std::size_t end) {
    const Rows& points = columns.points;
    const std::span<const double> origin = points.row(columns.id[begin]);
    double furthest = 0.0;
    for (std::size_t i = begin; i < end; ++i) {
        const std::span<const double> point = points.row(columns.id[i]);
        for (std::size_t d = 0; d < points.steps; ++d) {
            furthest = std::max(furthest, std::abs(point[d] - origin[d]));
        }
    }
    const int power = furthest > 0.0 ? std::min(50 - std::ilogb(furthest), 1000) : 0;
    const double scale = std::ldexp(1.0, power);
    for (std::size_t i = begin; i < end; ++i) {
        const std::span<const double> point = points.row(columns.id[i]);
        for (std::size_t d = 0; d < points.steps; ++d) {
            columns.x[d * columns.n + i] = static_cast<float>((point[d] - origin[d]) * scale);
        }
    }
}

void split(PointColumns& columns, std::size_t begin, std::size_t end, std::size_t left,
           SplitRoom& room, Isa isa) {
    const std::size_t enough = end - begin + kLeaf;
    if (room.near.size() < enough) {
        room.near.resize(enough);
        room.nearer.resize(enough);
        room.rights.resize((columns.points.steps + 1) * enough);
    }
#if LINEUP_X86
    if (isa == Isa::avx512) return avx512::split(columns, begin, end, left, room);
    if (isa == Isa::avx2) return avx2::split(columns, begin, end, left, room);
#endif
    static_cast<void>(isa);
    plain::split(columns, begin, end, left, room);
}

}  // namespace lineup
