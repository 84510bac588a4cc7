// Numbers times a power of ten, as whole numbers: what their digits are read off.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "isa.hpp"

namespace lineup {

inline constexpr std::array<std::int32_t, 10> kPowerOfTen = {
    1, 10, 100, 1000, 10000, 100000, 1000000, 10000000, 100000000, 1000000000};

// A block of numbers without their signs, rounded to `decimals` digits after the point as a decimal
// text would be: exactly, half to even.
struct ScaledNumbers {
    static constexpr std::size_t kBlock = 64;
    static constexpr int kMaxDecimals = 9;

    // values: at most kBlock; decimals: at most kMaxDecimals. The same on every instruction set.
    void scale(std::span<const double> values, int decimals, Isa isa);

    std::array<std::int32_t, kBlock> whole;     // before the point
    std::array<std::int32_t, kBlock> fraction;  // after it, as a whole number
    bool small;                                 // every whole part is below 1000
    bool fits;  // the scaled numbers have at most 31 bits; otherwise the rest says nothing
};

}  // namespace lineup
