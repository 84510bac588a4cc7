// φ against sums in long double; the same bits whatever the instruction set and the threads.
#include <algorithm>
#include <string>

#include "features.hpp"
#include "input.hpp"

namespace {

using lineup::Isa;

void check_row(std::span<const double> row, const double* phi) {
    const auto [low, high] = std::minmax_element(row.begin(), row.end());
    const auto count = static_cast<long double>(row.size());
    long double sum = 0, squares = 0;
    for (const double x : row) sum += x;
    for (const double x : row) squares += (x - sum / count) * (x - sum / count);
    const double size = std::max(std::abs(*low), std::abs(*high));
    const double slack = 1e-13 * (*high - *low) + 1e-15 * size + 1e-160;  // squares underflow
    EXPECT(std::abs(static_cast<double>(phi[0] - sum / count)) <= slack);
    EXPECT(std::abs(static_cast<double>(phi[1] - std::sqrt(squares / count))) <= slack);
    EXPECT(phi[2] == *low && phi[3] == *high);
    if (*low == *high) EXPECT(phi[0] == *low && phi[1] == 0);
}

}  // namespace

void fuzz(Input& in) {
    const std::size_t n = in.number(1, 6), steps = in.number(1, 70), stride = in.number(1, 80);
    const std::size_t copies = in.number(0, 20) == 20 ? 300 : 1;  // enough for several threads
    std::vector<double> values = in.values((n - 1) * stride + steps);
    for (std::size_t i = values.size(), end = i * copies; i < end; ++i) {
        values.push_back(values[i - n]);
    }
    const lineup::Rows rows{values.data(), (values.size() - steps) / stride + 1, steps, stride};

    bool good = true;
    for (std::size_t i = 0; i < rows.n; ++i) good = good && all_good(rows.row(i));
    std::vector<double> phi(rows.n * lineup::kFeatures);
    const bool bad = refused([&] { lineup::features(rows, phi, 1, {}, Isa::plain); });
    EXPECT(bad != good);
    for (std::size_t i = 0; good && i < rows.n; ++i) check_row(rows.row(i), &phi[i * 4]);
    for (const Isa isa : {Isa::avx2, Isa::avx512}) {
        if (isa > lineup::best_isa()) continue;
        std::vector<double> other(phi.size());
        EXPECT(refused([&] { lineup::features(rows, other, 3, {}, isa); }) == bad);
        EXPECT(bad || other == phi);
    }

    std::string name;  // of an instruction set, in the letters that their names have
    for (std::size_t letter = in.number(0, 8); letter > 0; --letter) {
        name += "plainvx5126"[in.number(0, 10)];
    }
    const bool known = name.empty() || name == "plain" || name == "avx2" || name == "avx512";
    EXPECT(known || refused([&] { lineup::named_isa(name); }));
}
