// The prompt tree against every prompt joined on its own.
#include "input.hpp"
#include "prompts.hpp"

namespace {

using Ids = std::vector<std::int32_t>;

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
            ids.insert(ids.end(), rows[i].begin(), rows[i].end());
            offsets.push_back(static_cast<std::int64_t>(ids.size()));
        }
    }
    lineup::RaggedView view() const { return {ids, offsets}; }
};

void append(Ids& to, const Ids& ids) {
    to.insert(to.end(), ids.begin(), ids.end());
}

// What a node and those before it hold. `offsets` and `parent` are checked on the way.
Ids prompt_of(const lineup::PromptTree& tree, std::int32_t node) {
    Ids out;
    while (node >= 0) {
        const auto at = static_cast<std::size_t>(node);
        EXPECT(at < tree.parent.size() && tree.parent[at] < node && tree.parent[at] >= -1);
        out.insert(out.begin(), tree.ids.begin() + tree.offsets[at],
                   tree.ids.begin() + tree.offsets[at + 1]);
        node = tree.parent[at];
    }
    return out;
}

}  // namespace

void fuzz(Input& in) {
    const bool caption_first = in.flag();
    const std::size_t k = in.number(2, 7), g = in.number(0, 4);
    const Ids head = read_ids(in), middle = read_ids(in), tail = read_ids(in), end = read_ids(in);
    const Ragged labels(in, k), blocks(in, k), captions(in, g);
    const lineup::PromptTree tree = lineup::prompt_tree(
        caption_first ? lineup::Layout::caption_first : lineup::Layout::candidates_first,
        {head, middle, tail, labels.view(), blocks.view(), end, captions.view()});

    EXPECT(tree.questions.size() == g * k);
    EXPECT(tree.offsets.size() == tree.parent.size() + 1 && tree.offsets[0] == 0);
    EXPECT(tree.offsets.back() == static_cast<std::int64_t>(tree.ids.size()));
    for (std::size_t i = 0; i < tree.parent.size(); ++i) {
        EXPECT(tree.offsets[i] <= tree.offsets[i + 1]);
    }
    for (std::size_t caption = 0; caption < g; ++caption) {
        for (std::size_t target = 0; target < k; ++target) {
            Ids candidates;
            for (std::size_t i = 0; i < k; ++i) {
                append(candidates, labels.rows[i]);
                append(candidates, blocks.rows[i == target ? 0 : i < target ? i + 1 : i]);
                append(candidates, end);
            }
            Ids expected = head;
            append(expected, caption_first ? captions.rows[caption] : candidates);
            append(expected, middle);
            append(expected, caption_first ? candidates : captions.rows[caption]);
            append(expected, tail);
            EXPECT(prompt_of(tree, tree.questions[caption * k + target]) == expected);
        }
    }
}
