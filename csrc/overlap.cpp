#include "overlap.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <stdexcept>

namespace lineup {
namespace {

constexpr std::uint64_t kBase = 0x9E3779B97F4A7C15ULL;  // odd, so that no position is lost
constexpr std::size_t kRows = 64;                       // of one chunk of work
constexpr std::size_t kStretch = 1 << 14;

std::vector<double> rounded_copy(std::span<const double> values, double scale) {
    std::vector<double> copy(values.size());
    std::transform(values.begin(), values.end(), copy.begin(),
                   [=](double value) { return rounded(value, scale); });
    return copy;
}

// Spreads the bits of a value (doubles of one scale differ in few of them).
std::uint64_t mixed(double value) {
    auto bits = std::bit_cast<std::uint64_t>(value);
    bits = (bits ^ (bits >> 32)) * 0xD6E8FEB86659FD93ULL;
    return bits ^ (bits >> 32);
}

}  // namespace

std::size_t longest_run(std::span<const double> a, std::span<const double> b, int decimals,
                        const Poll& poll) {
    require_values("a", a);
    require_values("b", b);
    const double scale = decimal_scale(decimals);
    const std::vector<double> left = rounded_copy(a, scale);
    const std::vector<double> right = rounded_copy(b, scale);
    std::vector<std::size_t> ending(right.size() + 1, 0);  // [j + 1]: run that ends at (i, j)
    std::size_t best = 0;
    Pulse pulse(poll);
    for (const double value : left) {
        pulse();
        for (std::size_t j = right.size(); j > 0; --j) {  // downwards: [j - 1] is still of i - 1
            ending[j] = right[j - 1] == value ? ending[j - 1] + 1 : 0;
            best = std::max(best, ending[j]);
        }
    }
    return best;
}

GramIndex::GramIndex(const Rows& series, std::size_t max_run, int decimals, int threads,
                     const Poll& poll)
    : series_(series),
      scale_(decimal_scale(decimals)),
      length_(max_run + 1),
      count_(max_run < series.steps ? series.steps - max_run : 0),
      shared_(series.overlap()),
      places_(series.n) {
    if (count_ && shared_) {
        const std::span<const double> all = series_.all();
        prints_.resize(all.size() - max_run);
        parallel_for(prints_.size(), kStretch, threads, poll,
                     [&](std::size_t begin, std::size_t end) {
                         fill(all.subspan(begin, end - begin + max_run), prints_.data() + begin);
                     });
    } else if (count_) {
        prints_.resize(count_ * series.n);
        parallel_for(series.n, kRows, threads, poll, [&](std::size_t begin, std::size_t end) {
            for (std::size_t i = begin; i < end; ++i) {
                fill(series_.row(i), prints_.data() + i * count_);
            }
        });
    }
    chain(threads, poll);
}

// Rolling polynomial fingerprints modulo 2^64, of which the upper half is kept.
void GramIndex::fill(std::span<const double> values, std::uint32_t* out) const {
    std::vector<std::uint64_t> terms(values.size());
    std::transform(values.begin(), values.end(), terms.begin(),
                   [this](double value) { return mixed(rounded(value, scale_)); });
    std::uint64_t print = 0;
    std::uint64_t leaving = 1;  // weight of the value that a full gram drops
    for (std::size_t t = 0; t < length_; ++t) {
        print = print * kBase + terms[t];
        leaving *= kBase;
    }
    out[0] = static_cast<std::uint32_t>(print >> 32);
    for (std::size_t at = 1; at + length_ <= values.size(); ++at) {
        print = print * kBase + terms[at + length_ - 1] - leaving * terms[at - 1];
        out[at] = static_cast<std::uint32_t>(print >> 32);
    }
}

bool GramIndex::equal(const double* a, const double* b, std::size_t length) const {
    if (std::memcmp(a, b, length * sizeof(double)) == 0) return true;
    for (std::size_t t = 0; t < length; ++t) {
        if (rounded(a[t], scale_) != rounded(b[t], scale_)) return false;
    }
    return true;
}

// How many steps after the row before it row i starts, count_ if it does not continue it.
std::uint32_t GramIndex::shift(std::size_t i) const {
    const std::span<const std::uint32_t> before = row(i - 1);
    const std::uint32_t first = row(i)[0];
    for (std::size_t s = 0; s < count_; ++s) {
        if (before[s] == first &&
            equal(series_.row(i - 1).data() + s, series_.row(i).data(), series_.steps - s)) {
            return static_cast<std::uint32_t>(s);
        }
    }
    return static_cast<std::uint32_t>(count_);
}

// All rows between two of one chain cover what the two have in common, so that equality of
// neighbours in the chain carries over to them.
void GramIndex::chain(int threads, const Poll& poll) {
    const std::size_t n = series_.n;
    if (count_) {
        parallel_for(n, kRows, threads, poll, [&](std::size_t begin, std::size_t end) {
            for (std::size_t i = std::max<std::size_t>(1, begin); i < end; ++i) {
                places_[i] = shift(i);
            }
        });
    } else {
        std::fill(places_.begin(), places_.end(), 1);
    }
    places_[0] = 0;
    for (std::size_t i = 1; i < n; ++i) {
        places_[i] += places_[i - 1];
        if (places_[i] < places_[i - 1]) {
            throw std::invalid_argument("series: expected fewer than 2^32 steps without overlaps");
        }
    }
}

GramProbe::GramProbe(const GramIndex& index)
    : index_(index),
      own_(index.count()),
      head_(std::bit_ceil(16 * index.count() + 1)),
      before_(index.count()),
      mask_(static_cast<std::uint32_t>(head_.size() - 1)) {}

void GramProbe::load(std::size_t row) {
    load(index_.series().row(row).data(), index_.row(row));
}

void GramProbe::load(std::span<const double> series) {
    for (const std::uint32_t print : prints_) head_[print & mask_] = 0;  // before own_ changes
    prints_ = {};
    if (index_.count()) index_.fill(series, own_.data());
    load(series.data(), own_);
}

void GramProbe::load(const double* values, std::span<const std::uint32_t> prints) {
    for (const std::uint32_t print : prints_) head_[print & mask_] = 0;
    values_ = values;
    prints_ = prints;
    for (std::size_t at = 0; at < prints.size(); ++at) {
        std::uint32_t& head = head_[prints[at] & mask_];
        before_[at] = head;
        head = static_cast<std::uint32_t>(at + 1);
    }
}

bool GramProbe::shares(std::size_t row) const {
    const std::span<const std::uint32_t> other = index_.row(row);
    const double* values = index_.series().row(row).data();
    for (std::size_t at = 0; at < other.size(); ++at) {
        // All grams of this fingerprint: a collision must not hide a true match behind it.
        for (std::uint32_t mine = head_[other[at] & mask_]; mine; mine = before_[mine - 1]) {
            if (prints_[mine - 1] == other[at] &&
                index_.equal(values_ + mine - 1, values + at, index_.length())) {
                return true;
            }
        }
    }
    return false;
}

}  // namespace lineup
