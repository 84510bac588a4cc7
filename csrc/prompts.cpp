#include "prompts.hpp"

#include <algorithm>

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

constexpr std::size_t kSerialValues = 1 << 15;  // below this a thread costs more than it saves

std::int32_t* put(std::int32_t* out, std::span<const std::int32_t> ids) {
    return std::copy(ids.begin(), ids.end(), out);
}

// The K candidates as they are listed with the target at `position`.
std::int32_t* put_candidates(std::int32_t* out, const PromptParts& parts, std::size_t position) {
    for (std::size_t at = 0; at < parts.labels.size(); ++at) {
        out = put(out, parts.labels.row(at));
        out = put(out, parts.blocks.row(at == position ? 0 : at < position ? at + 1 : at));
        out = put(out, parts.block_end);
    }
    return out;
}

// The K prompts of one caption.
void put_prompts(std::int32_t* out, Layout layout, const PromptParts& parts, std::size_t caption) {
    for (std::size_t position = 0; position < parts.labels.size(); ++position) {
        out = put(out, parts.head);
        if (layout == Layout::caption_first) {
            out = put(put(out, parts.captions.row(caption)), parts.middle);
            out = put_candidates(out, parts, position);
        } else {
            out = put_candidates(out, parts, position);
            out = put(put(out, parts.middle), parts.captions.row(caption));
        }
        out = put(out, parts.tail);
    }
}

}  // namespace

PromptTree prompt_tree(Layout layout, const PromptParts& parts) {
    Builder builder(parts);
    const std::size_t k = parts.labels.size(), n_captions = parts.captions.size();
    const std::size_t rotation = parts.labels.ids.size() + parts.blocks.ids.size() +
                                 k * parts.block_end.size() + parts.middle.size();
    const bool once = layout == Layout::candidates_first;
    builder.tree_.ids.reserve(parts.head.size() + (once ? 1 : n_captions) * (k + 1) * rotation +
                              k * (parts.captions.ids.size() + n_captions * parts.tail.size()));
    std::vector<std::int32_t> questions;
    builder.append(parts.head);
    const std::int32_t root = builder.close(-1);
    if (once) {
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

std::vector<std::int64_t> whole_prompts(Layout layout, const PromptParts& parts,
                                        const Numerals& numerals, const Rows& values,
                                        std::span<const std::int32_t> decimals,
                                        std::span<std::int32_t> out, int threads, const Poll& poll,
                                        Isa isa) {
    require_values("values", values);
    const std::size_t k = parts.labels.size(), groups = values.n / k;
    const std::size_t per_group = parts.captions.size() / groups;
    const std::size_t fixed = parts.head.size() + parts.middle.size() + parts.tail.size() +
                              parts.labels.ids.size() + k * parts.block_end.size();
    std::vector<std::int64_t> offsets{0};
    offsets.reserve(parts.captions.size() * k + 1);

    const auto print = [&](std::size_t group, RaggedIds& numbers) {
        numbers.ids.clear();
        numbers.offsets.resize(1);
        for (std::size_t i = group * k; i < (group + 1) * k; ++i) {
            numerals.append(values.row(i), decimals[i], numbers, isa);
        }
    };
    const auto place = [&](std::size_t group, const RaggedIds& numbers) {
        for (std::size_t caption = group * per_group; caption < (group + 1) * per_group;
             ++caption) {
            const std::size_t size =
                fixed + numbers.ids.size() + parts.captions.row(caption).size();
            for (std::size_t position = 0; position < k; ++position) {
                offsets.push_back(offsets.back() + static_cast<std::int64_t>(size));
            }
        }
    };
    const auto write = [&](std::size_t group, const RaggedIds& numbers) {
        PromptParts own = parts;
        own.blocks = {numbers.ids.view(), numbers.offsets};
        for (std::size_t caption = group * per_group; caption < (group + 1) * per_group;
             ++caption) {
            if (static_cast<std::size_t>(offsets[(caption + 1) * k]) > out.size()) return;
            put_prompts(out.data() + offsets[caption * k], layout, own, caption);
        }
    };

    if (threads == 1 || values.n * values.steps <= kSerialValues) {
        RaggedIds numbers;  // stays in the cache from group to group
        parallel_for(groups, 1, 1, poll, [&](std::size_t group, std::size_t) {
            print(group, numbers);
            place(group, numbers);
            write(group, numbers);
        });
        return offsets;
    }
    std::vector<RaggedIds> numbers(groups);
    const auto each = [&](const auto& step) {
        parallel_for(groups, 4, threads, poll, [&](std::size_t begin, std::size_t end) {
            for (std::size_t group = begin; group < end; ++group) step(group, numbers[group]);
        });
    };
    each(print);
    for (std::size_t group = 0; group < groups; ++group) place(group, numbers[group]);
    each(write);
    return offsets;
}

}  // namespace lineup
