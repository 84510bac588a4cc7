// Numbers as text against printf, and as token ids against the same text cut up; the same under
// every instruction set.
#include "made_up_tokenizer.hpp"

void fuzz(Input& in) {
    using lineup::Isa;
    const std::size_t n = in.number(1, 5), steps = in.number(1, 70), stride = in.number(1, 80);
    const MadeUpTokenizer tokenizer(in);
    std::vector<std::int32_t> decimals(n);
    for (auto& number : decimals) number = static_cast<std::int32_t>(in.number(0, 12));
    const std::string separator = in.flag() ? ", " : in.flag() ? "" : "; and then ";
    const std::vector<double> values = in.values((n - 1) * stride + steps);
    const lineup::Rows rows{values.data(), n, steps, stride};
    const lineup::Numerals numerals = tokenizer.numerals();

    const bool good = all_good(values);
    for (const Isa isa : {Isa::plain, Isa::avx2, Isa::avx512}) {
        if (isa > lineup::best_isa()) continue;
        std::string text, expected;
        const auto write = [&] {
            text = lineup::format_numbers(values, decimals[0], separator, isa);
        };
        EXPECT(refused(write) != good);
        if (!good) return;
        for (const double value : values) expected += separator + printed(value, decimals[0]);
        EXPECT(text == expected.substr(separator.size()));

        const lineup::RaggedIds found = numerals.ids(rows, decimals, 2, {}, isa);
        Ids ids;
        EXPECT(found.offsets.size() == n + 1 && found.offsets[0] == 0);
        for (std::size_t i = 0; i < n; ++i) {
            append(ids, tokenizer.row(rows.row(i), decimals[i]));
            EXPECT(found.offsets[i + 1] == static_cast<std::int64_t>(ids.size()));
        }
        EXPECT(std::ranges::equal(found.ids.view(), ids));
    }
}
