// φ on a device: the additions and comparisons of ../features.cpp in the same order, sixteen
// threads for the sixteen partial sums of a row, so that the results have the same bits.
#pragma once

#include <cmath>
#include <span>
#include <vector>

#include "cuda/grid.hpp"

namespace lineup::cuda {

struct FeaturesBody {
    static constexpr std::size_t kSums = 16;
    static constexpr std::size_t kThreads = 128;
    static constexpr std::size_t kRows = kThreads / kSums;  // of a block
    // First pass, four halvings, mean; second pass, four halvings, deviation.
    static constexpr std::size_t kPhases = 12, kMean = 5, kSecond = 6, kDeviation = 11;

    struct Shared {
        double sum[kRows][kSums], low[kRows][kSums], high[kRows][kSums];
        double mean[kRows];
    };
    struct State {};

    DeviceRows series;
    double* phi;        // [n, 4]
    std::uint8_t* bad;  // [1]: set where values are not acceptable

    LINEUP_DEVICE std::size_t phases(std::size_t) const { return kPhases; }

    LINEUP_DEVICE void step(std::size_t phase, std::size_t block, std::size_t thread, State&,
                            Shared& shared) const {
        const std::size_t own = thread / kSums, sum = thread % kSums, i = block * kRows + own;
        if (i >= series.n) return;
        if (phase == 0) return first_pass(i, own, sum, shared);
        if (phase == kSecond) return second_pass(i, own, sum, shared);
        if (phase < kMean) return halve(kSums >> phase, own, sum, shared);
        if (phase > kSecond && phase < kDeviation) {
            return halve(kSums >> (phase - kSecond), own, sum, shared);
        }
        if (sum != 0) return;
        if (phase == kMean) {
            finish_mean(i, own, shared);
        } else {
            phi[i * 4 + 1] = std::sqrt(shared.sum[own][0] / static_cast<double>(series.steps));
        }
    }

  private:
    LINEUP_DEVICE void first_pass(std::size_t i, std::size_t own, std::size_t sum,
                                  Shared& shared) const {
        const double* row = series.row(i);
        const double first = 0.0 + row[0];  // never -0, as on the processor
        double total = 0.0, low = first, high = first;
        for (std::size_t t = sum; t < series.steps; t += kSums) {
            const double x = row[t];
            total += x - first;
            low = x < low ? x : low;
            high = x > high ? x : high;
        }
        shared.sum[own][sum] = total;
        shared.low[own][sum] = low;
        shared.high[own][sum] = high;
    }

    LINEUP_DEVICE void second_pass(std::size_t i, std::size_t own, std::size_t sum,
                                   Shared& shared) const {
        const double* row = series.row(i);
        double total = 0.0;
        for (std::size_t t = sum; t < series.steps; t += kSums) {
            const double off = row[t] - shared.mean[own];
            total += off * off;
        }
        shared.sum[own][sum] = total;
    }

    // Combines the parts from `half` on into those before them. The extremes of the first pass are
    // combined a second time after the second one, which changes nothing.
    LINEUP_DEVICE static void halve(std::size_t half, std::size_t own, std::size_t sum,
                                    Shared& shared) {
        if (sum >= half) return;
        double &low = shared.low[own][sum], &high = shared.high[own][sum];
        const double lower = shared.low[own][sum + half], higher = shared.high[own][sum + half];
        shared.sum[own][sum] += shared.sum[own][sum + half];
        low = lower < low ? lower : low;
        high = higher > high ? higher : high;
    }

    LINEUP_DEVICE void finish_mean(std::size_t i, std::size_t own, Shared& shared) const {
        const double shift = shared.sum[own][0], low = shared.low[own][0];
        const double high = shared.high[own][0];
        shared.mean[own] = series.row(i)[0] + shift / static_cast<double>(series.steps);
        phi[i * 4] = shared.mean[own];
        phi[i * 4 + 2] = low;
        phi[i * 4 + 3] = high;
        const bool finite = shift - shift == 0.0;  // false on NaN and infinities
        if (!finite || !(low >= -kMaxMagnitude) || !(high <= kMaxMagnitude)) *bad = 1;
    }
};

// features() on a machine.
template <class Machine>
void features_on(Machine& machine, const Rows& series, std::span<double> out) {
    const UploadedRows<Machine> rows(machine, series);
    auto phi = machine.template room<double>(out.size());
    auto bad = machine.upload(std::span<const std::uint8_t>(std::vector<std::uint8_t>(1)));
    const std::size_t blocks = (series.n + FeaturesBody::kRows - 1) / FeaturesBody::kRows;
    machine.launch(blocks, FeaturesBody{rows.view, phi.data(), bad.data()});
    std::uint8_t found = 0;
    machine.download(bad, std::span(&found, 1));
    if (found) require_values("series", series);
    machine.download(phi, out);
}

}  // namespace lineup::cuda
