// How much two series share: the longest common run of values, and a pool-wide index for the
// question that neighbours ask, "do these two share a run longer than m?".
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "parallel.hpp"
#include "values.hpp"

namespace lineup {

// Length of the longest contiguous run of equal values, rounded to `decimals`, at any relative
// offset. Throws std::invalid_argument on NaN, infinities and magnitudes above kMaxMagnitude.
std::size_t longest_run(std::span<const double> a, std::span<const double> b, int decimals);

// Every stretch of max_run + 1 rounded values (a gram) of every row, by fingerprint. Two rows share
// a run longer than max_run exactly when they share a gram; equal fingerprints are always verified
// on the values.
class GramIndex {
  public:
    GramIndex(const Rows& series, std::size_t max_run, int decimals, int threads,
              const Poll& poll = {});

    // Whether rows i and j share a run longer than max_run; O(steps).
    bool share(std::size_t i, std::size_t j) const;

  private:
    struct Gram {
        std::uint64_t print;
        std::uint32_t at;
    };

    std::span<const Gram> row(std::size_t i) const { return {grams_.data() + i * count_, count_}; }
    bool equal(std::size_t i, const Gram& a, std::size_t j, const Gram& b) const;
    void fill(std::size_t i);

    std::size_t steps_;
    std::size_t length_;          // values in a gram
    std::size_t count_;           // grams in a row, sorted by fingerprint
    std::vector<double> values_;  // rounded, [n, steps]
    std::vector<Gram> grams_;     // [n, count]
};

}  // namespace lineup
