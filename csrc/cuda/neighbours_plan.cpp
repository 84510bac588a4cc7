#include "cuda/neighbours_plan.hpp"

#include <algorithm>
#include <numeric>

#include "overlap.hpp"

namespace lineup::cuda {
namespace {

constexpr std::size_t kValues = 1 << 16;  // of one chunk of work

void sort_by_group(const PlacedSeries& members, Plan& plan) {
    const std::size_t n = members.series.n;
    const auto group = [&](std::int32_t i) { return members.group[static_cast<std::size_t>(i)]; };
    plan.order.resize(n);
    std::iota(plan.order.begin(), plan.order.end(), 0);
    std::stable_sort(plan.order.begin(), plan.order.end(),
                     [&](std::int32_t a, std::int32_t b) { return group(a) < group(b); });
    plan.first.resize(n);
    plan.last.resize(n);
    for (std::size_t begin = 0, end = 0; begin < n; begin = end) {
        while (end < n && group(plan.order[end]) == group(plan.order[begin])) ++end;
        for (std::size_t place = begin; place < end; ++place) {
            plan.first[place] = static_cast<std::int32_t>(begin);
            plan.last[place] = static_cast<std::int32_t>(end);
        }
    }
}

void copy_points(const Rows& z, Plan& plan) {
    plan.z.resize(z.n * z.steps);
    for (std::size_t place = 0; place < z.n; ++place) {
        const auto row = z.row(static_cast<std::size_t>(plan.order[place]));
        std::copy(row.begin(), row.end(),
                  plan.z.begin() + static_cast<std::ptrdiff_t>(place * z.steps));
    }
}

// Rows of rounded values, each value once also where rows overlap.
void round_values(const Rows& series, double scale, int threads, const Poll& poll, Plan& plan) {
    const std::span<const double> all = series.all();
    plan.kept.resize(all.size());
    parallel_for(all.size(), kValues, threads, poll, [&](std::size_t begin, std::size_t end) {
        for (std::size_t t = begin; t < end; ++t) plan.kept[t] = rounded(all[t], scale);
    });
    plan.compared.data = plan.kept.data();
}

// Rows side by side where they lie apart, so that nothing between them is copied to a device.
Rows side_by_side(const Rows& series, Plan& plan) {
    if (series.at != nullptr || series.stride <= series.steps) return series;
    plan.kept.reserve(series.n * series.steps);
    for (std::size_t i = 0; i < series.n; ++i) {
        plan.kept.insert(plan.kept.end(), series.row(i).begin(), series.row(i).end());
    }
    return {plan.kept.data(), series.n, series.steps};
}

}  // namespace

Plan plan_neighbours(const PlacedSeries& members, const Overlap& overlap, int threads,
                     const Poll& poll) {
    require_values("z", members.z);
    require_values("series", members.series);
    const Rows& series = members.series;
    const bool exempt = overlap.max_run >= series.steps;  // only equal values are no neighbours
    const bool by_run = overlap.rule == OverlapRule::run && !exempt;
    Plan plan;
    sort_by_group(members, plan);
    copy_points(members.z, plan);
    plan.reach = exempt ? 0 : series.steps - overlap.max_run - 1;
    plan.run = by_run ? overlap.max_run + 1 : series.steps;
    plan.line.resize(series.n);
    plan.at.resize(series.n);
    std::vector<std::uint32_t> chained;
    if (by_run) {
        const GramIndex grams(series, overlap.max_run, overlap.decimals, threads, poll);
        chained.assign(grams.places().begin(), grams.places().end());
    }
    for (std::size_t place = 0; place < series.n; ++place) {
        const auto i = static_cast<std::size_t>(plan.order[place]);
        plan.line[place] = by_run || exempt ? 0 : members.source[i];
        plan.at[place] = by_run ? chained[i] : exempt ? plan.order[place] : members.start[i];
    }
    plan.compared = side_by_side(series, plan);
    if (by_run) round_values(plan.compared, decimal_scale(overlap.decimals), threads, poll, plan);
    return plan;
}

}  // namespace lineup::cuda
