// parallel_for: chunks handed out to threads, the first exception kept, serial when there is
// little.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace lineup {

// Called on the calling thread about every 100 ms during long loops; may throw to stop them.
// An empty one is never called.
using Poll = std::function<void()>;

// What a loop calls at every item that may take a while: polls, and ends with the other threads.
class Pulse {
  public:
    explicit Pulse(const Poll& poll) : poll_(&poll) {}
    Pulse(const Poll* poll, const std::atomic<bool>& stop) : poll_(poll), stop_(&stop) {}

    void operator()() {
        if (stop_ && stop_->load(std::memory_order_relaxed)) throw Stopped{};
        if (!poll_ || !*poll_) return;
        const auto now = Clock::now();
        if (now - polled_ < std::chrono::milliseconds(100)) return;
        (*poll_)();
        polled_ = now;
    }

  private:
    using Clock = std::chrono::steady_clock;
    struct Stopped {};  // another thread has thrown already

    const Poll* poll_;
    const std::atomic<bool>* stop_ = nullptr;
    Clock::time_point polled_ = Clock::now();
};

// Threads a loop over n items uses: `threads` (0: all cores), never more than one per chunk.
inline std::size_t thread_count(std::size_t n, std::size_t grain, int threads) {
    const std::size_t wanted = threads > 0
                                   ? static_cast<std::size_t>(threads)
                                   : std::max<std::size_t>(1, std::thread::hardware_concurrency());
    const std::size_t chunks = (n + grain - 1) / grain;
    return std::max<std::size_t>(1, std::min(wanted, chunks));
}

// Calls body(begin, end) or body(begin, end, pulse) over [0, n) in chunks of `grain` items.
// Rethrows the first exception of any thread after all have stopped; items not yet begun by then
// are skipped.
template <class Body>
void parallel_for(std::size_t n, std::size_t grain, int threads, const Poll& poll, Body&& body) {
    std::atomic<std::size_t> next{0};
    std::atomic<bool> stop{false};
    std::exception_ptr first;
    std::mutex first_guard;

    const auto work = [&](bool calling) {
        Pulse pulse(calling ? &poll : nullptr, stop);
        try {
            for (;; pulse()) {
                const std::size_t begin = next.fetch_add(grain, std::memory_order_relaxed);
                if (begin >= n) return;
                const std::size_t end = std::min(n, begin + grain);
                if constexpr (std::is_invocable_v<Body, std::size_t, std::size_t, Pulse&>) {
                    body(begin, end, pulse);
                } else {
                    body(begin, end);
                }
            }
        } catch (...) {
            const std::lock_guard<std::mutex> lock(first_guard);
            if (!first) first = std::current_exception();
            stop.store(true, std::memory_order_relaxed);
        }
    };

    {
        std::vector<std::jthread> helpers;
        for (std::size_t t = 1; t < thread_count(n, grain, threads); ++t) {
            helpers.emplace_back(work, false);
        }
        work(true);
    }  // joined here
    if (first) std::rethrow_exception(first);
}

}  // namespace lineup
