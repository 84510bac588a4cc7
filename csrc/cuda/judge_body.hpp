// Which of the members that a scan found share too long a run with who asked: a block for every
// one who asked, which goes through its list from the nearest on and stops when it has enough.
#pragma once

#include "cuda/scan_body.hpp"

namespace lineup::cuda {

// Whether the longest run of equal values through a[p] and b[q] has `run` values or more.
LINEUP_DEVICE inline bool run_through(const double* a, const double* b, std::size_t p,
                                      std::size_t q, std::size_t steps, std::size_t run) {
    const std::size_t low = p < q ? p : q, high = p < q ? q : p;
    if (steps - (high - low) < run || a[p] != b[q]) return false;
    std::size_t length = 1;
    for (std::size_t i = 1; length < run && i <= low && a[p - i] == b[q - i]; ++i) ++length;
    for (std::size_t i = 1; length < run && high + i < steps && a[p + i] == b[q + i]; ++i) ++length;
    return length >= run;
}

struct JudgeBody {
    static constexpr std::size_t kThreads = 64;

    struct Shared {
        std::int32_t shares, taken;
    };
    struct State {};

    DeviceRows compared;         // by member
    std::size_t run;             // 1 to steps
    const std::int32_t* order;   // [n]: the member at each place
    const std::int32_t* asked;   // [n_asked] places
    const std::int32_t* found;   // [n_asked, kList] places, as the scan left them
    const std::int32_t* wanted;  // [n_asked]: so many are enough
    std::int32_t* taken;         // [n_asked, kList] members, nearest first, then -1

    LINEUP_DEVICE std::size_t phases(std::size_t) const { return 1 + 2 * kList; }

    LINEUP_DEVICE void step(std::size_t phase, std::size_t block, std::size_t thread, State&,
                            Shared& shared) const {
        if (phase == 0) {
            if (thread == 0) shared.shares = shared.taken = 0;
            return;
        }
        const bool looks = phase % 2 == 1;  // all look, then one notes what they saw
        if (!looks && thread != 0) return;
        const std::size_t i = (phase - 1) / 2;
        const std::int32_t who = found[block * kList + i];
        const bool judged = who >= 0 && shared.taken < wanted[block];
        if (looks) {
            if (judged && shares(member(asked[block]), member(who), thread)) shared.shares = 1;
            return;
        }
        std::int32_t* to = taken + block * kList;
        to[i] = -1;
        if (judged && !shared.shares) to[shared.taken++] = order[who];
        shared.shares = 0;
    }

  private:
    LINEUP_DEVICE std::size_t member(std::int32_t place) const {
        return static_cast<std::size_t>(order[place]);
    }

    // Whether this thread sees a shared run. A run of that length covers one of every `run`
    // steps, so that it is enough to look through these, beside every step of the other member.
    LINEUP_DEVICE bool shares(std::size_t a, std::size_t b, std::size_t thread) const {
        const std::size_t steps = compared.steps, pairs = steps / run * steps;
        const double *own = compared.row(a), *other = compared.row(b);
        for (std::size_t pair = thread; pair < pairs; pair += kThreads) {
            const std::size_t p = pair / steps * run + run - 1;
            if (run_through(own, other, p, pair % steps, steps, run)) return true;
        }
        return false;
    }
};

}  // namespace lineup::cuda
