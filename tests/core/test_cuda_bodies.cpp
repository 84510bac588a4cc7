// The kernels of csrc/cuda, emulated on the processor, against the kernels of the processor.
#include <array>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "check.hpp"
#include "cuda/device.hpp"
#include "cuda/features_body.hpp"
#include "cuda/neighbours_rounds.hpp"
#include "emulated.hpp"
#include "features.hpp"
#include "lanes.hpp"
#include "neighbours.hpp"

namespace {

using lineup::OverlapRule;
using Pools = std::vector<std::int32_t>;

constexpr std::array kTurns{Turns::rising, Turns::falling, Turns::odd_first};

struct Random {
    std::uint64_t state;

    std::size_t below(std::size_t n) {
        state = state * 6364136223846793005ULL + 1442695040888963407ULL;
        return static_cast<std::size_t>(state >> 33) % n;
    }
};

bool same_bits(const std::vector<double>& a, const std::vector<double>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0;
}

void features_have_the_same_bits(const lineup::Rows& series) {
    std::vector<double> expected(series.n * 4);
    lineup::features(series, expected, 1);
    for (const Turns turns : kTurns) {
        EmulatedMachine machine{turns};
        std::vector<double> phi(series.n * 4);
        lineup::cuda::features_on(machine, series, phi);
        CHECK(same_bits(phi, expected));
    }
}

void features_of_all_shapes() {
    static_assert(lineup::cuda::FeaturesBody::kSums == lineup::kSums);
    Random random{5};
    for (const std::size_t steps : {1U, 2U, 7U, 8U, 15U, 16U, 17U, 31U, 33U, 67U, 96U, 700U}) {
        for (const std::size_t n : {1U, 7U, 8U, 9U, 50U}) {
            for (const double scale : {1e-300, 1e-12, 1.0, 1e12, 1e147}) {
                std::vector<double> values(n * steps);
                for (double& x : values) x = (static_cast<double>(random.below(999)) - 500) * scale;
                for (std::size_t t = 0; t < steps; ++t) values[t] = 0.1 * scale;  // constant
                values[values.size() / 2] = -0.0;
                features_have_the_same_bits({values.data(), n, steps});
            }
        }
    }
    std::vector<double> line(900);
    for (double& x : line) x = static_cast<double>(random.below(1000)) / 7;
    std::vector<std::int64_t> at(50);
    for (std::int64_t& begin : at) begin = static_cast<std::int64_t>(random.below(870));
    features_have_the_same_bits({line.data(), 800, 31, 1});  // windows at stride 1
    features_have_the_same_bits({line.data(), 20, 31, 45});  // rows apart
    features_have_the_same_bits({line.data(), 50, 31, 31, at.data(), 900});
}

void features_refuse_what_the_processor_refuses() {
    std::vector<double> values(20 * 9, 1.0), phi(20 * 4);
    for (const auto& [bad, text] : {std::pair{std::nan(""), "expected finite values, got nan"},
                                    {HUGE_VAL, "expected finite values, got inf"},
                                    {-HUGE_VAL, "expected finite values, got -inf"},
                                    {2e150, "expected magnitudes up to 1e150, got 2.000e+150"},
                                    {-2e150, "expected magnitudes up to 1e150, got -2.000e+150"}}) {
        values[13 * 9 + 8] = bad;
        EmulatedMachine machine;
        CHECK_THROWS(lineup::cuda::features_on(machine, {values.data(), 20, 9}, phi),
                     std::invalid_argument, "series: " + std::string(text) + " at row 13, step 8");
    }
}

// Windows of a random walk on few levels, some of them repeated, in a few groups.
struct Case {
    std::vector<double> z, values;
    std::vector<std::int32_t> group, source;
    std::vector<std::int64_t> start, at;
    lineup::PlacedSeries members;

    struct Shape {
        std::size_t n, steps, dims;
        std::size_t stride = 1, groups = 1, levels = 5;  // levels: of a point in each dimension
        double scale = 1.0;
        bool scattered = false;
    };

