// The kernels that halve stretches of points, included by tree_split.cpp once per instruction set:
// TARGET is the attribute of functions, and float_lanes.hpp has what the sets call by the same
// names. No include guard, no includes.

// The widest side of n points, by a sample where there are many: only the shape of the boxes hangs
// on it. `x` is [dims][stride].
TARGET inline Sides sides_of(const float* x, std::size_t stride, std::size_t n, std::size_t dims) {
    const std::size_t step = n / kSample + 1, size = (n + step - 1) / step;
    alignas(64) std::array<float, kSample + kBlock> sample;
    Sides sides{0, false};
    float width = -1.0F;
    for (std::size_t d = 0; d < dims; ++d) {
        const float* from = x + d * stride;
        for (std::size_t i = 0; i < size; ++i) sample[i] = from[i * step];
        std::fill_n(sample.begin() + size, kLanes, from[0]);
        Lanes low = Lanes{} + from[0], high = low;
        for (std::size_t i = 0; i < size; i += kLanes) {
            Lanes own;
            std::memcpy(&own, sample.data() + i, sizeof own);
            low = own < low ? own : low;
            high = own > high ? own : high;
        }
        std::array<float, kLanes> lows, highs;
        std::memcpy(&lows, &low, sizeof low);
        std::memcpy(&highs, &high, sizeof high);
        const float least = *std::min_element(lows.begin(), lows.end());
        const float most = *std::max_element(highs.begin(), highs.end());
        if (most - least <= width) continue;
        width = most - least;
        sides = {d, width < std::max(std::abs(least), std::abs(most)) * 0x1p-10F};
    }
    return sides;
}

TARGET inline Bracket bracket_of(const float* keys, std::size_t n, std::size_t rank,
                                 std::size_t margin) {
    std::array<float, kSample + kBlock> sample, copy;
    const std::size_t size = n < 2048 ? 32 : kSample, step = n / size;
    for (std::size_t i = 0; i < size; ++i) sample[i] = keys[i * step];
    const std::size_t at = rank / step;
    Bracket bracket{-kInf, kInf};
    copy = sample;
    if (at >= margin) bracket.low = kth_smallest(copy.data(), size, at - margin + 1);
    if (at + margin < size) bracket.high = kth_smallest(sample.data(), size, at + margin + 1);
    return bracket;
}

// The value of that rank among n. Samples tell where it must lie; each pass keeps what is near.
TARGET inline Cut cut_at(const float* keys, std::size_t n, std::size_t rank, SplitRoom& room) {
    std::size_t less = 0;
    float* to = room.near.data();
    float* spare = room.nearer.data();
    for (std::size_t margin = n < 2048 ? 6 : 14; n > kTiny;) {
        const Bracket bracket = bracket_of(keys, n, rank, margin);
        const float under = std::nextafter(bracket.low, -kInf);
        std::size_t below = 0, kept = 0, i = 0;
        for (; i + kLanes <= n; i += kLanes) {
            Lanes own;
            std::memcpy(&own, keys + i, sizeof own);
            const std::uint32_t out = within(own, under);
            const std::uint32_t in = within(own, bracket.high) & ~out;
            pack_lanes(own, in, to + kept);
            below += static_cast<std::size_t>(std::popcount(out));
            kept += static_cast<std::size_t>(std::popcount(in));
        }
        for (; i < n; ++i) {
            to[kept] = keys[i];
            below += keys[i] < bracket.low ? 1U : 0U;
            kept += keys[i] >= bracket.low && keys[i] <= bracket.high ? 1U : 0U;
        }
        if (below > rank || rank - below >= kept) {  // not among those kept
            margin *= 2;
            continue;
        }
        less += below;
        if (bracket.low == bracket.high) return {bracket.low, less};
        if (kept == n) {
            const Cut cut = nth_of(keys, n, rank);
            return {cut.value, less + cut.less};
        }
        rank -= below;
        n = kept;
        keys = to;
        std::swap(to, spare);
        margin = n < 2048 ? 6 : 14;
    }
    std::array<float, kTiny + kBlock> few;
    std::copy_n(keys, n, few.begin());
    const float value = kth_smallest(few.data(), n, rank + 1);
    for (std::size_t i = 0; i < n; ++i) less += few[i] < value ? 1U : 0U;
    return {value, less};
}

// Moves lanes of a column that stay on the left to their place in it, the others to `right`.
template <class Vector, class Value>
TARGET inline void part_lanes(Value* column, std::size_t i, std::size_t to_left,
                              std::uint32_t lefts, std::uint32_t* right) {
    Vector own;
    std::memcpy(&own, column + i, sizeof own);
    Words same;
    std::memcpy(&same, column + i, sizeof same);
    pack_lanes(own, lefts, column + to_left);  // never ahead of what is still to be read
    pack_lanes(same, ~lefts & kAll, right);
}

TARGET void split(PointColumns& columns, std::size_t begin, std::size_t end, std::size_t left,
                  SplitRoom& room) {
    const std::size_t dims = columns.points.steps, all = columns.n, n = end - begin;
    const std::size_t wide = room.near.size();
    float* x = columns.x.data() + begin;
    std::uint32_t* id = columns.id.data() + begin;
    Sides sides = sides_of(x, all, n, dims);
    if (sides.coarse) {
        measure(columns, begin, end);
        sides = sides_of(x, all, n, dims);
    }
    const float* keys = x + sides.widest * all;
    const Cut cut = cut_at(keys, n, left, room);
    const float under = std::nextafter(cut.value, -kInf);
    std::size_t equal = left - cut.less;  // of those at the cut, so many go to the left
    std::size_t to_left = 0, to_right = 0, i = 0;
    for (; i + kLanes <= n; i += kLanes) {
        Lanes own;
        std::memcpy(&own, keys + i, sizeof own);
        std::uint32_t lefts = within(own, under), ties = within(own, cut.value) & ~lefts;
        for (; ties && equal; ties &= ties - 1, --equal) lefts |= ties & ~(ties - 1);
        for (std::size_t d = 0; d < dims; ++d) {
            part_lanes<Lanes>(x + d * all, i, to_left, lefts,
                              room.rights.data() + d * wide + to_right);
        }
        part_lanes<Words>(id, i, to_left, lefts, room.rights.data() + dims * wide + to_right);
        const auto moved = static_cast<std::size_t>(std::popcount(lefts));
        to_left += moved;
        to_right += kLanes - moved;
    }
    for (; i < n; ++i) {
        const bool tie = keys[i] == cut.value && equal > 0, goes_left = keys[i] < cut.value || tie;
        equal -= tie ? 1U : 0U;
        for (std::size_t d = 0; d < dims; ++d) {
            const float own = x[d * all + i];
            if (goes_left) {
                x[d * all + to_left] = own;
            } else {
                room.rights[d * wide + to_right] = std::bit_cast<std::uint32_t>(own);
            }
        }
        (goes_left ? id[to_left] : room.rights[dims * wide + to_right]) = id[i];
        to_left += goes_left ? 1U : 0U;
        to_right += goes_left ? 0U : 1U;
    }
    for (std::size_t d = 0; d < dims; ++d) {
        std::memcpy(x + d * all + to_left, room.rights.data() + d * wide, to_right * sizeof *x);
    }
    std::copy_n(room.rights.data() + dims * wide, to_right, id + to_left);
}
