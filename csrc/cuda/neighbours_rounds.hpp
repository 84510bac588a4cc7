// The search for neighbours on a machine, in rounds. A scan lists members in the order of distance
// and place without a gap, each round from where the last one ended; the judge drops those that
// overlap too much. The first k that are left are therefore the k nearest admissible ones, and who
// finds its list not full has seen all there are. As a rule one round does for k below kList.
#pragma once

#include <algorithm>
#include <numeric>
#include <span>
#include <vector>

#include "cuda/judge_body.hpp"
#include "cuda/neighbours_plan.hpp"
#include "cuda/scan_body.hpp"

namespace lineup::cuda {

inline constexpr std::size_t kAsked = 1 << 17;  // of one launch; Ctrl+C is seen between two

template <class Machine>
class Rounds {
    template <class T>
    using Buffer = typename Machine::template Buffer<T>;

  public:
    Rounds(Machine& machine, const Plan& plan)
        : machine_(machine),
          order_(machine.upload(std::span(plan.order))),
          first_(machine.upload(std::span(plan.first))),
          last_(machine.upload(std::span(plan.last))),
          z_(machine.upload(std::span(plan.z))),
          line_(machine.upload(std::span(plan.line))),
          at_(machine.upload(std::span(plan.at))),
          cursor_far_(machine.template room<double>(plan.order.size())),
          cursor_who_(machine.template room<std::int32_t>(plan.order.size())),
          compared_(machine, plan.compared),
          run_(plan.run),
          members_{plan.z.size() / plan.order.size(),
                   z_.data(),
                   first_.data(),
                   last_.data(),
                   line_.data(),
                   at_.data(),
                   plan.reach} {}

    // The members that places `asked` get next, at most `wanted` each, to taken [n_asked, kList];
    // to found [n_asked, kList] the places that were judged, -1 at the end if there are no more.
    void next(std::span<const std::int32_t> asked, std::span<const std::int32_t> wanted, bool again,
              std::span<std::int32_t> found, std::span<std::int32_t> taken) {
        const auto places = machine_.upload(asked), enough = machine_.upload(wanted);
        auto listed = machine_.template room<std::int32_t>(found.size());
        auto kept = machine_.template room<std::int32_t>(taken.size());
        if (members_.dims == 4) {
            scan<4>(places.data(), asked.size(), again, listed.data());
        } else {
            scan<0>(places.data(), asked.size(), again, listed.data());
        }
        machine_.launch(asked.size(), JudgeBody{compared_.view, run_, order_.data(), places.data(),
                                                listed.data(), enough.data(), kept.data()});
        machine_.download(listed, found);
        machine_.download(kept, taken);
    }

  private:
    template <std::size_t fixed_dims>
    void scan(const std::int32_t* asked, std::size_t n_asked, bool again, std::int32_t* found) {
        using Body = ScanBody<fixed_dims>;
        machine_.launch(
            (n_asked + Body::kThreads - 1) / Body::kThreads,
            Body{members_, asked, n_asked, again, cursor_far_.data(), cursor_who_.data(), found});
    }

    Machine& machine_;
    Buffer<std::int32_t> order_, first_, last_;
    Buffer<double> z_;
    Buffer<std::int32_t> line_;
    Buffer<std::int64_t> at_;
    Buffer<double> cursor_far_;
    Buffer<std::int32_t> cursor_who_;
    UploadedRows<Machine> compared_;
    std::size_t run_;
    DeviceMembers members_;
};

// What NeighbourIndex(members, overlap).search(k, out) gives.
template <class Machine>
void neighbours_on(Machine& machine, const PlacedSeries& members, const Overlap& overlap,
                   std::size_t k, std::span<std::int32_t> out, int threads, const Poll& poll,
                   std::size_t at_a_time = kAsked) {
    const Plan plan = plan_neighbours(members, overlap, threads, poll);
    Rounds<Machine> rounds(machine, plan);
    const std::size_t n = plan.order.size();
    std::fill(out.begin(), out.end(), -1);
    std::vector<std::size_t> have(n);  // by place
    std::vector<std::int32_t> asked(n), open, wanted, found, taken;
    std::iota(asked.begin(), asked.end(), 0);
    const auto ask = [&](std::span<const std::int32_t> places, bool again) {
        wanted.clear();
        for (const std::int32_t place : places) {
            const std::size_t lacking = k - have[static_cast<std::size_t>(place)];
            wanted.push_back(static_cast<std::int32_t>(std::min(lacking, kList)));
        }
        found.resize(places.size() * kList);
        taken.resize(places.size() * kList);
        rounds.next(places, wanted, again, found, taken);
        for (std::size_t i = 0; i < places.size(); ++i) {
            const auto place = static_cast<std::size_t>(places[i]);
            std::int32_t* row = out.data() + static_cast<std::size_t>(plan.order[place]) * k;
            const auto given = std::span(taken).subspan(i * kList, kList);
            const auto end = std::find(given.begin(), given.end(), -1);
            std::copy(given.begin(), end, row + have[place]);
            have[place] += static_cast<std::size_t>(end - given.begin());
            if (have[place] < k && found[(i + 1) * kList - 1] >= 0) open.push_back(places[i]);
        }
    };
    for (bool again = false; !asked.empty(); again = true) {
        open.clear();
        for (std::size_t from = 0; from < asked.size(); from += at_a_time) {
            if (poll) poll();
            const std::size_t count = std::min(at_a_time, asked.size() - from);
            ask(std::span(asked).subspan(from, count), again);
        }
        asked.swap(open);
    }
}

}  // namespace lineup::cuda
