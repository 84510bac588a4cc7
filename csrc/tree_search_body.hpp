// The walk through a box tree, included by tree_search.cpp once per instruction set: TARGET is the
// attribute of functions, and leaf_hits, box_hits and insert are defined before.
// No include guard, no includes.

TARGET void visit_leaf(const BoxTree& tree, std::size_t leaf, const TreeQuery& query,
                       NearestList& list) {
    alignas(64) double distances[kLeaf];
    const std::int32_t* ids = tree.id.data() + leaf * kLeaf;
    const std::uint32_t* prints = tree.print.empty() ? nullptr : tree.print.data() + leaf * kLeaf;
    std::uint32_t hits = leaf_hits(tree, leaf, query, list.bound(), distances);
    while (hits) {
        const auto slot = static_cast<std::size_t>(std::countr_zero(hits));
        hits &= hits - 1;
        if (!list.accepts(distances[slot], ids[slot])) continue;
        const bool ask = query.ask_always || (prints && prints[slot] == query.print);
        if (ask && !query.admits(query.context, ids[slot])) continue;
        insert(list, distances[slot], ids[slot]);
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
        std::uint32_t nearest = hits & (~hits + 1);
        double least = distances[std::countr_zero(nearest)];
        for (std::uint32_t rest = hits ^ nearest; rest; rest &= rest - 1) {
            const double distance = distances[std::countr_zero(rest)];
            if (distance < least) {
                least = distance;
                nearest = rest & (~rest + 1);
            }
        }
        if (least > list.bound()) return;
        hits ^= nearest;
        const auto child = static_cast<std::size_t>(std::countr_zero(nearest));
        visit(tree, part, level - 1, node * kFanout + child, query, list);
    }
}

TARGET void search(const BoxTree& tree, const BoxTree::Part& part, const TreeQuery& query,
                   NearestList& list) {
    visit(tree, part, part.height, 0, query, list);
}
