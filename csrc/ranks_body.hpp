// Ranks among a few values, for the bodies that are included once per instruction set. No include
// guard, no includes.

constexpr std::size_t kLanes = sizeof(Lanes) / sizeof(float);
constexpr std::uint32_t kAll = (1U << kLanes) - 1U;  // lanes

// The k-th smallest of a few values; room for whole vectors behind them is overwritten.
TARGET inline float kth_smallest(float* values, std::size_t n, std::size_t k) {
    const std::size_t padded = (n + kLanes - 1) / kLanes * kLanes;
    for (std::size_t i = n; i < padded; ++i) values[i] = std::numeric_limits<float>::infinity();
    alignas(64) std::array<float, 2 * kLanes> kth;
    std::size_t found = 0;
    const Lanes none = Lanes{} - std::numeric_limits<float>::infinity();
    Lanes greatest = none;
    for (std::size_t i = 0; i < padded; i += kLanes) {
        Lanes own;
        std::memcpy(&own, values + i, sizeof own);
        Flags before{};
        for (std::size_t j = 0; j < n; ++j) before = own > values[j] ? before + 1 : before;
        const std::uint32_t hits = bits(before == static_cast<std::int32_t>(k - 1));
        pack_lanes(own, hits, kth.data() + found);
        found |= hits ? 1U : 0U;
        own = before < static_cast<std::int32_t>(k) ? own : none;
        greatest = own > greatest ? own : greatest;
    }
    if (found) return kth[0];
    std::memcpy(kth.data(), &greatest, sizeof greatest);
    return *std::max_element(kth.begin(), kth.begin() + kLanes);  // equal to the one before it
}
