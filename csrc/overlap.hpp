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
std::size_t longest_run(std::span<const double> a, std::span<const double> b, int decimals,
                        const Poll& poll = {});

// The fingerprint of every stretch of max_run + 1 rounded values (a gram) of every row. Two rows
// share a run longer than max_run exactly when they share a gram; equal fingerprints are always
// verified on the values. Refers to the series, which must outlive it.
class GramIndex {
  public:
    GramIndex(const Rows& series, std::size_t max_run, int decimals, int threads,
              const Poll& poll = {});

    const Rows& series() const { return series_; }
    std::size_t length() const { return length_; }  // values in a gram
    std::size_t count() const { return count_; }  // grams in a row, 0 if no row has so many values

    std::span<const std::uint32_t> row(std::size_t i) const {
        if (count_ == 0) return {};  // there may be no prints to point into
        return {prints_.data() + (shared_ ? series_.offset(i) : i * count_), count_};
    }

    // A place for every row on one axis: rows less than count() apart are known to share a gram,
    // since they are cut from one stretch of values. Found where a row continues the row before it,
    // so that most pairs of windows at a small stride need no look at their grams. Rising.
    std::span<const std::uint32_t> places() const { return places_; }

    std::size_t bytes() const { return (prints_.size() + places_.size()) * sizeof(std::uint32_t); }

    // Fingerprints of the grams of any stretch of values, each to its place in out.
    void fill(std::span<const double> values, std::uint32_t* out) const;

    // Whether two stretches of length() values are equal once rounded.
    bool equal(const double* a, const double* b, std::size_t length) const;

  private:
    void chain(int threads, const Poll& poll);
    std::uint32_t shift(std::size_t i) const;

    Rows series_;
    double scale_;
    std::size_t length_;
    std::size_t count_;
    bool shared_;                        // rows overlap, and so do their prints
    std::vector<std::uint32_t> prints_;  // [n, count], or of every stretch of all values
    std::vector<std::uint32_t> places_;  // [n]
};

// One series against the rows of an index; room for one thread.
class GramProbe {
  public:
    explicit GramProbe(const GramIndex& index);

    void load(std::size_t row);                 // a row of the index
    void load(std::span<const double> series);  // any series of as many steps
    bool shares(std::size_t row) const;         // a run longer than max_run; O(steps)

  private:
    void load(const double* values, std::span<const std::uint32_t> prints);

    const GramIndex& index_;
    const double* values_ = nullptr;
    std::vector<std::uint32_t> own_;  // prints of a series from outside
    std::span<const std::uint32_t> prints_;
    std::vector<std::uint32_t> head_;    // by the low bits of a print: 1 + the last gram, 0 if none
    std::vector<std::uint32_t> before_;  // [count]: the gram before it in its list, as in head_
    std::uint32_t mask_;
};

}  // namespace lineup
