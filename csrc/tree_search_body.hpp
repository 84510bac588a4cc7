// The walk through a box tree, included by tree_search.cpp once per instruction set: TARGET is the
// attribute of functions, and leaf_hits, same_prints, box_hits and insert are defined before.
// No include guard, no includes.

TARGET void visit_leaf(const BoxTree& tree, std::size_t leaf, const TreeQuery& query,
                       NearestList& list) {
    alignas(64) double distances[kLeaf];
    const std::int32_t* ids = tree.id.data() + leaf * kLeaf;
    const std::uint32_t* prints = tree.print.empty() ? nullptr : tree.print.data() + leaf * kLeaf;
    std::uint32_t hits = leaf_hits(tree, leaf, query, list.bound(), distances);
    if (!query.ask_always) {
        if (!hits) return;
        std::uint32_t twins = prints ? hits & same_prints(prints, query.print) : 0;
        for (; twins; twins &= twins - 1) {
            const int slot = std::countr_zero(twins);
            if (!query.admits(query.context, ids[slot])) hits ^= 1U << slot;
        }
        insert(list, distances, ids, hits);
        return;
    }
    while (hits) {
        const auto slot = static_cast<std::size_t>(std::countr_zero(hits));
        hits &= hits - 1;
        if (!list.accepts(distances[slot], ids[slot])) continue;
        if (!query.admits(query.context, ids[slot])) continue;
        insert(list, distances, ids, 1U << slot);
    }
}

// Children nearest first, so that the bound falls early.
TARGET void visit(const BoxTree& tree, const BoxTree::Part& part, std::size_t level,
                  std::size_t node, const TreeQuery& query, NearestList& list) {
    if (level == 0) {
        visit_leaf(tree, part.first_leaf + node, query, list);
        return;
    }
    alignas(64) double distances[kFanout];
    const double* boxes = tree.boxes.data() + part.boxes[level] + node * 2 * tree.dims * kFanout;
    std::uint32_t hits = box_hits(boxes, tree.dims, query.point, list.bound(), distances);
    while (hits) {
        const std::size_t child = nearest_of(distances, hits);
        if (distances[child] > list.bound()) return;
        hits ^= 1U << child;
        visit(tree, part, level - 1, node * kFanout + child, query, list);
    }
}

TARGET void search(const BoxTree& tree, const BoxTree::Part& part, const TreeQuery& query,
                   NearestList& list) {
    visit(tree, part, part.height, 0, query, list);
}
