// Prompts written whole against every prompt joined on its own, into buffers with room or without.
#include "made_up_tokenizer.hpp"
#include "prompts.hpp"

namespace {

Ids read_ids(Input& in) {
    Ids ids(in.number(0, 5));
    for (std::int32_t& id : ids) id = static_cast<std::int32_t>(in.bits(1)) - 100;
    return ids;
}

struct Ragged {
    std::vector<Ids> rows;
    Ids ids;
    std::vector<std::int64_t> offsets{0};

    Ragged(Input& in, std::size_t n) {
        for (std::size_t i = 0; i < n; ++i) {
            rows.push_back(read_ids(in));
            append(ids, rows[i]);
            offsets.push_back(static_cast<std::int64_t>(ids.size()));
        }
    }
    lineup::RaggedView view() const { return {ids, offsets}; }
};

// The prompts of a case, one after the other, and where each ends.
struct Case {
    bool caption_first;
    std::size_t k, per_group;
    Ids head, middle, tail, end;
    Ragged labels, captions;

    Case(Input& in, std::size_t groups, std::size_t candidates)
        : caption_first(in.flag()),
          k(candidates),
          per_group(in.number(1, 3)),
          head(read_ids(in)),
          middle(read_ids(in)),
          tail(read_ids(in)),
          end(read_ids(in)),
          labels(in, candidates),
          captions(in, groups * per_group) {}

    lineup::PromptParts parts() const {
        return {head, middle, tail, labels.view(), {}, end, captions.view()};
    }

    Ids prompt(std::size_t caption, std::size_t target, const std::vector<Ids>& blocks) const {
        Ids candidates;
        for (std::size_t i = 0; i < k; ++i) {
            append(candidates, labels.rows[i]);
            append(candidates, blocks[i == target ? 0 : i < target ? i + 1 : i]);
            append(candidates, end);
        }
        Ids out = head;
        append(out, caption_first ? captions.rows[caption] : candidates);
        append(out, middle);
        append(out, caption_first ? candidates : captions.rows[caption]);
        append(out, tail);
        return out;
    }
};

}  // namespace

void fuzz(Input& in) {
    const std::size_t groups = in.number(1, 4), k = in.number(2, 5), steps = in.number(1, 12);
    const bool large = in.number(0, 31) == 0;  // enough for several threads
    const std::size_t width = large ? 33000 / (groups * k) : steps;
    const MadeUpTokenizer tokenizer(in);
    const Case given(in, groups, k);
    std::vector<std::int32_t> decimals(groups * k);
    for (auto& number : decimals) number = static_cast<std::int32_t>(in.number(0, 12));
    std::vector<double> values = in.values(groups * k * steps);
    for (std::size_t i = values.size(); i < groups * k * width; ++i) {
        values.push_back(values[i - groups * k * steps]);
    }
    const lineup::Rows rows{values.data(), groups * k, width};

    Ids expected;
    std::vector<std::int64_t> offsets{0};
    const bool good = all_good(values);
    for (std::size_t group = 0; good && group < groups; ++group) {
        std::vector<Ids> blocks;
        for (std::size_t i = group * k; i < (group + 1) * k; ++i) {
            blocks.push_back(tokenizer.row(rows.row(i), decimals[i]));
        }
        for (std::size_t g = group * given.per_group; g < (group + 1) * given.per_group; ++g) {
            for (std::size_t target = 0; target < k; ++target) {
                append(expected, given.prompt(g, target, blocks));
                offsets.push_back(static_cast<std::int64_t>(expected.size()));
            }
        }
    }
    const lineup::Numerals numerals = tokenizer.numerals();
    const std::size_t room = expected.size() * in.number(0, 4) / 3;
    Ids out(room);
    std::vector<std::int64_t> found;
    EXPECT(refused([&] {
               found = lineup::whole_prompts(given.caption_first ? lineup::Layout::caption_first
                                                                 : lineup::Layout::candidates_first,
                                             given.parts(), numerals, rows, decimals, out,
                                             in.flag() ? 1 : 3, {}, lineup::best_isa());
           }) != good);
    if (!good) return;
    EXPECT(found == offsets);
    if (room >= expected.size()) EXPECT(std::equal(expected.begin(), expected.end(), out.begin()));
}
