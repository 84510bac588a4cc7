#include "prompts.hpp"

#include <algorithm>
#include <string>

#include "check.hpp"

namespace {

using Ids = std::vector<std::int32_t>;

struct Ragged {
    Ids ids;
    std::vector<std::int64_t> offsets{0};

    explicit Ragged(const std::vector<Ids>& rows) {
        for (const Ids& row : rows) {
            ids.insert(ids.end(), row.begin(), row.end());
            offsets.push_back(static_cast<std::int64_t>(ids.size()));
        }
    }
    lineup::RaggedView view() const { return {ids, offsets}; }
};

// The prompt of a leaf as text, each id a character.
std::string prompt(const lineup::PromptTree& tree, std::int32_t node) {
    std::string text;
    for (; node >= 0; node = tree.parent[static_cast<std::size_t>(node)]) {
        const auto at = static_cast<std::size_t>(node);
        std::string piece;
        for (auto i = tree.offsets[at]; i < tree.offsets[at + 1]; ++i) {
            piece += static_cast<char>(tree.ids[static_cast<std::size_t>(i)]);
        }
        text.insert(0, piece);
    }
    return text;
}

lineup::PromptTree tree_of_three(lineup::Layout layout) {
    const Ids head{'<'}, middle{'|'}, tail{'>'}, end{'.'};
    const Ragged labels({{'A'}, {'B'}, {'C'}});
    const Ragged blocks({{'t', 't'}, {'x'}, {}});
    const Ragged captions({{'q'}, {'r', 's'}});
    return lineup::prompt_tree(layout, {.head = head,
                                        .middle = middle,
                                        .tail = tail,
                                        .labels = labels.view(),
                                        .blocks = blocks.view(),
                                        .block_end = end,
                                        .captions = captions.view()});
}

}  // namespace

int main() {
    const auto candidates_first = tree_of_three(lineup::Layout::candidates_first);
    const auto& first = candidates_first.questions;
    CHECK(first.size() == 6);
    CHECK(prompt(candidates_first, first[0]) == "<Att.Bx.C.|q>");
    CHECK(prompt(candidates_first, first[1]) == "<Ax.Btt.C.|q>");
    CHECK(prompt(candidates_first, first[2]) == "<Ax.B.Ctt.|q>");
    CHECK(prompt(candidates_first, first[5]) == "<Ax.B.Ctt.|rs>");

    const auto caption_first = tree_of_three(lineup::Layout::caption_first);
    CHECK(prompt(caption_first, caption_first.questions[0]) == "<q|Att.Bx.C.>");
    CHECK(prompt(caption_first, caption_first.questions[4]) == "<rs|Ax.Btt.C.>");

    for (const auto& tree : {candidates_first, caption_first}) {
        CHECK(tree.parent[0] == -1);
        for (std::size_t i = 1; i < tree.parent.size(); ++i) {
            CHECK(tree.parent[i] >= 0 && tree.parent[i] < static_cast<std::int32_t>(i));
        }
    }
    // K² - (K-1)(K-2)/2 = 8 blocks with one "." each, once for all captions or once per caption.
    CHECK(std::count(candidates_first.ids.begin(), candidates_first.ids.end(), '.') == 8);
    CHECK(std::count(caption_first.ids.begin(), caption_first.ids.end(), '.') == 16);
    return check_result();
}