    explicit Case(const Shape& shape) {
        Random random{shape.n * 31 + shape.steps * 7 + shape.dims};
        const auto level = [&](std::size_t n) { return static_cast<double>(random.below(n)); };
        z.resize(shape.n * shape.dims);
        for (double& x : z) x = (level(shape.levels) - 1.0) * shape.scale;
        values.resize((shape.n - 1) * shape.stride + shape.steps);
        double height = 0.0;
        for (double& x : values) {
            if (random.below(3) > 0) height += level(9) - 4;
            x = height * 0.37 * shape.scale;
        }
        for (std::size_t i = 0; i < shape.n; ++i) {
            group.push_back(static_cast<std::int32_t>(random.below(shape.groups)) * 5 - 3);
            source.push_back(static_cast<std::int32_t>(random.below(8) == 0));
            start.push_back(static_cast<std::int64_t>(random.below(6) ? i * shape.stride : 0));
            at.push_back(static_cast<std::int64_t>(random.below(4) ? i * shape.stride : 0));
        }
        start[shape.n / 2] = std::numeric_limits<std::int64_t>::min();
        start[shape.n / 3] = std::numeric_limits<std::int64_t>::max();
        lineup::Rows series{values.data(), shape.n, shape.steps, shape.stride};
        if (shape.scattered) {
            series.at = at.data();
            series.size = values.size();
        }
        members = {{z.data(), shape.n, shape.dims}, series, group, source, start};
    }
};

// Writes how many launches it took to `launches`, where that is wanted.
void neighbours_are_the_same(const Case& given, const lineup::Overlap& overlap, std::size_t k,
                             std::size_t* launches = nullptr) {
    const std::size_t n = given.members.series.n;
    Pools expected(n * k), found(n * k);
    lineup::NeighbourIndex(given.members, overlap, 1).search(k, expected, 1);
    const std::array<std::size_t, 3> at_a_time{lineup::cuda::kAsked, 150, 128};
    for (std::size_t i = 0; i < kTurns.size(); ++i) {
        EmulatedMachine machine{kTurns[i]};
        lineup::cuda::neighbours_on(machine, given.members, overlap, k, found, 1, {}, at_a_time[i]);
        CHECK(found == expected);
        if (launches != nullptr && i == 0) *launches = machine.launches;
    }
}

void neighbours_under_every_rule(const Case::Shape& shape) {
    const Case given(shape);
    const std::size_t fifth = shape.steps / 5;
    for (const OverlapRule rule : {OverlapRule::run, OverlapRule::window}) {
        for (const std::size_t max_run : {std::size_t{0}, std::size_t{1}, shape.steps / 2,
                                          shape.steps - 1, shape.steps, shape.steps + 9}) {
            neighbours_are_the_same(given, {max_run, 4, rule}, 8);
        }
        for (const std::size_t k : {1U, 16U, 40U}) {
            neighbours_are_the_same(given, {fifth, 4, rule}, k);
        }
        neighbours_are_the_same(given, {fifth, 0, rule}, 8);
    }
}

void neighbours_of_all_shapes() {
    for (const std::size_t n : {1U, 2U, 33U, 127U, 129U, 260U}) {
        for (const std::size_t steps : {1U, 2U, 12U, 25U}) {
            const std::size_t dims = 1 + (n + steps) % 6;
            neighbours_under_every_rule(
                {.n = n, .steps = steps, .dims = dims, .stride = 1 + n % 3});
        }
    }
    neighbours_under_every_rule({.n = 300, .steps = 12, .dims = 4, .groups = 3});
    neighbours_under_every_rule({.n = 300, .steps = 12, .dims = 4, .groups = 90});
    neighbours_under_every_rule({.n = 200, .steps = 9, .dims = 4, .stride = 14});  // rows apart
    neighbours_under_every_rule({.n = 300, .steps = 12, .dims = 4, .scattered = true});
    for (const double scale : {1e-200, 1e-9, 2e148}) {
        neighbours_under_every_rule({.n = 150, .steps = 12, .dims = 4, .scale = scale});
    }
    neighbours_under_every_rule(
        {.n = 150, .steps = 12, .dims = 4, .levels = 1});  // all points equal
    neighbours_under_every_rule({.n = 150, .steps = 12, .dims = 3, .levels = 1000000});
}

// Every member but the last two equals every other: these are far away, and only found after all.
void the_search_goes_on_until_all_is_seen() {
    const std::size_t n = 200;
    Case given({.n = n, .steps = 3, .dims = 4, .stride = 3});
    for (std::size_t t = 0; t < n * 3; ++t) given.values[t] = t < (n - 2) * 3 ? 1.0 : 9.0;
    given.values[n * 3 - 1] = 8.0;
    for (std::size_t d = 0; d < 8; ++d) given.z[given.z.size() - 1 - d] = 1e3;
    std::size_t launches = 0;
    neighbours_are_the_same(given, {3, 4, OverlapRule::run}, 2, &launches);
    CHECK(launches > 2 * n / lineup::cuda::kList);  // as the others fill the lists of many rounds
    Case easy({.n = n, .steps = 12, .dims = 4, .stride = 12, .levels = 1000});
    neighbours_are_the_same(easy, {3, 4, OverlapRule::window}, 8, &launches);
    CHECK(launches == 2);  // scan and judge, once
}

// Whether two rows share a run is decided at a few steps only: all lengths, by all pairs of cuts.
void runs_are_seen_at_every_offset() {
    constexpr std::size_t steps = 11;
    for (std::size_t run = 1; run <= steps; ++run) {
        for (std::size_t p = 0; p + run <= steps; ++p) {
            for (std::size_t q = 0; q + run <= steps; ++q) {
                std::vector<double> values(2 * steps);
                for (std::size_t t = 0; t < 2 * steps; ++t) values[t] = static_cast<double>(t + 50);
                for (std::size_t i = 0; i < run; ++i) {
                    values[p + i] = values[steps + q + i] = static_cast<double>(i);
                }
                const double z[] = {0.0, 1.0};
                const std::int32_t same[] = {0, 0};
                const std::int64_t start[] = {0, 0};
                const lineup::PlacedSeries members{
                    {z, 2, 1}, {values.data(), 2, steps}, same, same, start};
                for (const std::size_t max_run : {run - 1, run}) {
                    EmulatedMachine machine;
                    Pools found(2);
                    lineup::cuda::neighbours_on(machine, members, {max_run, 4, OverlapRule::run}, 1,
                                                found, 1, {});
                    const bool shares = max_run < run;
                    CHECK((found == (shares || run == steps ? Pools{-1, -1} : Pools{1, 0})));
                }
            }
        }
    }
}

void neighbours_refuse_and_stop() {
    Case given({.n = 40, .steps = 5, .dims = 2});
    EmulatedMachine machine;
    Pools found(40 * 3);
    const lineup::Poll stop = [] { throw std::runtime_error("stopped"); };
    const lineup::Overlap overlap{1, 4, OverlapRule::window};
    CHECK_THROWS(lineup::cuda::neighbours_on(machine, given.members, overlap, 3, found, 1, stop),
                 std::runtime_error, "stopped");
    given.values[7] = std::nan("");
    CHECK_THROWS(lineup::cuda::neighbours_on(machine, given.members, overlap, 3, found, 1, {}),
                 std::invalid_argument, "series: expected finite values, got nan at row 3, step 4");
    given.z[5] = 3e150;
    CHECK_THROWS(lineup::cuda::neighbours_on(machine, given.members, overlap, 3, found, 1, {}),
                 std::invalid_argument,
                 "z: expected magnitudes up to 1e150, got 3.000e+150 at row 2, step 1");
}

}  // namespace

int main() {
    features_of_all_shapes();
    features_refuse_what_the_processor_refuses();
    neighbours_of_all_shapes();
    the_search_goes_on_until_all_is_seen();
    runs_are_seen_at_every_offset();
    neighbours_refuse_and_stop();
    return check_result();
}
