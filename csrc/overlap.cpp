#include "overlap.hpp"

#include <algorithm>
#include <bit>

namespace lineup {
namespace {

constexpr std::uint64_t kBase = 0x9E3779B97F4A7C15ULL;  // odd, so that no position is lost

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

std::size_t longest_run(std::span<const double> a, std::span<const double> b, int decimals) {
    require_values("a", a);
    require_values("b", b);
    const double scale = decimal_scale(decimals);
    const std::vector<double> left = rounded_copy(a, scale);
    const std::vector<double> right = rounded_copy(b, scale);
    std::vector<std::size_t> ending(right.size() + 1, 0);  // [j + 1]: run that ends at (i, j)
    std::size_t best = 0;
    for (const double value : left) {
        for (std::size_t j = right.size(); j > 0; --j) {  // downwards: [j - 1] is still of i - 1
            ending[j] = right[j - 1] == value ? ending[j - 1] + 1 : 0;
            best = std::max(best, ending[j]);
        }
    }
    return best;
}

GramIndex::GramIndex(const Rows& series, std::size_t max_run, int decimals, int threads,
                     const Poll& poll)
    : steps_(series.steps),
      length_(max_run + 1),
      count_(max_run < series.steps ? series.steps - max_run : 0),
      values_(count_ ? series.n * series.steps : 0),
      grams_(count_ * series.n) {
    if (!count_) return;
    const double scale = decimal_scale(decimals);
    parallel_for(series.n, 64, threads, poll, [&](std::size_t begin, std::size_t end) {
        for (std::size_t i = begin; i < end; ++i) {
            const std::span<const double> row = series.row(i);
            std::transform(row.begin(), row.end(), values_.data() + i * steps_,
                           [=](double value) { return rounded(value, scale); });
            fill(i);
        }
    });
}

// Rolling polynomial fingerprints modulo 2^64 of row i, sorted.
void GramIndex::fill(std::size_t i) {
    const double* values = values_.data() + i * steps_;
    Gram* grams = grams_.data() + i * count_;
    std::uint64_t print = 0;
    std::uint64_t leaving = 1;  // weight of the oldest value of a full gram, times kBase
    for (std::size_t t = 0; t < steps_; ++t) {
        print = print * kBase + mixed(values[t]);
        if (t < length_) leaving *= kBase;
        if (t >= length_) print -= leaving * mixed(values[t - length_]);
        if (t + 1 >= length_) {
            const std::size_t at = t + 1 - length_;
            grams[at] = {print, static_cast<std::uint32_t>(at)};
        }
    }
    std::sort(grams, grams + count_,
              [](const Gram& a, const Gram& b) { return a.print < b.print; });
}

bool GramIndex::equal(std::size_t i, const Gram& a, std::size_t j, const Gram& b) const {
    const double* left = values_.data() + i * steps_ + a.at;
    return std::equal(left, left + length_, values_.data() + j * steps_ + b.at);
}

bool GramIndex::share(std::size_t i, std::size_t j) const {
    const std::span<const Gram> left = row(i);
    const std::span<const Gram> right = row(j);
    std::size_t a = 0;
    std::size_t b = 0;
    while (a < left.size() && b < right.size()) {
        if (left[a].print < right[b].print) {
            ++a;
        } else if (left[a].print > right[b].print) {
            ++b;
        } else {
            // All pairs of this fingerprint: a collision must not hide a true match behind it.
            for (std::size_t c = b; c < right.size() && right[c].print == left[a].print; ++c) {
                if (equal(i, left[a], j, right[c])) return true;
            }
            ++a;
        }
    }
    return false;
}

}  // namespace lineup
