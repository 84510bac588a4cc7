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

// A table that makes one id of a digit: its character.
lineup::Numerals digits() {
    Ids ids;
    std::vector<std::int64_t> offsets{0};
    for (int width = 1, count = 10; width <= 3; ++width, count *= 10) {
        for (int n = 0; n < count; ++n) {
            for (int power = count / 10; power > 0; power /= 10)
                ids.push_back('0' + n / power % 10);
            offsets.push_back(static_cast<std::int64_t>(ids.size()));
        }
    }
    const Ids comma{','}, minus{'-'}, both{',', '-'}, dot{'.'};
    return lineup::Numerals({.digit_ids = ids,
                             .digit_offsets = offsets,
                             .openings = {{}, minus, comma, both},
                             .dot = dot,
                             .group = 1});
}

void test_whole_prompts() {
    const Ids head{'<'}, middle{'|'}, tail{'>'};
    const Ragged labels({{'A'}, {'B'}});
    const Ragged captions({{'q'}, {'r', 's'}, {}, {'t'}});
    const std::vector<double> values{1, -2, 30, 4, 5, 6, 7, 8};  // two groups of two of two
    const Ids decimals{0, 0, 1, 1};
    const lineup::PromptParts parts{.head = head,
                                    .middle = middle,
                                    .tail = tail,
                                    .labels = labels.view(),
                                    .blocks = {},
                                    .block_end = {},
                                    .captions = captions.view()};
    const auto written = [&](lineup::Layout layout, std::size_t room, int threads) {
        Ids out(room, '?');
        const auto offsets = lineup::whole_prompts(layout, parts, digits(), {values.data(), 4, 2},
                                                   decimals, out, threads, {}, lineup::best_isa());
        CHECK(offsets.size() == 9);
        std::string text;
        for (std::size_t i = 0; i < out.size(); ++i) {
            if (std::ranges::count(offsets, static_cast<std::int64_t>(i)) > 0) text += ' ';
            text += static_cast<char>(out[i]);
        }
        return text;
    };
    const std::string first =
        " <A1,-2B30,4|q> <A30,4B1,-2|q> <A1,-2B30,4|rs> <A30,4B1,-2|rs>"
        " <A5.0,6.0B7.0,8.0|> <A7.0,8.0B5.0,6.0|> <A5.0,6.0B7.0,8.0|t> <A7.0,8.0B5.0,6.0|t>";
    CHECK(written(lineup::Layout::candidates_first, 136, 1) == first);
    const std::string caption_first = written(lineup::Layout::caption_first, 136, 2);
    CHECK(caption_first.starts_with(" <q|A1,-2B30,4> <q|A30,4B1,-2> <rs|A1,-2B30,4>"));
    // What does not fit is not written, prompts of one caption together.
    const std::string part = written(lineup::Layout::candidates_first, 40, 1);
    CHECK(part.starts_with(" <A1,-2B30,4|q> <A30,4B1,-2|q> ????"));
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
    test_whole_prompts();
    return check_result();
}
