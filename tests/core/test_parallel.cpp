#include "parallel.hpp"

#include <numeric>
#include <stdexcept>

#include "check.hpp"

namespace {

void every_item_once(std::size_t n, std::size_t grain, int threads) {
    std::vector<int> seen(n, 0);
    lineup::parallel_for(n, grain, threads, {}, [&](std::size_t begin, std::size_t end) {
        for (std::size_t i = begin; i < end; ++i) ++seen[i];
    });
    CHECK(std::accumulate(seen.begin(), seen.end(), 0) == static_cast<int>(n));
    for (const int count : seen) CHECK(count == 1);
}

}  // namespace

int main() {
    for (const std::size_t n : {0U, 1U, 7U, 64U, 1000U}) {
        for (const int threads : {0, 1, 2, 5}) {
            every_item_once(n, 1, threads);
            every_item_once(n, 16, threads);
        }
    }
    CHECK(lineup::thread_count(10, 16, 8) == 1);
    CHECK(lineup::thread_count(100, 10, 3) == 3);
    CHECK(lineup::thread_count(0, 10, 3) == 1);

    const auto fails = [](std::size_t begin, std::size_t) {
        if (begin == 40) throw std::runtime_error("at 40");
    };
    CHECK_THROWS(lineup::parallel_for(100, 1, 4, {}, fails), std::runtime_error, "at 40");

    int polls = 0;
    const lineup::Poll stop = [&] {
        ++polls;
        throw std::runtime_error("stopped");
    };
    const auto slow = [](std::size_t, std::size_t) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
    };
    CHECK_THROWS(lineup::parallel_for(1000, 1, 2, stop, slow), std::runtime_error, "stopped");
    CHECK(polls == 1);
    return check_result();
}
