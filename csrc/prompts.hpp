// The prompts of a group, K rotations × G captions, as one tree of shared prefixes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "numerals.hpp"

namespace lineup {

enum class Layout { candidates_first = 0, caption_first = 1 };

// Rows of ids of different lengths; offsets rise from 0 to ids.size().
struct RaggedView {
    std::span<const std::int32_t> ids;
    std::span<const std::int64_t> offsets;

    std::size_t size() const { return offsets.size() - 1; }
    std::span<const std::int32_t> row(std::size_t i) const {
        return ids.subspan(static_cast<std::size_t>(offsets[i]),
                           static_cast<std::size_t>(offsets[i + 1] - offsets[i]));
    }
};

struct PromptParts {
    std::span<const std::int32_t> head;
    std::span<const std::int32_t> middle;  // between candidates and caption, in either order
    std::span<const std::int32_t> tail;
    RaggedView labels;  // K: what opens the block at each position
    RaggedView blocks;  // K: numbers of the target, then of the distractors in their order
    std::span<const std::int32_t> block_end;
    RaggedView captions;  // G
};

// Node i holds ids[offsets[i], offsets[i + 1]) and continues node parent[i] (-1: the root); parents
// come before children. questions [G, K]: the node that ends the prompt of caption g with the
// target at position p.
struct PromptTree {
    std::vector<std::int32_t> ids;
    std::vector<std::int64_t> offsets;
    std::vector<std::int32_t> parent;
    std::vector<std::int32_t> questions;
};

// Rotation p has the target inserted at p among the distractors; the distractors before the target
// are shared by all later rotations: K² - (K-1)(K-2)/2 blocks instead of K². Candidates first, the
// captions stand behind the rotations; caption first, the rotations behind each caption.
PromptTree prompt_tree(Layout layout, const PromptParts& parts);

// The prompts of B groups written out whole, straight from the values: values and decimals hold the
// K rows of each group one after the other, parts.captions the G rows of each; parts.blocks is not
// read. Returns where each prompt begins and the last one ends, [B * G * K + 1]: groups, their
// captions, and for each caption the positions of the target. Only prompts that end within `out`
// are written. Throws std::invalid_argument on NaN and infinities.
std::vector<std::int64_t> whole_prompts(Layout layout, const PromptParts& parts,
                                        const Numerals& numerals, const Rows& values,
                                        std::span<const std::int32_t> decimals,
                                        std::span<std::int32_t> out, int threads, const Poll& poll,
                                        Isa isa);

}  // namespace lineup
