#include "prompts.hpp"

namespace lineup {
namespace {

class Builder {
  public:
    explicit Builder(const PromptParts& parts) : parts_(parts) { tree_.offsets.push_back(0); }

    void append(std::span<const std::int32_t> ids) {
        tree_.ids.insert(tree_.ids.end(), ids.begin(), ids.end());
    }

    // Ends the node whose ids have been appended; returns its index.
    std::int32_t close(std::int32_t parent) {
        tree_.offsets.push_back(static_cast<std::int64_t>(tree_.ids.size()));
        tree_.parent.push_back(parent);
        return static_cast<std::int32_t>(tree_.parent.size() - 1);
    }

    void append_block(std::size_t position, std::size_t candidate) {
        append(parts_.labels.row(position));
        append(parts_.blocks.row(candidate));
        append(parts_.block_end);
    }

    // Adds the K rotations under a node, each closed by `closing`; returns the node that ends each.
    std::vector<std::int32_t> rotations(std::int32_t root, std::span<const std::int32_t> closing) {
        const std::size_t k = parts_.labels.size();
        std::vector<std::int32_t> before{root};  // [p]: the distractors in front of position p
        for (std::size_t position = 0; position + 1 < k; ++position) {
            append_block(position, position + 1);
            before.push_back(close(before.back()));
        }
        std::vector<std::int32_t> ends;
        for (std::size_t position = 0; position < k; ++position) {
            append_block(position, 0);
            for (std::size_t later = position + 1; later < k; ++later) append_block(later, later);
            append(closing);
            ends.push_back(close(before[position]));
        }
        return ends;
    }

    PromptTree tree_;

  private:
    const PromptParts& parts_;
};

}  // namespace

PromptTree prompt_tree(Layout layout, const PromptParts& parts) {
    Builder builder(parts);
    std::vector<std::int32_t> questions;
    builder.append(parts.head);
    const std::int32_t root = builder.close(-1);
    if (layout == Layout::candidates_first) {
        const std::vector<std::int32_t> orders = builder.rotations(root, parts.middle);
        for (std::size_t g = 0; g < parts.captions.size(); ++g) {
            for (const std::int32_t order : orders) {
                builder.append(parts.captions.row(g));
                builder.append(parts.tail);
                questions.push_back(builder.close(order));
            }
        }
    } else {
        for (std::size_t g = 0; g < parts.captions.size(); ++g) {
            builder.append(parts.captions.row(g));
            builder.append(parts.middle);
            const std::vector<std::int32_t> ends =
                builder.rotations(builder.close(root), parts.tail);
            questions.insert(questions.end(), ends.begin(), ends.end());
        }
    }
    builder.tree_.questions = std::move(questions);
    return std::move(builder.tree_);
}

}  // namespace lineup
