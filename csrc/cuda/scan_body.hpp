// The nearest members of each one that is asked for: a thread for every one, over tiles of its
// group that the threads of a block load together.
#pragma once

#include <limits>

#include "cuda/grid.hpp"

namespace lineup::cuda {

// A Plan in memory of the device.
struct DeviceMembers {
    std::size_t dims;
    const double* z;
    const std::int32_t* first;
    const std::int32_t* last;
    const std::int32_t* line;
    const std::int64_t* at;
    std::uint64_t reach;

    LINEUP_DEVICE bool close(std::size_t a, std::size_t b) const {
        if (line[a] != line[b]) return false;
        // In unsigned arithmetic, since the difference of two int64 may not fit one.
        const auto from = static_cast<std::uint64_t>(at[a]), to = static_cast<std::uint64_t>(at[b]);
        return (at[a] < at[b] ? to - from : from - to) <= reach;
    }
};

// A constant, since the device may not call numeric_limits.
inline constexpr double kAnywhere = std::numeric_limits<double>::infinity();

inline constexpr std::size_t kList = 16;  // members that are found at a time

// Finds the next kList members by distance and then place that come after the cursor of who asks
// and are not close on its line. Distances are sums of squares in float64, dimension after
// dimension, as ../neighbours.cpp has them. `fixed_dims`: the dimensions, 0 for any number, which
// are then read where they are.
template <std::size_t fixed_dims>
struct ScanBody {
    static constexpr std::size_t kThreads = 128;
    static constexpr std::size_t kTile = fixed_dims == 0 ? 1024 : kThreads;  // members

    struct Shared {
        alignas(16) double tile[fixed_dims == 0 ? 1 : kTile * fixed_dims];
        double far[kList][kThreads];
        std::int32_t who[kList][kThreads];
    };
    struct State {
        double point[fixed_dims == 0 ? 1 : fixed_dims];
        double limit;  // members further than this, or as far, are no longer listed
        std::uint32_t listed;
        double cursor_far;  // members up to here have been listed in earlier rounds
        std::int32_t cursor_who;
        std::size_t place, first, last;
    };

    DeviceMembers members;
    const std::int32_t* asked;  // [n_asked] places, rising
    std::size_t n_asked;
    bool again;                // whether there are cursors
    double* cursor_far;        // [n], by place
    std::int32_t* cursor_who;  // [n]
    std::int32_t* found;       // [n_asked, kList], nearest first, -1 where there are no more

    LINEUP_DEVICE std::size_t phases(std::size_t block) const {
        return 2 * ((end(block) - begin(block) + kTile - 1) / kTile) + 2;
    }

    LINEUP_DEVICE void step(std::size_t phase, std::size_t block, std::size_t thread, State& state,
                            Shared& shared) const {
        const std::size_t own = block * kThreads + thread;
        if (phase == 0) {
            if (own < n_asked) start(own, state);
            return;
        }
        const std::size_t from = begin(block) + (phase - 1) / 2 * kTile;
        if (phase + 1 == phases(block)) {
            if (own < n_asked) finish(own, thread, state, shared);
        } else if (phase % 2 == 1) {
            load(from, smaller(kTile, end(block) - from), thread, shared);
        } else if (own < n_asked) {
            const std::size_t to = smaller(from + kTile, state.last);
            for (std::size_t at = larger(from, state.first); at < to; ++at) {
                const double far = distance(state, shared, at, from);
                if (far < state.limit) consider(far, at, thread, state, shared);
            }
        }
    }

  private:
    LINEUP_DEVICE static std::size_t smaller(std::size_t a, std::size_t b) { return a < b ? a : b; }
    LINEUP_DEVICE static std::size_t larger(std::size_t a, std::size_t b) { return a < b ? b : a; }

    // Places that threads of a block look at: the groups of the first who asks to the last.
    LINEUP_DEVICE std::size_t begin(std::size_t block) const {
        return static_cast<std::size_t>(members.first[asked[block * kThreads]]);
    }
    LINEUP_DEVICE std::size_t end(std::size_t block) const {
        const std::size_t past = smaller((block + 1) * kThreads, n_asked);
        return static_cast<std::size_t>(members.last[asked[past - 1]]);
    }

    LINEUP_DEVICE void start(std::size_t own, State& state) const {
        state.place = static_cast<std::size_t>(asked[own]);
        state.first = static_cast<std::size_t>(members.first[state.place]);
        state.last = static_cast<std::size_t>(members.last[state.place]);
        state.limit = kAnywhere;
        state.listed = 0;
        state.cursor_far = again ? cursor_far[state.place] : -1.0;
        state.cursor_who = again ? cursor_who[state.place] : -1;
        if constexpr (fixed_dims > 0) {
            for (std::size_t d = 0; d < fixed_dims; ++d) {
                state.point[d] = members.z[state.place * fixed_dims + d];
            }
        }
    }

    LINEUP_DEVICE void load(std::size_t from, std::size_t count, std::size_t thread,
                            Shared& shared) const {
        for (std::size_t i = thread; i < count * fixed_dims; i += kThreads) {
            shared.tile[i] = members.z[from * fixed_dims + i];
        }
    }

    LINEUP_DEVICE double distance(const State& state, const Shared& shared, std::size_t at,
                                  std::size_t from) const {
        double sum = 0.0;
        if constexpr (fixed_dims == 0) {
            const double* own = members.z + state.place * members.dims;
            const double* other = members.z + at * members.dims;
            for (std::size_t d = 0; d < members.dims; ++d) {
                const double off = other[d] - own[d];
                sum += off * off;
            }
        } else {
            for (std::size_t d = 0; d < fixed_dims; ++d) {
                const double off = shared.tile[(at - from) * fixed_dims + d] - state.point[d];
                sum += off * off;
            }
        }
        return sum;
    }

    // Of members that are equally far, those considered later have later places.
    LINEUP_DEVICE void consider(double far, std::size_t at, std::size_t thread, State& state,
                                Shared& shared) const {
        const auto who = static_cast<std::int32_t>(at);
        const bool listed_before =
            far < state.cursor_far || (far == state.cursor_far && who <= state.cursor_who);
        if (listed_before || members.close(state.place, at)) return;
        std::size_t to = state.listed < kList ? state.listed++ : kList - 1;
        for (; to > 0 && shared.far[to - 1][thread] > far; --to) {
            shared.far[to][thread] = shared.far[to - 1][thread];
            shared.who[to][thread] = shared.who[to - 1][thread];
        }
        shared.far[to][thread] = far;
        shared.who[to][thread] = who;
        if (state.listed == kList) state.limit = shared.far[kList - 1][thread];
    }

    LINEUP_DEVICE void finish(std::size_t own, std::size_t thread, const State& state,
                              const Shared& shared) const {
        for (std::size_t i = 0; i < kList; ++i) {
            found[own * kList + i] = i < state.listed ? shared.who[i][thread] : -1;
        }
        if (state.listed < kList) return;  // there are no more
        cursor_far[state.place] = state.limit;
        cursor_who[state.place] = shared.who[kList - 1][thread];
    }
};

}  // namespace lineup::cuda
